package lock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A scope, and the values of a key together, may take this many bytes (as they
// stand in the key, escapes included, separators not) before a hash stands in
// for them; so may a key have this many values.
const maxKeyText = 200

// Key gives the Redis key of the lock that is named by a scope and any number
// of values:
//
//	<prefix>:{<scope>|<value>|<value>}
//
// Scope and parts may hold any bytes. Inside them `%`, `|`, `~`, `{`, `}`,
// spaces, control characters, invisible Unicode characters and bytes that are
// not valid UTF-8 are written as %XX, byte by byte; everything else, `:`
// included, stays readable. Different (scope, parts) never share a key: the
// number of parts counts, so no part and one empty part are different locks.
//
// Values that take more than 200 bytes together are replaced by `~` and the
// hexadecimal SHA-256 of the text they stand for (every escaped value with its
// `|` in front), and so is a scope of more than 200 bytes (the SHA-256 of the
// escaped scope). An empty scope is written as a bare `~`. No escaped text
// has a `~`, so none of these meets an ordinary key.
//
// What is between the braces is never empty, so that all keys of one lock,
// whatever follows the closing brace, are in one Redis Cluster slot. That holds
// for every prefix without braces; Key does not check the prefix.
func Key(prefix, scope string, parts ...string) string {
	return makeKey("", prefix, scope, parts)
}

// HashedKey is [Key] for those who want no values in Redis: whatever their
// length, the values are replaced by `~` and the hexadecimal HMAC-SHA256, under
// the secret, of the text that they and the scope stand for. So one value has
// another hash in each scope, and who does not know the secret cannot find a
// value by hashing guesses. The scope stays readable, and a key without values
// is as Key makes it. With an empty secret it is Key.
//
// No text that Key would write, whatever its values, is one of these, nor one
// made under another secret: SHA-256 answers for that.
func HashedKey(secret, prefix, scope string, parts ...string) string {
	return makeKey(secret, prefix, scope, parts)
}

// minSecret is the length of the shortest secret that is accepted, in bytes.
const minSecret = 16

// maxSecret is the length of the longest one: it is hashed for each key.
const maxSecret = 1024

// CheckSecret tells whether a secret can hash keys: an empty one means that
// there is none, any other is long enough that nobody guesses it, and has
// nothing in it that one process may have and the other not.
func CheckSecret(secret string) error {
	const like = "such as openssl rand -hex 32 gives"
	n := len(secret)
	switch {
	case n == 0:
		return nil
	case n < minSecret:
		return fmt.Errorf("lock: the secret for hashed keys has %d bytes: at least %d random ones, %s, "+
			"or what it hides can be guessed", n, minSecret, like)
	case n > maxSecret:
		return fmt.Errorf("lock: the secret for hashed keys has %d bytes: at most %d, %s", n, maxSecret, like)
	case strings.ContainsFunc(secret, unicode.IsControl), strings.TrimSpace(secret) != secret:
		return errors.New("lock: the secret for hashed keys has a control character, or space around it, such as the end of " +
			"the line in its file: trim it, or processes that have it and such that have not would make different keys")
	case strings.HasPrefix(secret, "${"):
		return errors.New("lock: the secret for hashed keys begins with ${, as a variable that nobody has expanded: " +
			"take it from the environment in the program")
	case strings.Count(secret, secret[:1]) == n:
		return errors.New("lock: the secret for hashed keys is one character again and again: take a random one, " + like)
	}
	return nil
}

func makeKey(secret, prefix, scope string, parts []string) string {
	scopeLen := escapedLen(scope)
	switch {
	case scopeLen == 0:
		scope, scopeLen = "~", 1
	case scopeLen > maxKeyText:
		scope = "~" + hashText(escape(scope))
		scopeLen = len(scope)
	case scopeLen > len(scope):
		scope = escape(scope)
	}

	partsLen := 0
	for _, part := range parts {
		partsLen += escapedLen(part)
	}
	hashed := ""
	switch {
	case secret != "" && len(parts) > 0:
		hashed = hideParts(secret, scope, parts)
	case partsLen > maxKeyText || len(parts) > maxKeyText:
		hashed = hashParts(parts, partsLen)
	}

	var key strings.Builder
	if hashed != "" {
		key.Grow(len(prefix) + scopeLen + len(hashed) + len(":{|~}"))
	} else {
		key.Grow(len(prefix) + scopeLen + partsLen + len(parts) + len(":{}"))
	}
	key.WriteString(prefix)
	key.WriteString(":{")
	key.WriteString(scope)
	if hashed != "" {
		key.WriteString("|~")
		key.WriteString(hashed)
	} else {
		writeParts(&key, parts)
	}
	key.WriteByte('}')
	return key.String()
}

// writeParts writes each part, escaped, with a separator in front. No escaped
// part has a separator, so the text can be taken apart in one way only.
func writeParts(b *strings.Builder, parts []string) {
	for _, part := range parts {
		b.WriteByte('|')
		writeEscaped(b, part)
	}
}

func hashParts(parts []string, size int) string {
	var text strings.Builder
	text.Grow(size + len(parts))
	writeParts(&text, parts)
	return hashText(text.String())
}

// hideParts hashes values under a secret. The scope is as it stands in the key.
func hideParts(secret, scope string, parts []string) string {
	var text strings.Builder
	text.WriteString(scope)
	writeParts(&text, parts)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text.String()))
	return hex.EncodeToString(mac.Sum(nil))
}

func hashText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// escape writes s as it may stand inside a key. It is injective, and gives s
// itself, without allocating, where nothing needs escaping.
func escape(s string) string {
	n := escapedLen(s)
	if n == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(n)
	writeEscaped(&b, s)
	return b.String()
}

func escapedLen(s string) int {
	n := len(s)
	for i := 0; i < len(s); {
		size, plain := nextChar(s, i)
		if !plain {
			n += 2 * size
		}
		i += size
	}
	return n
}

func writeEscaped(b *strings.Builder, s string) {
	const digits = "0123456789ABCDEF"
	written := 0
	for i := 0; i < len(s); {
		size, plain := nextChar(s, i)
		if plain {
			i += size
			continue
		}
		b.WriteString(s[written:i])
		for end := i + size; i < end; i++ {
			b.WriteByte('%')
			b.WriteByte(digits[s[i]>>4])
			b.WriteByte(digits[s[i]&0xF])
		}
		written = i
	}
	b.WriteString(s[written:])
}

// nextChar gives the size in bytes of the character of s at i, and whether it
// stands in a key as it is. A byte that starts no valid UTF-8 is a character
// of its own.
func nextChar(s string, i int) (size int, plain bool) {
	if c := s[i]; c < utf8.RuneSelf {
		return 1, plainASCII[c]
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError && size == 1 {
		return 1, false
	}
	return size, !invisible(r)
}

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
