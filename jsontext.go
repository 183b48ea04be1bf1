package automutex

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// This file turns a JSON value into the part of a key. All of it reads text
// that json.Valid and utf8.Valid have passed, and checks no syntax again.

const (
	maxNumberDigits = 400 // of a number written out in full
	maxValueDepth   = 100 // of an object or list that is part of a key
)

var (
	errValueNull      = errors.New("is null")
	errValueEmpty     = errors.New("is an empty string")
	errValueSurrogate = errors.New("has half a surrogate pair, which stands for no character")
	errValueTwice     = errors.New("has an object with the same name twice")
	errValueDeep      = errors.New("is nested more than 100 levels deep")
	errValueLong      = errors.New("is, or has in it, a number of more than 400 digits when written out")
)

// valuePart gives the part of a key for one JSON value; see Fields. Different
// values give different parts, but for a number or boolean and the string that
// reads the same: what begins with a brace or bracket is a composite, what
// begins with a quote is a string that would begin like one of these three, and
// everything else is the text of a scalar.
func valuePart(value []byte) (string, error) {
	switch value[0] {
	case '"':
		s, err := unquote(value[1 : len(value)-1])
		if err == nil && s == "" {
			err = errValueEmpty
		}
		return stringPart(s), err
	case 'n':
		return "", errValueNull
	case 't', 'f':
		return string(value), nil
	case '{', '[':
		text, err := appendComposite(make([]byte, 0, len(value)), &jsonCursor{text: value}, 1)
		return string(text), err
	}
	if isPlainInteger(value) {
		return string(value), nil
	}
	text, err := appendNumber(nil, value)
	return string(text), err
}

func stringPart(s string) string {
	if s != "" && strings.IndexByte(`{["`, s[0]) >= 0 {
		return string(appendQuoted(nil, s))
	}
	return s
}

// appendQuoted writes s as a JSON string. There is one way only to write each
// string, and it does not change with the version of Go.
func appendQuoted(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xF])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// appendComposite writes the value at the cursor as compact JSON with sorted
// members. Each level of nesting may sort, and so copy, what is below it once:
// the bound on the depth keeps that from growing with the square of the size.
func appendComposite(dst []byte, c *jsonCursor, depth int) (_ []byte, err error) {
	if depth > maxValueDepth && (c.text[c.i] == '{' || c.text[c.i] == '[') {
		return nil, errValueDeep
	}
	switch c.text[c.i] {
	case '{':
		return appendObject(dst, c, depth)
	case '[':
		start := len(dst)
		for c.enter(); c.more(); {
			dst = append(dst, ',')
			if dst, err = appendComposite(dst, c, depth+1); err != nil {
				return nil, err
			}
		}
		return closeComposite(dst, start, '[', ']'), nil
	case '"':
		s, err := unquote(c.str())
		return appendQuoted(dst, s), err
	case 't', 'f', 'n':
		return append(dst, c.scalar()...), nil
	}
	return appendNumber(dst, c.scalar())
}

func appendObject(dst []byte, c *jsonCursor, depth int) (_ []byte, err error) {
	type member struct {
		name       string
		start, end int // of `,"name":value` in dst
	}
	var members []member
	byName := func(a, b member) int { return strings.Compare(a.name, b.name) }

	start := len(dst)
	for c.enter(); c.more(); {
		name, err := unquote(c.name())
		if err != nil {
			return nil, err
		}
		m := member{name: name, start: len(dst)}
		dst = append(appendQuoted(append(dst, ','), name), ':')
		if dst, err = appendComposite(dst, c, depth+1); err != nil {
			return nil, err
		}
		m.end = len(dst)
		members = append(members, m)
	}
	if !slices.IsSortedFunc(members, byName) {
		slices.SortFunc(members, byName)
		unsorted := slices.Clone(dst[start:])
		dst = dst[:start]
		for _, m := range members {
			dst = append(dst, unsorted[m.start-start:m.end-start]...)
		}
	}
	for i := 1; i < len(members); i++ {
		if members[i].name == members[i-1].name {
			return nil, errValueTwice
		}
	}
	return closeComposite(dst, start, '{', '}'), nil
}

// closeComposite puts brackets around the elements written since start, each
// of which has a comma in front.
func closeComposite(dst []byte, start int, left, right byte) []byte {
	if len(dst) == start {
		return append(dst, left, right)
	}
	dst[start] = left
	return append(dst, right)
}

func isPlainInteger(number []byte) bool {
	digits := bytes.TrimPrefix(number, []byte("-"))
	return len(digits) <= maxNumberDigits && !bytes.ContainsAny(digits, ".eE") && string(number) != "-0"
}

// appendNumber writes a number in full, exactly, in one way for all spellings
// of it: no exponent, no leading zeros, no trailing zeros after the point.
func appendNumber(dst, number []byte) ([]byte, error) {
	mantissa, exponent := number, 0
	if i := bytes.IndexAny(number, "eE"); i >= 0 {
		mantissa, exponent = number[:i], parseExponent(number[i+1:])
	}
	negative := mantissa[0] == '-'
	if negative {
		mantissa = mantissa[1:]
	}

	// The value is 0.<digits> times ten to the power of point, and digits
	// neither begin nor end with a zero.
	digits, fraction, _ := bytes.Cut(mantissa, []byte("."))
	point := len(digits) + exponent
	digits = append(slices.Clone(digits), fraction...)
	zeros := len(digits)
	digits = bytes.TrimLeft(digits, "0")
	point -= zeros - len(digits)
	digits = bytes.TrimRight(digits, "0")

	if len(digits) == 0 {
		return append(dst, '0'), nil
	}
	if max(point, 1)+max(len(digits)-point, 0) > maxNumberDigits {
		return nil, errValueLong
	}
	if negative {
		dst = append(dst, '-')
	}
	switch {
	case point <= 0:
		dst = append(dst, "0."...)
		dst = append(dst, bytes.Repeat([]byte("0"), -point)...)
		return append(dst, digits...), nil
	case point >= len(digits):
		dst = append(dst, digits...)
		return append(dst, bytes.Repeat([]byte("0"), point-len(digits))...), nil
	}
	dst = append(dst, digits[:point]...)
	dst = append(dst, '.')
	return append(dst, digits[point:]...), nil
}

// parseExponent reads an exponent. One too large for any number that fits a
// key is cut to a value that no mantissa in memory makes up for.
func parseExponent(text []byte) int {
	const enough = math.MaxInt / 20
	sign := 1
	exponent := 0
	for _, c := range text {
		switch {
		case c == '-':
			sign = -1
		case c != '+' && exponent < enough:
			exponent = exponent*10 + int(c-'0')
		}
	}
	return sign * exponent
}

// unquote gives the string that stands between two quotes. encoding/json would
// replace half a surrogate pair; here it is an error.
func unquote(raw []byte) (string, error) {
	i := bytes.IndexByte(raw, '\\')
	if i < 0 {
		return string(raw), nil
	}
	s := make([]byte, 0, len(raw))
	for i >= 0 {
		s = append(s, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case 'b':
			s = append(s, '\b')
		case 'f':
			s = append(s, '\f')
		case 'n':
			s = append(s, '\n')
		case 'r':
			s = append(s, '\r')
		case 't':
			s = append(s, '\t')
		case 'u':
			r := hexRune(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
					return "", errValueSurrogate
				}
				r = utf16.DecodeRune(r, hexRune(raw[2:]))
				if r == utf8.RuneError {
					return "", errValueSurrogate
				}
				raw = raw[6:]
			}
			s = utf8.AppendRune(s, r)
		default: // a quote, a slash, a backslash
			s = append(s, c)
		}
		i = bytes.IndexByte(raw, '\\')
	}
	return string(append(s, raw...)), nil
}

func hexRune(digits []byte) (r rune) {
	for _, c := range digits[:4] {
		switch {
		case c <= '9':
			c -= '0'
		case c <= 'F':
			c -= 'A' - 10
		default:
			c -= 'a' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}

// hasLoneSurrogate looks through all strings of a JSON text.
func hasLoneSurrogate(text []byte) bool {
	for c := (jsonCursor{text: text}); ; {
		next := bytes.IndexByte(c.text[c.i:], '"')
		if next < 0 {
			return false
		}
		c.i += next
		if _, err := unquote(c.str()); err != nil {
			return true
		}
	}
}

// jsonCursor goes through JSON text from value to value: a value, and a name,
// is read with the cursor on its first byte, and leaves it behind the last.
type jsonCursor struct {
	text []byte
	i    int
}

func (c *jsonCursor) space() {
	for c.i < len(c.text) && c.text[c.i] <= ' ' {
		c.i++
	}
}

// enter goes into the object or list at the cursor.
func (c *jsonCursor) enter() {
	c.i++
	c.space()
}

// more goes to the next member or element, or past the end of the object or
// list when there is none.
func (c *jsonCursor) more() bool {
	c.space()
	switch c.text[c.i] {
	case '}', ']':
		c.i++
		return false
	case ',':
		c.i++
		c.space()
	}
	return true
}

// name reads the name of a member, without its quotes, and goes to its value.
func (c *jsonCursor) name() []byte {
	name := c.str()
	c.space()
	c.i++ // the colon
	c.space()
	return name
}

// str reads a string, without its quotes.
func (c *jsonCursor) str() []byte {
	start := c.i + 1
	for c.i = start; ; c.i++ {
		c.i += bytes.IndexByte(c.text[c.i:], '"')
		slashes := 0
		for c.text[c.i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			c.i++
			return c.text[start : c.i-1]
		}
	}
}

// scalar reads a number, true, false or null.
func (c *jsonCursor) scalar() []byte {
	start := c.i
	for c.i < len(c.text) && c.text[c.i] > ' ' && c.text[c.i] != ',' && c.text[c.i] != '}' && c.text[c.i] != ']' {
		c.i++
	}
	return c.text[start:c.i]
}

// skip goes past one value.
func (c *jsonCursor) skip() {
	switch c.text[c.i] {
	case '"':
		c.str()
	case '{', '[':
		c.skipComposite()
	default:
		c.scalar()
	}
}

func (c *jsonCursor) skipComposite() {
	for depth := 0; ; {
		switch c.text[c.i] {
		case '"':
			c.str()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		c.i++
		if depth == 0 {
			return
		}
	}
}
