package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
)

var goSwaps = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.LAND: "||", token.LOR: "&&",
}

// goEdits returns the changes to a Go file: an operator for its neighbour, a number for the next
// one, min for max, a condition for its opposite, a statement for nothing.
func goEdits(name string, src []byte) ([]edit, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	text := func(n ast.Node) string { return string(src[at(n.Pos()):at(n.End())]) }
	var edits []edit
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.Field:
			return false
		case *ast.BinaryExpr:
			if after, ok := goSwaps[n.Op]; ok && !isText(n) {
				edits = append(edits, edit{at(n.OpPos), at(n.OpPos) + len(n.Op.String()), after})
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				edits = append(edits, edit{at(n.OpPos), at(n.OpPos) + 1, ""})
			}
		case *ast.BasicLit:
			if i, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
				edits = append(edits, edit{at(n.Pos()), at(n.End()), strconv.FormatInt(i+1, 10)})
			}
		case *ast.Ident:
			if after, ok := map[string]string{"true": "false", "false": "true"}[n.Name]; ok {
				edits = append(edits, edit{at(n.Pos()), at(n.End()), after})
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok {
				if after, ok := map[string]string{"min": "max", "max": "min"}[f.Name]; ok {
					edits = append(edits, edit{at(f.Pos()), at(f.End()), after})
				}
			}
		case *ast.IfStmt:
			edits = append(edits, edit{at(n.Cond.Pos()), at(n.Cond.End()), "!(" + text(n.Cond) + ")"})
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.DeferStmt:
			edits = append(edits, edit{at(n.Pos()), at(n.End()), ""})
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				edits = append(edits, edit{at(n.Pos()), at(n.End()), ""})
			}
		}
		return true
	})
	return edits, nil
}

// isText reports whether an addition joins texts, where a minus would not compile.
func isText(n *ast.BinaryExpr) bool {
	for _, side := range []ast.Expr{n.X, n.Y} {
		switch side := side.(type) {
		case *ast.BasicLit:
			if side.Kind == token.STRING {
				return true
			}
		case *ast.BinaryExpr:
			if side.Op == token.ADD && isText(side) {
				return true
			}
		}
	}
	return false
}
