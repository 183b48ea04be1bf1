package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// busiest is the first of the repositories that the demo makes tasks for.
const busiest = "octo/hello"

// tally is what the last line of a run counts.
type tally struct{ tasks, done, skipped, replaced, archived, lost, overlaps int }

// lineOf is the line of the chart with that label.
func lineOf(t *testing.T, chart, label string) string {
	t.Helper()
	for line := range strings.Lines(chart) {
		if strings.HasPrefix(line, label) {
			return line
		}
	}
	t.Fatalf("no line %q in\n%s", label, chart)
	return ""
}

// outcome is what a run told.
type outcome struct {
	exit           int
	stdout, stderr string
	tally
}

var resultLine = regexp.MustCompile(`(?:^|\n)(result: tasks=\d+ done=\d+ skipped=\d+(?: replaced=\d+)? archived=\d+ lost=-?\d+ overlaps=\d+)\n$`)

var replacedField = regexp.MustCompile(` replaced=(\d+)`)

// try runs the program; the last line of its output must be the result.
func try(t *testing.T, ctx context.Context, stdin string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o := outcome{exit: run(ctx, args, strings.NewReader(stdin), &stdout, &stderr)}
	o.stdout, o.stderr = stdout.String(), stderr.String()
	match := resultLine.FindStringSubmatch(o.stdout)
	if match == nil {
		t.Fatalf("%q: the last line is no result; stdout:\n%s\nstderr:\n%s", args, o.stdout, o.stderr)
	}
	text := match[1]
	if found := replacedField.FindStringSubmatch(text); found != nil {
		o.replaced, _ = strconv.Atoi(found[1]) // digits
		text = strings.Replace(text, found[0], "", 1)
	}
	if _, err := fmt.Sscanf(text, "result: tasks=%d done=%d skipped=%d archived=%d lost=%d overlaps=%d",
		&o.tasks, &o.done, &o.skipped, &o.archived, &o.lost, &o.overlaps); err != nil {
		t.Fatalf("%q: %v", match[1], err)
	}
	if strings.Contains(o.stdout, "\x1b") || strings.Contains(o.stdout, "\r") {
		t.Errorf("%q: control sequences where there is no terminal", args)
	}
	return o
}

// expect checks exit status and counts, and shows all that was told if wrong.
func (o outcome) expect(t *testing.T, exit int, want tally) {
	t.Helper()
	if o.exit != exit || o.tally != want {
		t.Errorf("exit %d, %+v; want exit %d, %+v\nstdout:\n%s\nstderr:\n%s", o.exit, o.tally, exit, want, o.stdout, o.stderr)
	}
}
