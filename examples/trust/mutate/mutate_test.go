package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// changed returns the source with each edit made alone.
func changed(src string, edits []edit) []string {
	var all []string
	for _, e := range edits {
		all = append(all, src[:e.start]+e.after+src[e.end:])
	}
	return all
}

func wantChanged(t *testing.T, src string, edits []edit, want ...string) {
	t.Helper()
	got := changed(src, edits)
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%q is never changed to %q; it is changed to\n%s", src, w, strings.Join(got, "\n--\n"))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%q has %d changes, want %d:\n%s", src, len(got), len(want), strings.Join(got, "\n--\n"))
	}
}

func TestLuaEdits(t *testing.T) {
	wantChanged(t, "if a < 1 then", luaEdits("if a < 1 then"),
		"if not (a < 1) then", "if a <= 1 then", "if a < 2 then")
	wantChanged(t, "  keep_key(ms) ", luaEdits("  keep_key(ms) "))
	wantChanged(t, "  keep_key(ms)\n", luaEdits("  keep_key(ms)\n"), "  \n")
	wantChanged(t, "return '(4e15' -- or 'x' < 1", luaEdits("return '(4e15' -- or 'x' < 1"), "return '4e15' -- or 'x' < 1")
	wantChanged(t, "x = not y and 4e15", luaEdits("x = not y and 4e15"),
		"", "x =  y and 4e15", "x = not y or 4e15", "x = not y and 6000000000000000")
}

func TestGoEdits(t *testing.T) {
	src := "package p\n\nfunc f(a, b int) (s string) {\n\tif !(a > 1) {\n\t\ta = min(a, b)\n\t\tg()\n\t}\n\treturn \"x\" + s\n}\n"
	edits, err := goEdits("p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	replace := func(before, after string) string { return strings.Replace(src, before, after, 1) }
	wantChanged(t, src, edits,
		replace("!(a > 1)", "!(!(a > 1))"), replace("!(a", "(a"), replace("a > 1", "a >= 1"), replace("> 1", "> 2"),
		replace("a = min(a, b)", ""), replace("min(", "max("), replace("g()", ""))
}

// Each mutant of the library is the library with one place changed, and names it.
func TestMutants(t *testing.T) {
	all, err := mutants(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	scripts := 0
	for _, m := range all {
		src, err := os.ReadFile(filepath.Join("..", "..", "..", m.file))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(src[m.start:m.end]); got != m.before || m.before == m.after {
			t.Errorf("%s: %q stands there", m, got)
		}
		if strings.HasSuffix(m.file, ".lua") {
			scripts++
		}
	}
	if scripts < 500 || len(all) < scripts+300 {
		t.Errorf("%d mutants, %d of them of scripts: some file has moved; see decide", len(all), scripts)
	}
	if _, err := readAccepted(filepath.Join("testdata", "accepted.txt"), all); err != nil {
		t.Error(err)
	}
}

func TestReadAccepted(t *testing.T) {
	m := mutant{file: "a.lua", source: "x < 1", before: "<", after: "<="}
	for _, test := range []struct{ text, err string }{
		{"# the two are never equal\n" + m.key() + "\n", ""},
		{m.key() + "\n", "no reason"},
		{"# gone\na.lua | y | 1 -> 2\n", "no mutant any more"},
	} {
		file := filepath.Join(t.TempDir(), "accepted.txt")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		accepted, err := readAccepted(file, []mutant{m})
		switch {
		case test.err == "" && (err != nil || !accepted[m.key()]):
			t.Errorf("%q: %v, %v", test.text, accepted, err)
		case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%q: %v, want an error with %q", test.text, err, test.err)
		}
	}
}
