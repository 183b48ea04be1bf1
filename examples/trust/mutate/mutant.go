package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is the library with one place changed.
type mutant struct {
	file       string // relative to the root of the repository
	line       int
	start, end int    // the bytes that are replaced
	after      string // what replaces them
	before     string // what stands there
	source     string // the line, without blanks around it
}

// place is what -match looks at.
func (m mutant) place() string { return fmt.Sprintf("%s:%d", m.file, m.line) }

// key names the mutant in the list of the accepted ones. It has no line number, so that it
// survives a change elsewhere in the file.
func (m mutant) key() string {
	return fmt.Sprintf("%s | %s | %s -> %s", m.file, m.source, oneLine(m.before), oneLine(m.after))
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s -> %s | %s", m.file, m.line, oneLine(m.before), oneLine(m.after), m.source)
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if text == "" {
		return "(nothing)"
	}
	if len(text) > 60 {
		text = text[:60] + "..."
	}
	return text
}

// decide lists the Go files that decide something, as patterns. All scripts are changed, too.
var decide = []string{
	"internal/decide/*.go",
	"lock/abandon.go", "lock/form.go", "lock/gate.go", "internal/claims/claims.go", "lock/line.go", "lock/renew.go", "lock/lease.go", "lock/release.go", "lock/take.go", "internal/turn/turn.go", "internal/parking/line.go",
	"lock/order*.go", "policy.go", "outcome.go", "order*.go", "client.go",
}

// mutants returns every mutant of the scripts and of the files that decide, in order.
func mutants(root string) ([]mutant, error) {
	var all []mutant
	for _, pattern := range append([]string{"internal/wire/lua/*.lua"}, decide...) {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			found, err := mutantsOf(root, file)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

func mutantsOf(root, file string) ([]mutant, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var edits []edit
	if strings.HasSuffix(file, ".lua") {
		edits = luaEdits(string(src))
	} else if edits, err = goEdits(file, src); err != nil {
		return nil, err
	}
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	name, err := filepath.Rel(root, file)
	if err != nil {
		return nil, err
	}
	found := make([]mutant, 0, len(edits))
	for _, e := range edits {
		from := bytes.LastIndexByte(src[:e.start], '\n') + 1
		line, _, _ := strings.Cut(string(src[from:]), "\n")
		found = append(found, mutant{
			file: filepath.ToSlash(name), line: 1 + strings.Count(string(src[:e.start]), "\n"),
			start: e.start, end: e.end, after: e.after, before: string(src[e.start:e.end]), source: strings.TrimSpace(line),
		})
	}
	return found, nil
}

// edit replaces the bytes from start to end.
type edit struct {
	start, end int
	after      string
}

// readAccepted reads the survivors that change nothing: a line with the mutant's key for each,
// below a comment that says why. An entry that names no mutant is an error, so that the list
// does not outlive the code.
func readAccepted(file string, all []mutant) (map[string]bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	known := map[string]bool{}
	for _, m := range all {
		known[m.key()] = true
	}
	accepted, reason := map[string]bool{}, false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		switch {
		case text == "":
			reason = false
		case strings.HasPrefix(text, "#"):
			reason = true
		case !reason:
			return nil, fmt.Errorf("%s: no reason stands above %q: write a line with # and the reason", file, text)
		case !known[text]:
			return nil, fmt.Errorf("%s: %q is no mutant any more: delete the entry, or copy the mutant's present text", file, text)
		default:
			accepted[text] = true
		}
	}
	return accepted, lines.Err()
}
