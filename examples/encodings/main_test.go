package main

import (
	"bytes"
	"strings"
	"testing"
)

// Each encoding gives the key, and a payload of another one is an error.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		"automutex:{invoice:send|acme}", "automutex:{order:ship|acme}", "automutex:{mail:send|mona@example.com}",
		`automutex: no key for task "order:ship": `,
	} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			t.Fatalf("line %d is not %s...:\n%s", i, want, out.String())
		}
	}
}
