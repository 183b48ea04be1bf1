package documented

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if name := entry.Name(); name != "." && strings.HasPrefix(name, ".") || name == "testdata" {
				return fs.SkipDir
			}
			return err
		}
		switch filepath.Ext(path) {
		case ".go":
			return eachToken(path, func(tok token.Token, text string) {
				if tok != token.COMMENT {
					for _, w := range word.FindAllString(text, -1) {
						exists[w] = true
					}
				} else if !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(text, "//\t") { // a tab: an example
					note(path, text)
				}
			})
		case ".lua":
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				code, comment, _ := strings.Cut(line, "--")
				for _, w := range word.FindAllString(code, -1) {
					exists[w] = true
				}
				note(path, comment)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(exists) < 5000 || len(named) < 300 {
		t.Errorf("%d names, %d of them in comments: too few to be all", len(exists), len(named))
	}
	for name, where := range named {
		if !exists[name] {
			t.Errorf("%s: a comment names %s, which is nowhere in the code", where, name)
		}
	}
}

// eachToken calls f with each token and comment of a Go file.
func eachToken(path string, f func(tok token.Token, text string)) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	var s scanner.Scanner
	s.Init(fset.AddFile(path, fset.Base(), len(text)), text, nil, scanner.ScanComments)
	for {
		_, tok, literal := s.Scan()
		if tok == token.EOF {
			return nil
		}
		f(tok, literal)
	}
}
