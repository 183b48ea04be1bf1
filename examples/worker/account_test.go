package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
)

func TestAccount(t *testing.T) {
	rec := newRecorder()
	for _, id := range []string{"done", "failed", "skipped", "archived", "queued", "vanished", "done and archived", "refused"} {
		rec.enqueue("a", id)
	}
	rec.forget("refused")
	for _, id := range []string{"done", "failed", "done and archived", "a stranger"} {
		var err error
		if id == "failed" {
			err = context.Canceled
		}
		rec.begin("a", id, "kind")(err)
	}
	rec.begin("a", "queued", "kind") // and never returned
	rec.skip("skipped")
	got := rec.account(leftovers{
		archived: map[string]string{"archived": "why", "done and archived": "why", "a stranger": "why"},
		queued:   map[string]bool{"queued": true},
	})
	if want := (tally{tasks: 7, done: 2, skipped: 1, archived: 1, queued: 1, lost: 2}); got != want {
		t.Errorf("account = %+v, want %+v", got, want)
	}
	runs, _ := rec.snapshot()
	for _, r := range runs {
		if r.end < r.begin {
			t.Errorf("%s ended at %s, before it began", r.task, r.end)
		}
	}
}

func TestPrintArchived(t *testing.T) {
	archived := map[string]string{}
	for i := range 7 {
		for n := range i + 1 {
			archived[fmt.Sprintf("%d-%d", i, n)] = fmt.Sprintf("reason %d\x1b[2J", i)
		}
	}
	var out bytes.Buffer
	printArchived(&out, archived)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "7 archived: reason 6") || !strings.Contains(lines[5], "2 other reasons") {
		t.Errorf("got %q, want the five most frequent reasons and a count of the rest", lines)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("control characters of a message reach the terminal")
	}
	out.Reset()
	if printArchived(&out, nil); out.Len() > 0 {
		t.Errorf("with nothing archived: %q", out.String())
	}
}
