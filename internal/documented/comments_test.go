package documented

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// nameOfCode finds names of code with a capital inside, such as handleReply. After a backslash it is an escape.
var nameOfCode = regexp.MustCompile(`(^|[^\\\w])([a-z]+[A-Z]\w+)`)

// A comment of the code, and of the scripts, names nothing that was renamed or deleted.
func TestComments_nameWhatExists(t *testing.T) {
	t.Parallel()
	exists, named := map[string]bool{}, map[string]string{} // named: where
	word := regexp.MustCompile(`\w+`)
	note := func(where, comment string) {
		for _, match := range nameOfCode.FindAllStringSubmatch(comment, -1) {
			named[match[2]] = where
		}
	}
	words := func(code string) {
		for _, w := range word.FindAllString(code, -1) {
			exists[w] = true
		}
	}
	redistest.Must(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if name := entry.Name(); name != "." && strings.HasPrefix(name, ".") || name == "testdata" {
				return fs.SkipDir
			}
			return err
		}
		switch filepath.Ext(path) {
		case ".go":
			text := []byte(read(t, path))
			fset := token.NewFileSet()
			var s scanner.Scanner
			s.Init(fset.AddFile(path, fset.Base(), len(text)), text, nil, scanner.ScanComments)
			for _, tok, literal := s.Scan(); tok != token.EOF; _, tok, literal = s.Scan() {
				if tok != token.COMMENT {
					words(literal)
				} else if !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(literal, "//\t") { // a tab: an example
					note(path, literal)
				}
			}
		case ".lua":
			for line := range strings.Lines(read(t, path)) {
				code, comment, _ := strings.Cut(line, "--")
				words(code)
				note(path, comment)
			}
		}
		return nil
	}))
	if len(exists) < 5000 || len(named) < 300 {
		t.Errorf("%d names, %d of them in comments: too few to be all", len(exists), len(named))
	}
	for name, where := range named {
		if !exists[name] {
			t.Errorf("%s: a comment names %s, which is nowhere in the code", where, name)
		}
	}
}
