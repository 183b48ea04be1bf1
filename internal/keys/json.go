package keys

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// encoding/json says what is JSON. This file steps over text that json.Valid has passed, and checks no syntax again.
// (Decoder.Token would make 86 allocations for a payload of 180 bytes, twice those of all else that a task has.)

// CheckPayload returns why a payload cannot be read, or "". The reason quotes nothing of the payload.
func CheckPayload(payload []byte) (reason string) {
	switch {
	case len(bytes.Trim(payload, spaces)) == 0:
		return "the payload is empty"
	case !json.Valid(payload):
		return "the payload is not JSON" + whyNotJSON(payload)
	case !utf8.Valid(payload):
		return "the payload is not valid UTF-8"
	}
	return ""
}

const spaces = " \t\r\n" // of JSON

// whyNotJSON says where a payload stops being JSON, in a text that does not change with the version of Go.
func whyNotJSON(payload []byte) string {
	var v json.RawMessage
	err := json.NewDecoder(bytes.NewReader(payload)).Decode(&v)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return ": it ends too early"
	}
	wrong := &json.SyntaxError{}
	_ = errors.As(json.Unmarshal(payload, &v), &wrong) // no other error: v takes any value
	return fmt.Sprintf(" (byte %d)", wrong.Offset)
}

// items goes through an object or list. A name has its quotes; elements of a list have none.
func items(text []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for i := next(text, 1); text[i] != '}' && text[i] != ']'; i = next(text, i) {
			var name []byte
			from := i
			if i = end(text, i); text[0] == '{' {
				name = text[from:i]
				from = next(text, i)
				i = end(text, from)
			}
			if !yield(name, text[from:i]) {
				return
			}
		}
	}
}

// next goes past spaces, a comma and a colon.
func next(text []byte, i int) int {
	for text[i] <= ' ' || text[i] == ',' || text[i] == ':' {
		i++
	}
	return i
}

// end is where the value ends that begins at i.
func end(text []byte, i int) int {
	for depth := 0; ; {
		switch text[i] {
		case '"':
			i = stringEnd(text, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			for i < len(text) && text[i] > ' ' && text[i] != ',' && text[i] != '}' && text[i] != ']' {
				i++
			}
		}
		if depth == 0 {
			return i
		}
		i = next(text, i)
	}
}

func stringEnd(text []byte, i int) int {
	for {
		i += 1 + bytes.IndexByte(text[i+1:], '"')
		slashes := 0
		for text[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
}

// unquote gives the text of a string as encoding/json does: half of a surrogate pair is replaced. half: there was one.
func unquote(quoted []byte) (text []byte, half bool) { return unescape(quoted[1 : len(quoted)-1]) }

// HasLoneSurrogate looks through all strings of a JSON text.
func HasLoneSurrogate(text []byte) bool {
	_, half := unescape(text)
	return half
}

// unescape replaces what is escaped. A backslash is nowhere but in strings.
func unescape(raw []byte) (text []byte, half bool) {
	i := bytes.IndexByte(raw, '\\')
	if i < 0 {
		return raw, false
	}
	text = make([]byte, 0, len(raw))
	for ; i >= 0; i = bytes.IndexByte(raw, '\\') {
		text = append(text, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		if c != 'u' {
			if at := strings.IndexByte("bfnrt", c); at >= 0 {
				c = "\b\f\n\r\t"[at]
			}
			text = append(text, c)
			continue
		}
		r := hexRune(raw)
		raw = raw[4:]
		if utf16.IsSurrogate(r) {
			second := utf8.RuneError
			if bytes.HasPrefix(raw, []byte(`\u`)) {
				second = hexRune(raw[2:])
			}
			if r = utf16.DecodeRune(r, second); r == utf8.RuneError {
				half = true
			} else {
				raw = raw[6:]
			}
		}
		text = utf8.AppendRune(text, r)
	}
	return append(text, raw...), half
}

// hexRune reads four hexadecimal digits.
func hexRune(digits []byte) rune {
	var b [2]byte
	_, _ = hex.Decode(b[:], digits[:4])
	return rune(b[0])<<8 | rune(b[1])
}
