package jsonkey

import (
	"bytes"
	"errors"
	"io"
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

	// MaxWrittenOut is how much longer than its JSON a part of [Fields] may be, in
	// bytes.
	MaxWrittenOut = 1 << 20
)

var (
	errValueNull      = errors.New("is null")
	errValueEmpty     = errors.New("is an empty string")
	errValueSurrogate = errors.New("has half a surrogate pair, which stands for no character")
	errValueTwice     = errors.New("has an object with the same name twice")
	errValueDeep      = errors.New("is nested more than 100 levels deep")
	errValueLarge     = errors.New("has numbers that take more than 1 MiB when written out; Rule.On takes it, since it needs no text that is hashed")
	errValueLong      = errors.New("is, or has in it, a number of more than 400 digits when written out")
)

// WritePart writes the part of a key for one JSON value to w; see automutex.Fields.
// Different values give different parts, except that a number or boolean and the
// string with the same text give the same part. A part that begins with a brace or
// bracket is an object or list. A part that begins with a quote is a string that would
// otherwise begin with a brace, bracket or quote. All others are the text of a scalar.
//
// WritePart allocates a few times the size of value, although a part may be 80 times
// as long, since numbers are written out. Each Write ends at the end of a character.
// After an error, w has a beginning of the part.
func WritePart(w io.Writer, value []byte) error {
	switch value[0] {
	case '"':
		return writeStringPart(w, value[1:len(value)-1])
	case 'n':
		return errValueNull
	case '{', '[':
		return writeComposite(w, value)
	case 't', 'f':
	default:
		if !isPlainInteger(value) {
			number, err := appendNumber(nil, value)
			if err != nil {
				return err
			}
			value = number
		}
	}
	_, err := w.Write(value)
	return err
}

// IsAbsent reports whether err is the error of [WritePart] for a value that is null or empty.
func IsAbsent(err error) bool { return err == errValueNull || err == errValueEmpty } //nolint:errorlint // never wrapped

func writeStringPart(w io.Writer, raw []byte) error {
	text, err := unquote(nil, raw)
	switch {
	case err != nil:
		return err
	case len(text) == 0:
		return errValueEmpty
	case isMarked(text[0]):
		quoted := &compositeWriter{out: w}
		if err := quoted.quoted(text); err != nil {
			return err
		}
		return quoted.flush()
	}
	_, err = w.Write(text)
	return err
}

// isMarked: a string that begins so is written as a JSON string.
func isMarked(first byte) bool { return first == '{' || first == '[' || first == '"' }

// StringPart returns the part for a string that is not in JSON, such as a header: what
// WritePart writes for the same string.
func StringPart(s string) string {
	if s != "" && isMarked(s[0]) {
		return string(appendQuoted(nil, []byte(s)))
	}
	return s
}

// appendQuoted writes text as a JSON string. There is one way only to write each
// string, and it does not change with the version of Go.
func appendQuoted(dst, text []byte) []byte {
	return append(appendInQuotes(append(dst, '"'), text), '"')
}

// appendInQuotes is appendQuoted without the quotes.
func appendInQuotes(dst, text []byte) []byte {
	const digits = "0123456789abcdef"
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xF])
		default:
			dst = append(dst, c)
		}
	}
	return dst
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
	if len(fraction) > 0 {
		digits = slices.Concat(digits, fraction)
	}
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
		dst = append(dst, zeroDigits[:-point]...)
		return append(dst, digits...), nil
	case point >= len(digits):
		dst = append(dst, digits...)
		return append(dst, zeroDigits[:point-len(digits)]...), nil
	}
	dst = append(dst, digits[:point]...)
	dst = append(dst, '.')
	return append(dst, digits[point:]...), nil
}

var zeroDigits = strings.Repeat("0", maxNumberDigits)

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

// unquote gives the string that stands between two quotes: raw itself where nothing
// in it is escaped, else a text that is written over buf. encoding/json would
// replace half a surrogate pair; here it is an error.
func unquote(buf, raw []byte) ([]byte, error) {
	text, half := unquoteLossy(buf, raw)
	if half {
		return nil, errValueSurrogate
	}
	return text, nil
}

// unquoteLossy is unquote with half of a surrogate pair replaced, as encoding/json
// does it; half: there was one.
func unquoteLossy(buf, raw []byte) (text []byte, half bool) {
	i := bytes.IndexByte(raw, '\\')
	if i < 0 {
		return raw, false
	}
	s := slices.Grow(buf[:0], len(raw))
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
				pair := utf8.RuneError
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					pair = utf16.DecodeRune(r, hexRune(raw[2:]))
				}
				if pair == utf8.RuneError {
					half = true
				} else {
					raw = raw[6:]
				}
				r = pair
			}
			s = utf8.AppendRune(s, r)
		default: // a quote, a slash, a backslash
			s = append(s, c)
		}
		i = bytes.IndexByte(raw, '\\')
	}
	return append(s, raw...), half
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

// HasLoneSurrogate looks through all strings of a JSON text.
func HasLoneSurrogate(text []byte) bool {
	var buf []byte
	for c := (cursor{text: text}); ; {
		next := bytes.IndexByte(c.text[c.i:], '"')
		if next < 0 {
			return false
		}
		c.i += next
		raw := c.str()
		text, err := unquote(buf, raw)
		if err != nil {
			return true
		}
		if len(text) != len(raw) { // it had escapes, and so is in buf
			buf = text
		}
	}
}
