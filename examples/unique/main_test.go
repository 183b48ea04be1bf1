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
		t.Errorf("it ends with %d: %s", code, errs.String())
	}
	for _, w := range wishes {
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
	for _, args := range [][]string{{"-changes", "0"}, {"-every", "0s"}, {"-work", "-1s"}, {"more"}, {"-nosuch"}, {"-redis", "localhost"}, {"-redis", "redis://127.0.0.1:1"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%q ends with %d and says %q", args, code, errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"-h"}, &out, &errs); code != 0 || !strings.Contains(errs.String(), "-changes") {
		t.Errorf("-h ends with %d and says %q", code, errs.String())
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	if overlap(nil) || overlap([]stay{{from: 1, to: 2}, {from: 2, to: 3}}) || !overlap([]stay{{from: 0, to: 1e9}, {from: 5e8, to: 2e9}}) {
		t.Error("overlaps are not told")
	}
}
