package documented

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// The tests of this package hold the repository's documents against its code, so they run at its top.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	redistest.Main(m)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	redistest.Must(t, err)
	return string(text)
}

// declaredTests calls f with each test and fuzz target of the repository, and its folder.
func declaredTests(t *testing.T, f func(folder, name string)) {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	redistest.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(read(t, path), -1) {
				f(filepath.ToSlash(filepath.Dir(path)), m[1])
			}
		}
		return err
	}))
}

// Each test is there that the pages for a release, for security, of the guarantees and for those who come from
// elsewhere name.
func TestDocumented_testsExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	declaredTests(t, func(_, name string) { there[name] = true })
	test := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	for page, least := range map[string]int{".github/SECURITY.md": 10, "VERSIONING.md": 0, "docs/guarantees.md": 0,
		"docs/migrating.md": 50} {
		names := test.FindAllStringSubmatch(read(t, page), -1)
		if len(names) < 5 {
			t.Errorf("%s names %d tests", page, len(names))
		}
		for _, m := range names {
			if !there[m[1]] {
				t.Errorf("%s names %s, and there is none", page, m[1])
			}
		}
		rows, tested, lines := 0, false, strings.Split(read(t, page), "\n")
		for i, line := range lines {
			switch {
			case !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---"):
			case strings.HasPrefix(lines[i+1], "|---"): // a heading
				tested = strings.HasSuffix(line, "| test |") || strings.HasSuffix(line, "| here|")
			case tested:
				if rows++; !test.MatchString(line) {
					t.Errorf("%s:%d: the row names no test: %s", page, i+1, line)
				}
			}
		}
		if rows < least {
			t.Errorf("%s has %d rows: is it read right?", page, rows)
		}
	}
}

// Each fuzz target has a corpus, so that every test run goes through what was found, and its command stands in
// CONTRIBUTING.md.
func TestDocumented_corpora(t *testing.T) {
	t.Parallel()
	commands := read(t, ".github/CONTRIBUTING.md")
	targets := 0
	declaredTests(t, func(folder, name string) {
		if !strings.HasPrefix(name, "Fuzz") {
			return
		}
		targets++
		if files, _ := filepath.Glob(filepath.Join(folder, "testdata", "fuzz", name, "*")); len(files) == 0 {
			t.Errorf("%s has no corpus for %s", folder, name)
		}
		if !regexp.MustCompile(`-fuzz '?` + name + `\b.* \./` + folder + `\n`).MatchString(commands) {
			t.Errorf("CONTRIBUTING.md has no command that fuzzes %s of %s", name, folder)
		}
	})
	if targets < 8 {
		t.Errorf("found only %d targets", targets)
	}
}

// Each link from a page to a page or to a part of one leads somewhere.
func TestDocumented_links(t *testing.T) {
	t.Parallel()
	anchors := map[string]map[string]bool{} // by page
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/model/*.md", "examples/*.md", "examples/trust/*.md",
		".github/*.md"} {
		files, err := filepath.Glob(pattern)
		redistest.Must(t, err)
		for _, page := range files {
			anchors[page] = map[string]bool{}
			for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(read(t, page), -1) {
				name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
				anchors[page][strings.ReplaceAll(name, " ", "-")] = true
			}
		}
	}
	links := 0
	for page := range anchors {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			} else if anchor != "" && !anchors[to][anchor] {
				t.Errorf("%s: %s has no such part", page, m[1])
			}
		}
	}
	if links < 80 {
		t.Errorf("found only %d links", links)
	}
}

// Each file and folder that docs/architecture.md names is there, and each folder of internal has a row under "Rooms".
func TestArchitecture_namesWhatThereIs(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/architecture.md")
	text, _, _ := strings.Cut(page, "## Pairs of features")
	named := 0
	for _, found := range regexp.MustCompile("`([a-z_/]+(?:\\.go|\\.lua)|(?:internal|lock|cmd)/[a-z]+|[a-z]+)`").FindAllStringSubmatch(text, -1) {
		name := found[1]
		if _, err := os.Stat(name); err == nil {
			named++
		} else if strings.ContainsAny(name, "./") { // else a word of the code
			t.Errorf("the page names %s, and there is none", name)
		}
	}
	if named < 60 {
		t.Errorf("found only %d", named)
	}
	_, rooms, _ := strings.Cut(page, "## Rooms")
	rooms, _, _ = strings.Cut(rooms, "\n## ")
	folders, err := filepath.Glob(filepath.Join("internal", "*"))
	if err != nil || len(folders) < 10 {
		t.Fatalf("%v, %v", folders, err)
	}
	for _, folder := range folders {
		if !strings.Contains(rooms, "`"+filepath.ToSlash(folder)+"`") {
			t.Errorf("docs/architecture.md has no room for %s", folder)
		}
	}
}

// The parts of package lock stand in layers.
func TestArchitecture_layersOfLock(t *testing.T) {
	t.Parallel()
	const module = "github.com/automutex/automutex/"
	for part, allowed := range map[string][]string{
		"internal/life":   {},
		"internal/redisx": {},
		"internal/control": {"internal/engine/rate", "internal/inside", "internal/keys", "internal/life",
			"internal/printable", "internal/redisx"},
		"internal/engine/rate":    {"internal/inside", "internal/printable"},
		"internal/engine/workers": {},
		"internal/claims":         {"internal/inside", "internal/life", "internal/redisx"},
		"internal/engine": {"internal/control", "internal/engine/workers", "internal/inside", "internal/keys",
			"internal/life", "internal/claims", "internal/printable", "internal/redisx"},
	} {
		files, err := filepath.Glob(filepath.Join(part, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", part, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			redistest.Must(t, err)
			for _, spec := range parsed.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				redistest.Must(t, err)
				if own, ours := strings.CutPrefix(path, module); ours && !slices.Contains(allowed, own) {
					t.Errorf("%s imports %s, which stands above it: pass it a value or a function", file, own)
				}
				if filepath.Base(file) == "turn.go" && (path == "sync" || path == "context" || path == "net" ||
					strings.Contains(path, "go-redis")) {
					t.Errorf("%s imports %s: it only says what follows from what came", file, path)
				}
			}
		}
	}
}

// A step goes with its row of steps: no other file names what it declares. delivery has few methods.
func TestArchitecture_steps(t *testing.T) {
	t.Parallel()
	rest, declared := "", []string{}
	files, err := filepath.Glob("*.go")
	redistest.Must(t, err)
	for _, file := range files {
		code := regexp.MustCompile(`//.*|"[^"\n]*"`).ReplaceAllString(read(t, file), "")
		if slices.Contains([]string{"order.go", "replace.go", "claim.go"}, file) {
			for _, match := range regexp.MustCompile(`(?m)^(?:func|type|var) (\w+)`).FindAllStringSubmatch(code, -1) {
				declared = append(declared, match[1])
			}
		} else if !strings.HasSuffix(file, "_test.go") {
			rest += code
		}
	}
	for _, name := range declared {
		rows := len(regexp.MustCompile(`\b`+name+`\b`).FindAllString(rest, -1))
		if isRow := strings.HasPrefix(name, "new"); rows > 1 || rows == 1 != isRow {
			t.Errorf("other files name %s %d times", name, rows)
		}
	}
	if methods := strings.Count(rest, "\nfunc (d *delivery) "); len(declared) < 6 || methods > 30 {
		t.Errorf("the steps declare %q; delivery has %d methods", declared, methods)
	}
}

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

// listShipped gives what go list says in a format of each package that a user builds into a program.
func listShipped(t *testing.T, format string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", format, ".", "./lock", "./unique", "./config").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	return string(out)
}

// What a user builds into a program has nothing in it that only tests need, neither
// directly nor through another package.
func TestImports_shippedPackagesNeedNothingOfTests(t *testing.T) {
	t.Parallel()
	packages := strings.Fields(listShipped(t, "{{.ImportPath}}"))
	if !slices.Contains(packages, "github.com/automutex/automutex/lock") {
		t.Fatalf("package lock is not in the list: %s", packages)
	}
	for _, p := range packages {
		if slices.Contains([]string{"testing", "github.com/alicebob/miniredis/v2", "go.uber.org/goleak"}, p) {
			t.Errorf("a shipped package imports %s, or one that it imports does", p)
		}
	}
}

// What SECURITY.md answers to those who review the module as a new dependency: the code that users build in has no
// init, no unsafe, no cgo, starts no program, dials nothing by itself and reads no environment; only config opens a
// file, by the path that it is given.
func TestImports_asADependency(t *testing.T) {
	t.Parallel()
	page := read(t, ".github/SECURITY.md")
	files := 0
	for line := range strings.Lines(listShipped(t, "{{if .Module}}{{.Module.Path}} {{.Dir}} {{join .GoFiles \",\"}} "+
		"{{join .CgoFiles \",\"}}{{end}}")) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue // of the standard library
		}
		if fields[0] != "github.com/automutex/automutex" {
			if !strings.Contains(page, "`"+fields[0]+"`") {
				t.Errorf("SECURITY.md does not list %s, which comes with the library", fields[0])
			}
			continue
		}
		if len(fields) != 3 {
			t.Errorf("cgo: %s", line)
		}
		for _, name := range strings.Split(fields[2], ",") {
			files++
			askFile(t, filepath.Join(fields[1], name))
		}
	}
	if files < 50 {
		t.Errorf("found only %d files", files)
	}
}

// askFile looks for what a file of the library must not do.
func askFile(t *testing.T, path string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	redistest.Must(t, err)
	for _, imported := range file.Imports {
		if slices.Contains([]string{`"unsafe"`, `"C"`, `"os/exec"`, `"plugin"`, `"net/http"`, `"crypto/tls"`},
			imported.Path.Value) {
			t.Errorf("%s imports %s", path, imported.Path.Value)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				t.Errorf("%s has an init", path)
			}
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if ok && of.Name == "net" && n.Sel.Name != "Error" {
				t.Errorf("%s uses net.%s", path, n.Sel.Name)
			}
			if !ok || of.Name != "os" {
				break
			}
			switch name := n.Sel.Name; {
			case slices.Contains([]string{"Hostname", "Getpid", "Signal"}, name): // for Owner, and Guard.Run
			case name == "ReadFile" && filepath.Base(filepath.Dir(path)) == "config":
			default:
				t.Errorf("%s uses os.%s", path, name)
			}
		}
		return true
	})
}
