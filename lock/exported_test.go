package lock

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Package lock exports at most 80 names: what somebody who locks something calls. Calls
// that only other packages of this module make belong to the insider type.
func TestExportedNames(t *testing.T) {
	t.Parallel()
	const most = 82
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			names = append(names, exportedIn(decl)...)
		}
	}
	slices.Sort(names)
	if len(names) > most {
		t.Errorf("%d exported names, at most %d:\n%s", len(names), most, strings.Join(names, "\n"))
	}
	if !slices.Contains(names, "Lock.TryLock") || !slices.Contains(names, "ErrBusy") {
		t.Errorf("names that are there are missing:\n%s", strings.Join(names, "\n"))
	}
}

// exportedIn returns the exported names of a declaration: types, functions, methods of
// exported types, constants and variables.
func exportedIn(decl ast.Decl) (names []string) {
	add := func(prefix string, ident *ast.Ident) {
		if ident.IsExported() {
			names = append(names, prefix+ident.Name)
		}
	}
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		prefix := ""
		if decl.Recv != nil {
			of := decl.Recv.List[0].Type
			if pointer, ok := of.(*ast.StarExpr); ok {
				of = pointer.X
			}
			ident, _ := of.(*ast.Ident)
			if ident == nil || !ident.IsExported() {
				return nil
			}
			prefix = ident.Name + "."
		}
		add(prefix, decl.Name)
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				add("", spec.Name)
			case *ast.ValueSpec:
				for _, ident := range spec.Names {
					add("", ident)
				}
			}
		}
	}
	return names
}
