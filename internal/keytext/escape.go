package keytext

import (
	"strings"
	"unicode/utf8"
)

// Escape writes s as it may stand inside a key. It is injective, and gives s
// itself, without allocating, where nothing needs escaping.
func Escape(s string) string {
	n := escapedLen(s)
	if n == len(s) {
		return s
	}
	var onStack [256]byte // enough for most texts
	return string(appendEscaped(onStack[:0], s))
}

func escapedLen(s string) int {
	n := len(s)
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf && plainASCII[c] { // most of them
			i++
			continue
		}
		size, plain := NextChar(s, i)
		if !plain {
			n += 2 * size
		}
		i += size
	}
	return n
}

const hexDigits = "0123456789ABCDEF"

func appendEscaped[T string | []byte](dst []byte, s T) []byte {
	written := 0
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf && plainASCII[c] { // most of them
			i++
			continue
		}
		size, plain := NextChar(s, i)
		if plain {
			i += size
			continue
		}
		dst = append(dst, s[written:i]...)
		for end := i + size; i < end; i++ {
			dst = append(dst, '%', hexDigits[s[i]>>4], hexDigits[s[i]&0xF])
		}
		written = i
	}
	return append(dst, s[written:]...)
}

// NextChar gives the size in bytes of the character of s at i, and whether it
// stands in a key as it is. A byte that starts no valid UTF-8 is a character
// of its own.
func NextChar[T string | []byte](s T, i int) (size int, plain bool) {
	if c := s[i]; c < utf8.RuneSelf {
		return 1, plainASCII[c]
	}
	r, size := decodeRune(s[i:min(len(s), i+utf8.UTFMax)])
	if r == utf8.RuneError && size == 1 {
		return 1, false
	}
	return size, !invisible(r)
}

// decodeRune takes at most the bytes of one character; the conversion of so few
// allocates nothing.
func decodeRune[T string | []byte](s T) (rune, int) { return utf8.DecodeRuneInString(string(s)) }

var plainASCII = func() (plain [utf8.RuneSelf]bool) {
	for c := '!'; c <= '}'; c++ {
		plain[c] = !strings.ContainsRune("%|{}", c)
	}
	return plain
}()

// invisible is true for the characters beyond ASCII that are not seen or that
// rearrange what is: controls, spaces, line separators, joiners, direction and
// tag characters. A list of our own: the tables of package unicode grow with
// Go, and two programs built with different versions must agree on every key.
func invisible(r rune) bool {
	switch {
	case r >= 0x80 && r <= 0xA0,
		r == 0xAD,
		r == 0x061C,
		r == 0x1680,
		r == 0x180E,
		r >= 0x2000 && r <= 0x200F,
		r >= 0x2028 && r <= 0x202F,
		r >= 0x205F && r <= 0x206F,
		r == 0x3000,
		r == 0xFEFF,
		r >= 0xFFF9 && r <= 0xFFFB,
		r >= 0xE0000 && r <= 0xE0FFF:
		return true
	}
	return false
}
