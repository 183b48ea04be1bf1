package keys

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxNumberDigits = 400     // of a number written out in full
	maxValueDepth   = 100     // of an object or list that is part of a key
	maxWrittenOut   = 1 << 20 // bytes that numbers may add to an object or list
)

var (
	errNull      = errors.New("is null")
	errEmpty     = errors.New("is an empty string")
	errSurrogate = errors.New("has half a surrogate pair, which stands for no character")
	errTwice     = errors.New("has an object with the same name twice")
	errDeep      = errors.New("is nested more than 100 levels deep")
	errLarge     = errors.New("has numbers that take more than 1 MiB when written out")
	errDigits    = errors.New("is, or has in it, a number of more than 400 digits when written out")
)

// absent is the part of an optional path without a value. No string gives it: see [StringPart].
const absent = `""`

// part returns the part of a key for a value or nil; see automutex.Fields. A part that begins with a brace or bracket
// is an object or list; one that begins with a quote is a string that would otherwise begin so.
func part(value []byte, whole bool) (string, error) {
	switch {
	case whole && (!json.Valid(value) || !utf8.Valid(value)):
		return "0x" + hex.EncodeToString(value), nil // no JSON begins so
	case whole:
		value = bytes.Trim(value, spaces)
	}
	switch {
	case value == nil, value[0] == 'n':
		return "", errNull
	case string(value) == `""`:
		return "", errEmpty
	case value[0] == '"' && !whole: // the whole payload keeps its quotes: no two payloads share a key
		text, half := unquote(value)
		if half {
			return "", errSurrogate
		}
		return StringPart(string(text)), nil
	}
	w := jsonWriter{limit: 3*len(value) + maxWrittenOut} // \n takes six bytes
	err := w.value(value, 0)
	return string(w.text), err
}

// StringPart returns the part for a string, such as a header.
func StringPart(s string) string {
	if s != "" && strings.IndexByte(`{["`, s[0]) >= 0 {
		return string(appendQuoted(nil, []byte(s)))
	}
	return s
}

// jsonWriter writes JSON in the one way that there is for each value: compact, members sorted by name, numbers in full.
type jsonWriter struct {
	text  []byte
	limit int
}

func (w *jsonWriter) value(value []byte, depth int) (err error) {
	switch value[0] {
	case '{', '[':
		if depth == maxValueDepth {
			return errDeep
		}
		write := w.list
		if value[0] == '{' {
			write = w.members
		}
		w.text = append(w.text, value[0])
		err = write(value, depth+1)
		w.text = append(w.text, value[len(value)-1])
	case '"':
		text, half := unquote(value)
		if half {
			return errSurrogate
		}
		w.text = appendQuoted(w.text, text)
	case 't', 'f', 'n':
		w.text = append(w.text, value...)
	default:
		w.text, err = appendNumber(w.text, value)
	}
	if err == nil && len(w.text) > w.limit {
		err = errLarge
	}
	return err
}

func (w *jsonWriter) list(list []byte, depth int) error {
	before := ""
	for _, element := range items(list) {
		w.text = append(w.text, before...)
		if err := w.value(element, depth); err != nil {
			return err
		}
		before = ","
	}
	return nil
}

func (w *jsonWriter) members(object []byte, depth int) error {
	type member struct{ name, value []byte }
	var members []member
	for quoted, value := range items(object) {
		name, half := unquote(quoted)
		if half {
			return errSurrogate
		}
		members = append(members, member{name, value})
	}
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	for i, m := range members {
		if i > 0 {
			if bytes.Equal(m.name, members[i-1].name) {
				return errTwice
			}
			w.text = append(w.text, ',')
		}
		w.text = append(appendQuoted(w.text, m.name), ':')
		if err := w.value(m.value, depth); err != nil {
			return err
		}
	}
	return nil
}

// appendQuoted writes text as a JSON string. There is one way only to write each string, and it does not change with
// the version of Go.
func appendQuoted(dst, text []byte) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
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
	return append(dst, '"')
}

// appendNumber writes a number in full, exactly, in one way for all spellings of it: no exponent, no leading zeros, no
// trailing zeros after the point.
func appendNumber(dst, number []byte) ([]byte, error) {
	exponent := 0
	mantissa, negative := bytes.CutPrefix(number, []byte("-"))
	if i := bytes.IndexAny(mantissa, "eE"); i >= 0 {
		const enough = 1 << 30                             // digits that no mantissa in memory has
		exponent, _ = strconv.Atoi(string(mantissa[i+1:])) // the largest or least int where it has too many digits
		exponent = min(max(exponent, -enough), enough)
		mantissa = mantissa[:i]
	}

	// The value is 0.<digits> times ten to the power of point, and digits neither begin nor end with a zero.
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
		return nil, errDigits
	}
	if negative {
		dst = append(dst, '-')
	}
	if point <= 0 {
		digits, point = slices.Concat(zeroDigits[:1-point], digits), 1
	} else if point > len(digits) {
		digits = slices.Concat(digits, zeroDigits[:point-len(digits)])
	}
	dst = append(dst, digits[:point]...)
	if point < len(digits) {
		dst = append(append(dst, '.'), digits[point:]...)
	}
	return dst, nil
}

var zeroDigits = bytes.Repeat([]byte("0"), maxNumberDigits)
