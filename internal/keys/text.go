package keys

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// A hash replaces what is more: see HashedKey and IsKeyText.
const (
	MaxScope = 200 // bytes, escaped
	maxBytes = 200 // of a key's parts together, escaped and without separators
	maxParts = 200
)

// Key returns the Redis key of the lock that is named by a scope and any number of parts:
//
//	<prefix>:{<scope>|<part>|<part>}
//
// Scope and parts may hold any bytes. Inside them `%`, `|`, `~`, `{`, `}`, spaces, control characters, invisible
// Unicode characters and bytes that are not valid UTF-8 are written as %XX, byte by byte. Different (scope, parts)
// never share a key: no part and one empty part are different locks.
//
// Parts that take more than 200 bytes together are replaced by `~` and the hexadecimal SHA-256 of the text they stand
// for (every escaped part with its `|` in front), and so is a scope of more than 200 bytes. An empty scope is a bare
// `~`. No escaped text has a `~`, so none of these meets an ordinary key. The text between the braces is never empty,
// so all keys of one lock are in one Cluster slot, if the prefix has no braces, which Key does not check.
func Key(prefix, scope string, parts ...string) string { return HashedKey("", prefix, scope, parts...) }

// HashedKey is [Key] for those who want no values in Redis. `~` and the hexadecimal HMAC-SHA256, under the secret, of
// the text that scope and parts stand for replaces the parts: who does not know the secret cannot find a value by
// hashing guesses. The scope stays readable. With an empty secret HashedKey is Key.
func HashedKey(secret, prefix, scope string, parts ...string) string {
	var onStack [256]byte // enough for most keys, so that only the string is allocated
	text := onStack[:0]
	for _, part := range parts {
		text = appendEscaped(append(text, '|'), part)
	}
	scope = Scope(scope)
	if len(parts) == 0 && scope == Controls {
		scope = ControlScope
	}
	if size := len(text) - len(parts); len(parts) > 0 && (secret != "" || size > maxBytes || len(parts) > maxParts) {
		return prefix + ":{" + scope + "|~" + hash(secret, scope, string(text)) + "}"
	}
	return prefix + ":{" + scope + string(text) + "}"
}

// hash is the SHA-256 of text, and under a secret the HMAC-SHA256 of scope and text.
func hash(secret, scope, text string) string {
	if secret == "" {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(scope + text))
	return hex.EncodeToString(mac.Sum(nil))
}

// Scope is the scope as it stands in a key that has values.
func Scope(scope string) string {
	switch text := Escape(scope); {
	case text == "":
		return "~"
	case len(text) > MaxScope:
		return "~" + hash("", "", text)
	default:
		return text
	}
}

// Controls is what stands between the braces of the key that has the controls (see lock.Controls), and ControlScope
// what stands there for a lock without values whose scope is that very text. The c is never escaped otherwise, so no
// other scope gives it.
const (
	Controls     = "control"
	ControlScope = "%63ontrol"
)

// RuleScope returns the scope of a rule as it stands in keys. A rule without one has a scope for each task type: then
// it returns what those begin with, and byType is true.
func RuleScope(scope, task string) (text string, byType bool) {
	return Scope(cmp.Or(scope, task)), scope == ""
}

// RuleHas reports whether a rule makes keys with a scope, as it stands in keys. Where a type has more than [MaxScope]
// bytes, that is known only for the type that the rule names.
func RuleHas(scope, task, text string) bool {
	its, byType := RuleScope(scope, task)
	return its == text || byType && strings.HasPrefix(text, its)
}

// ControlsRule reports whether a control for a scope, as it stands in keys, may be for keys of a rule: the rule makes
// keys with that scope, or the control is for all scopes with a beginning that some of the rule's have.
func ControlsRule(scope, task, text string) bool {
	its, _ := RuleScope(scope, task)
	return RuleHas(scope, task, text) || strings.HasSuffix(text, ":") && strings.HasPrefix(its, text)
}

// Escape writes s as it may stand inside a key. It is injective, and gives s itself, without allocating, where nothing
// needs escaping.
func Escape(s string) string {
	var onStack [256]byte // enough for most texts
	if text := appendEscaped(onStack[:0], s); len(text) != len(s) {
		return string(text)
	}
	return s
}

// Unescape is the inverse of [Escape]. It returns other text as it is.
func Unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

// IsKeyText reports whether a lock's key can have that text between its braces.
func IsKeyText(text string) bool {
	scope, values, valued := strings.Cut(text, "|")
	switch {
	case text == ControlScope:
		return true
	case scope == "" || scope != "~" && !IsHash(scope) && (!isEscaped(scope) || len(scope) > MaxScope):
		return false
	case !valued || IsHash(values):
		return true
	}
	parts := strings.Split(values, "|")
	return len(parts) <= maxParts && len(values)-len(parts)+1 <= maxBytes &&
		!slices.ContainsFunc(parts, func(part string) bool { return !isEscaped(part) })
}

// IsHash reports whether text is ~ and a hexadecimal SHA-256. Keys have that in place of a text that is too long or
// secret.
func IsHash(text string) bool {
	sum, ok := strings.CutPrefix(text, "~")
	raw, err := hex.DecodeString(sum)
	return ok && err == nil && len(raw) == sha256.Size && strings.ToLower(sum) == sum
}

// isEscaped reports whether text is what Escape returns for some text.
func isEscaped(text string) bool {
	plain, err := url.PathUnescape(text)
	return err == nil && Escape(plain) == text
}

func appendEscaped(dst []byte, s string) []byte {
	written := 0
	for i := 0; i < len(s); {
		size, plain := NextChar(s, i)
		if !plain {
			dst = append(dst, s[written:i]...)
			written = i + size
			for _, c := range []byte(s[i:written]) {
				dst = append(dst, '%', hexDigits[c>>4], hexDigits[c&0xF])
			}
		}
		i += size
	}
	return append(dst, s[written:]...)
}

const hexDigits = "0123456789ABCDEF"

// NextChar gives the size in bytes of the character of s at i, and whether it stands in a key as it is. A byte that
// starts no valid UTF-8 is a character of its own.
func NextChar(s string, i int) (size int, plain bool) {
	if c := s[i]; c < utf8.RuneSelf {
		return 1, plainASCII[c]
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return size, (r != utf8.RuneError || size > 1) && !isInvisible(r)
}

var plainASCII = func() (plain [utf8.RuneSelf]bool) {
	for c := '!'; c <= '}'; c++ {
		plain[c] = !strings.ContainsRune("%|{}", c)
	}
	return plain
}()

// isInvisible is true for the characters beyond ASCII that are not seen or that rearrange what is. A list of our own:
// the tables of package unicode grow with Go, and two programs built with different versions must agree on every key.
func isInvisible(r rune) bool {
	return r <= 0xA0 || r == 0xAD || r == 0x061C || r == 0x1680 || r == 0x180E ||
		r >= 0x2000 && r <= 0x200F || r >= 0x2028 && r <= 0x202F || r >= 0x205F && r <= 0x206F || r == 0x3000 ||
		r == 0xFEFF || r >= 0xFFF9 && r <= 0xFFFB || r >= 0xE0000 && r <= 0xE0FFF
}
