package controls

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/wire"
)

// parseTarget returns a target in the form in which it is stored, which is that in keys: escaped,
// or hashed.
func (c *Reader) parseTarget(target string) (string, error) {
	text, whole := strings.CutPrefix(target, c.prefix+":{")
	if whole {
		text, whole = strings.CutSuffix(text, "}")
	}
	if !whole {
		text = target
	}
	refuse := func(reason string) (string, error) {
		return "", fmt.Errorf("lock: control for %s: %s; a target is a scope (\"report\"), or a key as Lock.Key and Guard.Keys return it and automutex key prints it (\"report|acme\")",
			printable.Short(fmt.Sprintf("%q", target)), reason)
	}
	scope, values, isKey := strings.Cut(text, "|")
	switch {
	case text == "":
		return refuse("it is empty")
	case len(text) > maxTarget:
		return refuse(fmt.Sprintf("it has %d bytes, more than any key", len(text)))
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7F || r == '{' || r == '}' }):
		return refuse("it has a brace, a control character or invalid UTF-8")
	case strings.TrimSpace(text) != text:
		return refuse("it begins or ends with a space")
	case isKey && scope == "":
		return refuse("there is no scope before the first |")
	case text == keys.ControlScope:
		return keys.Controls, nil
	}
	if isKey {
		if reason := wrongInKey(scope, strings.Split(values, "|")); reason != "" {
			return refuse(reason)
		}
		if parts := strings.Split(values, "|"); *c.secret != "" && !isHash(parts[0]) {
			return c.hashedTarget(wire.Unescape(scope), parts), nil
		}
		return text, nil
	}
	if isScope(text) {
		return text, nil
	}
	// It is not in the form of keys, so it is a scope as a program has it: escape it.
	text, _ = strings.CutPrefix(keys.Key(c.prefix, text), c.prefix+":{")
	_, scope, _ = TargetsOf(text)
	return scope, nil
}

// hashedTarget returns the target of the key with these values, which are escaped as in a
// readable key: under Options.HashKeys every key has a hash in their place.
func (c *Reader) hashedTarget(scope string, values []string) string {
	for i, value := range values {
		values[i] = wire.Unescape(value)
	}
	text, _ := strings.CutPrefix(keys.HashedKey(*c.secret, c.prefix, scope, values...), c.prefix+":{")
	key, _, _ := TargetsOf(text)
	return key
}

// wrongInKey returns why no lock's key can have this scope and these values, or "".
func wrongInKey(scope string, values []string) string {
	if !isScope(scope) {
		return "its scope is not escaped as in a key"
	}
	if len(values) == 1 && isHash(values[0]) {
		return ""
	}
	size := 0
	for _, value := range values {
		size += len(value)
		if !isEscaped(value) {
			return fmt.Sprintf("the value %s is not escaped as in a key", printable.Short(fmt.Sprintf("%q", value)))
		}
	}
	if most := keys.MaxText; size > most || len(values) > most {
		return fmt.Sprintf("its values have more than %d bytes, and a key has their hash instead", most)
	}
	return ""
}

// isScope reports whether text is a scope as it stands in a key.
func isScope(text string) bool {
	return text == "~" || isHash(text) || isEscaped(text) && len(text) <= keys.MaxText
}

// isHash reports whether text is ~ and a hexadecimal SHA-256. Keys have that in place of a text
// that is too long or secret.
func isHash(text string) bool {
	sum, ok := strings.CutPrefix(text, "~")
	raw, err := hex.DecodeString(sum)
	return ok && err == nil && len(raw) == 32 && strings.ToLower(sum) == sum
}

// isEscaped reports whether text is what keys.Escape returns for some text.
func isEscaped(text string) bool { return keys.Escape(wire.Unescape(text)) == text }

// wider returns the next wider target of a lock after one of its targets: its scope after its key,
// then each beginning of the scope that ends with ':', the longest first. It is empty after the last.
func wider(target string) string {
	if scope, _, isKey := strings.Cut(target, "|"); isKey {
		return scope
	}
	return target[:strings.LastIndexByte(strings.TrimSuffix(target, ":"), ':')+1]
}

// TargetsOf gives the key of a lock, which is its narrowest target, and its
// scope. text is its Redis key without prefix and first brace. not ok: it is no key of
// a mutex or semaphore (a pool's, a claim's), which no control is for.
func TargetsOf(text string) (key, scope string, ok bool) {
	key, ok = strings.CutSuffix(text, "}")
	if key == keys.ControlScope {
		key = keys.Controls
	}
	scope, _, _ = strings.Cut(key, "|")
	return key, scope, ok
}
