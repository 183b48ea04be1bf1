package inspect

import (
	"path"
	"strings"
)

// Pattern is what an operator searches for: a part of a text, or a pattern of the whole text with *, ? or
// [a-z], as path.Match has it, except that a slash is a character like any other. The zero Pattern matches every text.
type Pattern struct {
	part    string
	pattern string // empty: there is none
}

// noSlash puts a character that no text has in the place of slashes, which path.Match takes for separators.
func noSlash(text string) string { return strings.ReplaceAll(text, "/", "\x00") }

// Compile reads a pattern. A text that is not a valid one matches as a part only.
func Compile(text string) Pattern {
	p := Pattern{part: text}
	if _, err := path.Match(text, ""); err == nil && strings.ContainsAny(text, `*?[\`) {
		p.pattern = noSlash(text)
	}
	return p
}

// Matches reports whether the text has the part in it, or fits the pattern.
func (p Pattern) Matches(text string) bool {
	if part := strings.Contains(text, p.part); part || p.pattern == "" {
		return part
	}
	fits, _ := path.Match(p.pattern, noSlash(text)) // Compile has checked the pattern
	return fits
}
