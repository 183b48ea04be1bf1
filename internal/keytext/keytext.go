// Package keytext writes the Redis keys of locks: from values that are strings, and
// from values that come piece by piece and may be longer than anybody wants to have
// in memory. [Key] and [HashedKey] document the form of a key.
package keytext

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strings"
	"unicode/utf8"
)

// MaxText is how many bytes the values of a key may take together, escaped and
// without separators, before a hash replaces them. It also bounds the scope, and
// the number of values.
const MaxText = 200

// Key returns the Redis key of the lock that is named by a scope and any number of values:
//
//	<prefix>:{<scope>|<value>|<value>}
//
// Scope and parts may hold any bytes. Inside them `%`, `|`, `~`, `{`, `}`, spaces, control
// characters, invisible Unicode characters and bytes that are not valid UTF-8 are written
// as %XX, byte by byte; everything else, `:` included, stays readable. Different (scope,
// parts) never share a key: the number of parts counts, so no part and one empty part are
// different locks.
//
// Values that take more than 200 bytes together are replaced by `~` and the hexadecimal
// SHA-256 of the text they stand for (every escaped value with its `|` in front), and so is
// a scope of more than 200 bytes (the SHA-256 of the escaped scope). An empty scope is
// written as a bare `~`. No escaped text has a `~`, so none of these meets an ordinary key.
//
// The text between the braces is never empty, so that all keys of one lock, whatever
// follows the closing brace, are in one Redis Cluster slot. That holds for every prefix
// without braces; Key does not check the prefix.
func Key(prefix, scope string, parts ...string) string { return HashedKey("", prefix, scope, parts...) }

// HashedKey is [Key] for those who want no values in Redis. Whatever their length, `~` and
// the hexadecimal HMAC-SHA256, under the secret, of the text that values and scope stand
// for replaces the values. So one value has another hash in each scope, and who does not
// know the secret cannot find a value by hashing guesses. The scope stays readable, and a
// key without values is as Key makes it. With an empty secret HashedKey is Key.
//
// No text that Key would write, whatever its values, is one of these, nor one made under
// another secret: SHA-256 answers for that.
func HashedKey(secret, prefix, scope string, parts ...string) string {
	size := 0
	for _, part := range parts {
		size += escapedLen(part)
	}
	if len(parts) > 0 && (secret != "" || size > MaxText || len(parts) > MaxText) {
		w := NewWriter(secret, prefix, scope)
		for _, part := range parts {
			w.Part()
			w.WriteString(part)
		}
		return w.Key()
	}
	scope = scopeText(scope)
	if len(parts) == 0 {
		scope = withoutValues(scope)
	}
	var onStack [256]byte // enough for most keys, so that only the string is allocated
	key := append(append(append(onStack[:0], prefix...), ":{"...), scope...)
	for _, part := range parts {
		key = appendEscaped(append(key, '|'), part)
	}
	return string(append(key, '}'))
}

// Scope is the scope as it stands in a key that has values.
func Scope(scope string) string { return scopeText(scope) }

// RuleScope returns the scope of a rule as it stands in keys. A rule without one has a scope for each task type: then it
// returns what those begin with, and byType is true.
func RuleScope(scope, task string) (text string, byType bool) {
	if scope != "" {
		return scopeText(scope), false
	}
	return scopeText(task), true
}

// RuleHas reports whether a rule makes keys with a scope, as it stands in keys. Where a type has
// more than [MaxText] bytes, that is known only for the type that the rule names.
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

func scopeText(scope string) string {
	switch n := escapedLen(scope); {
	case n == 0:
		return "~"
	case n > MaxText:
		sum := sha256.Sum256([]byte(Escape(scope)))
		return "~" + hex.EncodeToString(sum[:])
	}
	return Escape(scope)
}

// Controls is what stands between the braces of the key that has the controls (see
// lock.Controls), and ControlScope what stands there for a lock without values whose
// scope is that very text. The c is never escaped otherwise, so no other scope gives it.
const (
	Controls     = "control"
	ControlScope = "%63ontrol"
)

// withoutValues is the text of a scope in a key that has no values.
func withoutValues(scope string) string {
	if scope == Controls {
		return ControlScope
	}
	return scope
}

// bufferSize is how much escaped text a Writer gathers before it hashes it.
const bufferSize = 1 << 10

// Writer makes a key from values that come piece by piece: Part, the pieces of the
// first value, Part, and so on, then Key. It keeps no more than a buffer of what it
// was given. The zero value is not usable. Not for concurrent use.
type Writer struct {
	prefix, scope string    // the scope as it stands in the key
	hidden        bool      // there is a secret: sum is under it, and has the scope
	text          []byte    // each value, escaped, after a '|'; what sum has is gone from it
	parts         int       // values begun
	size          int       // of all values, escaped, without separators
	sum           hash.Hash // nil: text has all there is
}

// NewWriter begins a key.
func NewWriter(secret, prefix, scope string) *Writer {
	w := &Writer{prefix: prefix, scope: scopeText(scope)}
	if secret != "" {
		w.hidden = true
		w.sum = hmac.New(sha256.New, []byte(secret))
		w.text = append(make([]byte, 0, 2*len(w.scope)), w.scope...)
	}
	return w
}

// Part begins the next value.
func (w *Writer) Part() {
	w.parts++
	w.text = append(w.text, '|')
}

// Write adds a piece to the value. A piece ends where a character ends. The error is
// always nil.
func (w *Writer) Write(piece []byte) (int, error) {
	write(w, piece)
	return len(piece), nil
}

// WriteString is Write for a string.
func (w *Writer) WriteString(piece string) { write(w, piece) }

func write[T string | []byte](w *Writer, piece T) {
	for len(piece) > 0 {
		n := wholeChars(piece, bufferSize)
		before := len(w.text)
		w.text = appendEscaped(w.text, piece[:n])
		w.size += len(w.text) - before
		piece = piece[n:]
		if w.sum == nil && w.size > MaxText {
			w.sum = sha256.New()
		}
		if w.sum != nil && len(w.text) >= bufferSize {
			w.flush()
		}
	}
}

// wholeChars is the length of a beginning of s that has about most bytes, and does
// not end within a character.
func wholeChars[T string | []byte](s T, most int) int {
	if len(s) <= most {
		return len(s)
	}
	// A byte that starts a character is never within another one. Where none of four
	// bytes starts one, the last of them is invalid, and so a character of its own.
	for n := most; n > most-utf8.UTFMax; n-- {
		if utf8.RuneStart(s[n]) {
			return n
		}
	}
	return most
}

func (w *Writer) flush() {
	w.sum.Write(w.text)
	w.text = w.text[:0]
}

// Key ends the last value and gives the key. The Writer is used up.
func (w *Writer) Key() string {
	if w.parts > MaxText && w.sum == nil {
		w.sum = sha256.New()
	}
	hashed := w.sum != nil && w.parts > 0 // without values there is nothing to hide
	if w.parts == 0 {
		w.scope = withoutValues(w.scope)
	}
	if w.hidden && !hashed {
		w.text = w.text[:0]
	}
	if hashed {
		w.flush()
		var sum [sha256.Size]byte
		w.text = append(w.text, "|~"...)
		w.text = hex.AppendEncode(w.text, w.sum.Sum(sum[:0]))
	}
	var key strings.Builder
	key.Grow(len(w.prefix) + len(":{") + len(w.scope) + len(w.text) + len("}"))
	key.WriteString(w.prefix)
	key.WriteString(":{")
	key.WriteString(w.scope)
	key.Write(w.text)
	key.WriteByte('}')
	return key.String()
}
