package main

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// Cells are as wide as a terminal shows them.
func TestTable_alignsWideCharacters(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	table := newTable(&out, "KEY", "HOLDER", "LINE")
	table.row("顧客|株式会社", "vm:1", "3")
	table.row("e\u0301tat|1", "vm:1", "")
	table.row("plain|\x1b[31m", "vm:22")
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("got %q", out.String())
	}
	for _, line := range lines[1:] {
		before, _, _ := strings.Cut(line, "vm:")
		if got, want := ansi.StringWidth(before), strings.Index(lines[0], "HOLDER"); got != want {
			t.Errorf("the second column of %q begins at %d, want %d", line, got, want)
		}
	}
	if !strings.HasSuffix(lines[3], "vm:22") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q", lines[3])
	}
}
