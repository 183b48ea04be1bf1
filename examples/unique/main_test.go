package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run([]string{"-changes", "20", "-every", "50ms", "-work", "120ms"}, &out, &errs); code != 0 {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	for _, w := range wishes(0) {
		if !strings.Contains(out.String(), w.text) {
			t.Errorf("%s is not shown", w.task)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-changes", "0"}, {"more"}, {"-nosuch"}, {"-redis", "redis://127.0.0.1:1"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%q: exit %d, %q", args, code, errs.String())
		}
	}
}
