package documented

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

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
// file, by the path that it is given. And the modules that come with it are those that SECURITY.md lists.
func TestImports_asADependency(t *testing.T) {
	t.Parallel()
	page := read(t, ".github/SECURITY.md")
	files := 0
	for line := range strings.Lines(listShipped(t, "{{if .Module}}{{.Module.Path}} {{.Dir}} {{join .GoFiles \",\"}} {{join .CgoFiles \",\"}}{{end}}")) {
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
		if slices.Contains([]string{`"unsafe"`, `"C"`, `"os/exec"`, `"plugin"`, `"net/http"`, `"crypto/tls"`}, imported.Path.Value) {
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
			case slices.Contains([]string{"Open", "File"}, name) && filepath.Base(filepath.Dir(path)) == "config":
			default:
				t.Errorf("%s uses os.%s", path, name)
			}
		}
		return true
	})
}
