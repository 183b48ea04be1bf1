package demo

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
)

func TestAccount(t *testing.T) {
	rec := newRecorder()
	for _, id := range []string{"done", "failed", "skipped", "archived", "queued", "vanished", "done and archived", "replaced", "refused"} {
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
	rec.replace("replaced")
	got := rec.account(leftovers{
		archived: map[string]string{"archived": "why", "done and archived": "why", "a stranger": "why"},
		queued:   map[string]bool{"queued": true},
	})
	if want := (tally{tasks: 8, done: 2, skipped: 1, replaced: 1, archived: 1, queued: 1, lost: 2}); got != want {
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
	// What differs between tasks that found their keys busy is told by none.
	out.Reset()
	printArchived(&out, map[string]string{
		"1": `automutex: rule "a": key "p:{a|1}" is busy: held by task q/1 on vm:1 until its deadline in 29.9s unless renewed`,
		"2": `automutex: rule "a": key "p:{a|2}" is busy`,
		"3": `automutex: rule "b": key "p:{b|2}" is busy: held by vm:1`,
	})
	if want := "2 archived: automutex: rule \"a\": its key was busy\n1 archived: automutex: rule \"b\": its key was busy\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	out.Reset()
	if printArchived(&out, nil); out.Len() > 0 {
		t.Errorf("with nothing archived: %q", out.String())
	}
}
