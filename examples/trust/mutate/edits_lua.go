package main

import (
	"regexp"
	"strconv"
	"strings"
)

// luaToken finds what may be changed in a script: an operator, a word or a number. A comment or
// a text comes first, so that nothing in it is found.
var luaToken = regexp.MustCompile(`--[^\n]*|'[^'\n]*'|"[^"\n]*"|math\.(?:min|max|floor|ceil)|[A-Za-z_][A-Za-z0-9_]*|\d+(?:\.\d+)?(?:e\d+)?|[<>=~]=|\.\.|[<>+*/%-]`)

var luaSwaps = map[string]string{
	"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==",
	"+": "-", "-": "+", "*": "/", "and": "or", "or": "and", "true": "false", "false": "true",
	"math.min": "math.max", "math.max": "math.min", "math.floor": "math.ceil", "math.ceil": "math.floor",
}

// luaStatement is a line that is one whole statement, which can be left out.
var luaStatement = regexp.MustCompile(`(?m)^[ \t]*(?:redis\.p?call\(.*\)|[a-z_]+\([^\n]*\)|[a-z_]+(?:, [a-z_]+)* = [^\n{]*[^\n{,(])$`)

// luaEdits returns the changes to a script: an operator for its neighbour, a number for the
// next one, a bound of a range, a condition for its opposite, a statement for nothing.
func luaEdits(src string) []edit {
	var edits []edit
	for _, at := range luaToken.FindAllStringIndex(src, -1) {
		token := src[at[0]:at[1]]
		if after, ok := luaSwaps[token]; ok {
			edits = append(edits, edit{at[0], at[1], after})
			continue
		}
		switch {
		case token == "not":
			edits = append(edits, edit{at[0], at[1], ""})
		case token == "if", token == "elseif":
			if then := strings.Index(src[at[1]:], " then"); then >= 0 && !strings.Contains(src[at[1]:at[1]+then], "\n") {
				edits = append(edits, edit{at[1], at[1] + then, " not (" + src[at[1]+1:at[1]+then] + ")"})
			}
		case token[0] >= '0' && token[0] <= '9':
			if n, err := strconv.ParseFloat(token, 64); err == nil {
				after := n + 1
				if n >= 1e9 {
					after = n * 1.5 // a bound of a range of scores
				}
				edits = append(edits, edit{at[0], at[1], strconv.FormatFloat(after, 'f', -1, 64)})
			}
		case strings.HasPrefix(token, "'("): // a bound of a range that leaves out its end
			edits = append(edits, edit{at[0], at[0] + 2, "'"})
		}
	}
	for _, at := range luaStatement.FindAllStringIndex(src, -1) {
		line := src[at[0]:at[1]]
		if strings.Contains(line, " then") || strings.HasPrefix(strings.TrimSpace(line), "return") {
			continue
		}
		from := at[0] + len(line) - len(strings.TrimLeft(line, " \t"))
		edits = append(edits, edit{from, at[1], ""})
	}
	return edits
}
