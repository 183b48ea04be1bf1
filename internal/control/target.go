package control

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

// Target is Stored for the locks of this Reader.
func (r *Reader) Target(typed string) (text string, err error) {
	return Stored(r.o.Prefix, *r.o.Secret, r.o.HasScope, typed)
}

// Stored returns what a person types for a target as it is stored, which is as keys have it: escaped, or hashed if
// there is a secret. isScope may be nil.
//
//   - A whole Redis key, "<prefix>:{...}", is what stands between its braces.
//   - Text with a | is a scope and parts, as a program has them, each of them escaped here. A part that is a hash as
//     keys have it stands for itself. Text of which isScope says that it is a scope is that scope.
//   - All other text is a scope, escaped here, whatever characters it has.
//
// After an error text is what to look for among the stored targets.
func Stored(prefix, secret string, isScope func(text string) bool, typed string) (text string, err error) {
	keyStart := prefix + ":{"
	refuse := func(text, reason string) (string, error) {
		return text, fmt.Errorf(`lock: control for %s: %s; a target is a scope ("report"), a scope and the parts of a key `+
			`("report|acme"), or a whole key as Lock.Key and Guard.Keys return it and automutex key prints it`,
			printable.Short(strconv.Quote(typed)), reason)
	}
	if text, whole := strings.CutPrefix(typed, keyStart); whole {
		text, closed := strings.CutSuffix(text, "}")
		_, values, valued := strings.Cut(text, "|")
		switch {
		case !closed || !keys.IsKeyText(text):
			return refuse(typed, "it begins like a whole key, and no lock can have it")
		case valued && secret != "" && !keys.IsHash(values):
			return refuse(text, "the keys of this program have hashes (HashKeys); give the key as that program prints it, or "+
				"the scope and the parts")
		case text == keys.ControlScope:
			text = keys.Controls
		}
		return text, nil
	}
	scope, values, isKey := strings.Cut(typed, "|")
	if isKey && isScope != nil && isScope(typed) {
		scope, isKey = typed, false
	}
	switch {
	case typed == "":
		return refuse(typed, "it is empty")
	case len(typed) > maxTarget:
		return refuse(typed, fmt.Sprintf("it has %d bytes, more than any key", len(typed)))
	case !utf8.ValidString(typed) || strings.ContainsFunc(typed, unicode.IsControl):
		return refuse(typed, "it has a control character or invalid UTF-8")
	case strings.TrimSpace(typed) != typed:
		return refuse(typed, "it begins or ends with a space")
	case scope == "":
		return refuse(typed, "there is no scope before the first |")
	case !isKey:
		return keys.Scope(scope), nil
	case keys.IsHash(values):
		return keys.Scope(scope) + "|" + values, nil
	}
	key := keys.HashedKey(secret, prefix, scope, strings.Split(values, "|")...)
	return strings.TrimSuffix(strings.TrimPrefix(key, keyStart), "}"), nil
}

// Typed returns a stored target in a form that Target takes for it: as it is, or as a whole key.
func (r *Reader) Typed(stored string) string {
	if text, err := r.Target(stored); err == nil && text == stored {
		return stored
	}
	return r.keyStart + stored + "}"
}

// wider returns the next wider target of a lock after one of its targets: its scope after its key, then each beginning
// of the scope that ends with ':', the longest first. It is empty after the last.
func wider(target string) string {
	if scope, _, isKey := strings.Cut(target, "|"); isKey {
		return scope
	}
	return target[:strings.LastIndexByte(strings.TrimSuffix(target, ":"), ':')+1]
}

// inBraces returns what stands between the braces of the key of a mutex or semaphore with the Reader's prefix. No other
// key (a pool's, a claim's) is ok: no control is for it.
func (r *Reader) inBraces(key string) (text string, ok bool) {
	if r == nil || !strings.HasPrefix(key, r.keyStart) {
		return "", false
	}
	return InBraces(key)
}

// InBraces returns the narrowest target of the lock with that Redis key, as it is stored: what stands between the
// braces. not ok: it is no key of a mutex or semaphore.
func InBraces(key string) (target string, ok bool) {
	_, target, _ = strings.Cut(key, ":{")
	if target, ok = strings.CutSuffix(target, "}"); target == keys.ControlScope {
		target = keys.Controls
	}
	return target, ok
}

// Bare returns the target of an Order as it is stored: of a whole key, what stands between the braces.
func Bare(target string) string {
	if stored, whole := InBraces(target); whole {
		return stored
	}
	return target
}

// AppliesTo reports whether the target of an Order is one of the lock with that Redis key.
func AppliesTo(target, key string) bool {
	target = Bare(target)
	text, ok := InBraces(key)
	for ok && text != "" && text != target {
		text = wider(text)
	}
	return ok && text != ""
}
