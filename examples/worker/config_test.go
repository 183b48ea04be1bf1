package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/automutex/automutex/examples/internal/demo"
)

// writeRules writes a file for -config.
func writeRules(t *testing.T, rules string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(name, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// The file that docs/operations.md shows: rows and limits are those of its rules.
func TestRun_config(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-tasks", "60", "-config", "rules.yaml")
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60})
	for _, text := range []string{"3 rules of rules.yaml", "repository octo/hello", "push octo/hello", "rule and key"} {
		if !strings.Contains(o.stdout, text) {
			t.Errorf("no %q in\n%s", text, o.stdout)
		}
	}
	if o.stderr != "" {
		t.Errorf("a file of our own gives cause for:\n%s", o.stderr)
	}
}

// The verdict does not come from the guard: a rule that lets tasks overlap is
// found out, by its own limit, and tasks of no rule overlap nobody.
func TestRun_configOverlaps(t *testing.T) { // by itself: beside others tasks may not overlap
	o := try(t, t.Context(), "", "-tasks", "60", "-config",
		writeRules(t, `rules: [{task: "github:push", scope: all, limit: 2, busy: allow}]`))
	if o.overlaps == 0 || !strings.Contains(o.stdout, "(no rule)") {
		t.Errorf("no overlaps in\n%s", o.stdout)
	}
	o.expect(t, demo.ExitFindings, tally{tasks: 60, done: 60, overlaps: o.overlaps})
	o = try(t, t.Context(), "", "-tasks", "60", "-unguarded", "-config", writeRules(t, "rules: [{task: other}]"))
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60})
}

func TestRun_configRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  []string
		lines []string
	}{
		{[]string{"-config", writeRules(t, "rules: [{taks: a}, {task: b, limit: -1}]")}, []string{`:1:10: unknown key "taks"`, ":1:37: rule"}},
		{[]string{"-config", "missing.yaml"}, []string{"no such file"}},
		{[]string{"-config", ""}, []string{"no such file"}},
		{[]string{"-config", "rules.yaml", "-on", "sender.login"}, []string{"-on: the rules of -config"}},
		{[]string{"-config", "rules.yaml", "-busy", "skip"}, []string{"-busy: the rules of -config"}},
	} {
		var stdout, stderr bytes.Buffer
		exit := run(t.Context(), c.args, strings.NewReader(""), &stdout, &stderr)
		got := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		if exit != demo.ExitUsage || stdout.Len() > 0 || len(got) != len(c.lines) {
			t.Errorf("%q: exit %d, %q", c.args, exit, stderr.String())
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], "worker: ") || !strings.Contains(got[i], c.lines[i]) {
				t.Errorf("%q: got %q, want %q", c.args, got[i], c.lines[i])
			}
		}
	}
}
