package inspect

import (
	"path"
	"strings"
	"unicode/utf8"
)

// Pattern is what an operator searches for: a part of a text, or a pattern of the whole text with *, ? or
// [a-z], as path.Match has it, except that a slash is a character like any other. The zero Pattern matches every text.
type Pattern struct {
	part  string
	parts []patternPart // nil: no pattern
}

// patternPart is a star, a literal, or one character of a set.
type patternPart struct {
	star    bool
	literal string // empty: one character
	set     string // as in the pattern, with its brackets; empty: any character
}

// Compile reads a pattern. A text that is not a valid one matches as a part only.
func Compile(text string) Pattern {
	p := Pattern{part: text}
	if !strings.ContainsAny(text, `*?[\`) {
		return p
	}
	if _, err := path.Match(text, ""); err != nil {
		return p
	}
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			p.parts = append(p.parts, patternPart{literal: literal.String()})
			literal.Reset()
		}
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '*':
			flush()
			if n := len(p.parts); n == 0 || !p.parts[n-1].star {
				p.parts = append(p.parts, patternPart{star: true})
			}
		case '?':
			flush()
			p.parts = append(p.parts, patternPart{})
		case '[':
			flush()
			end := i + 1
			for ; text[end] != ']' || end == i+1; end++ { // path.Match has found the end
				if text[end] == '\\' {
					end++
				}
			}
			p.parts = append(p.parts, patternPart{set: text[i : end+1]})
			i = end
		case '\\':
			i++
			literal.WriteByte(text[i])
		default:
			literal.WriteByte(text[i])
		}
	}
	flush()
	return p
}

// Matches reports whether the text has the part in it, or fits the pattern.
func (p Pattern) Matches(text string) bool {
	return strings.Contains(text, p.part) || p.parts != nil && p.fits(text)
}

// fits goes back to the last star alone: what an earlier one took does not matter then.
func (p Pattern) fits(text string) bool {
	at, i, star, from := 0, 0, -1, 0 // text[from:] is what the parts after star are held against
	for {
		switch {
		case i == len(p.parts) && at == len(text):
			return true
		case i < len(p.parts) && p.parts[i].star:
			star, from = i, at
			if i++; i == len(p.parts) {
				return true
			}
			if from = next(p.parts[i].literal, text, from); from < 0 {
				return false
			}
			at = from
			continue
		case i < len(p.parts):
			if size, ok := p.parts[i].takes(text[at:]); ok {
				at, i = at+size, i+1
				continue
			}
		}
		if star < 0 || from >= len(text) {
			return false
		}
		_, size := utf8.DecodeRuneInString(text[from:])
		if from = next(p.parts[star+1].literal, text, from+size); from < 0 {
			return false
		}
		at, i = from, star+1
	}
}

// next is where literal comes next in the text; -1: nowhere.
func next(literal, text string, from int) int {
	n := strings.Index(text[from:], literal)
	if n < 0 {
		return -1
	}
	return from + n
}

// takes returns how many bytes of the text's beginning the part takes.
func (p patternPart) takes(text string) (size int, ok bool) {
	if p.literal != "" {
		return len(p.literal), strings.HasPrefix(text, p.literal)
	}
	if text == "" {
		return 0, false
	}
	r, size := utf8.DecodeRuneInString(text)
	if p.set == "" {
		return size, true
	}
	if r == '/' { // path.Match lets no set have it
		return size, strings.ContainsRune(p.set, '/') != (p.set[1] == '^')
	}
	ok, _ = path.Match(p.set, text[:size]) // Compile has checked it
	return size, ok
}
