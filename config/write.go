package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/printable"
)

// plain is text that YAML reads as it is, also within brackets.
var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*$`)

// notPlain are words that some version of YAML reads as something else than text.
var notPlain = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)

// writeText writes s so that every reader of YAML has it as text.
func writeText(s string) (string, error) {
	switch {
	case s == "":
		return "", nil
	case !utf8.ValidString(s):
		return "", fmt.Errorf("%s is not UTF-8, and a file is", quote(s))
	case plain.MatchString(s) && !notPlain.MatchString(s):
		return s, nil
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	b.WriteByte('"')
	return b.String(), nil
}

func writeTexts(all []string) (string, error) {
	if len(all) == 0 {
		return "", nil
	}
	written := make([]string, len(all))
	for i, s := range all {
		text, err := writeText(s)
		if err != nil {
			return "", err
		}
		if text == "" {
			text = `""`
		}
		written[i] = text
	}
	return "[" + strings.Join(written, ", ") + "]", nil
}

func writeNumber(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func writeFlag(on bool) string {
	if !on {
		return ""
	}
	return "true"
}

// writeDuration writes 1h30m for 1h30m0s.
func writeDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return printable.Exact(d)
}

// timedChoice is what choice chooses from: String of a value with a duration ends with it.
type timedChoice interface {
	comparable
	String() string
}

// writeChoice writes the word of v, or its word with a duration.
func writeChoice[V timedChoice](v V, words map[string]V, timed string, with func(time.Duration) V) (string, error) {
	var zero V
	if v == zero {
		return "", nil
	}
	for word, named := range words {
		if v == named {
			return word, nil
		}
	}
	text := v.String()
	d, err := time.ParseDuration(text[strings.LastIndexByte(text, ' ')+1:])
	if err != nil || with(d) != v {
		if text == "after failure" {
			return "", errNotInRule("after_failure")
		}
		return "", fmt.Errorf("a file has no word for %q", text)
	}
	return fmt.Sprintf("{%s: %s}", timed, writeDuration(d)), nil
}

// writeMapping writes the keys of v that are not zero.
func writeMapping[V any](v *V, keys []key[V]) (string, error) {
	var parts []string
	for _, k := range keys {
		text, err := k.write(v)
		if err != nil {
			return "", fmt.Errorf("%s: %w", k.name, err)
		}
		if text != "" {
			parts = append(parts, k.name+": "+text)
		}
	}
	if len(parts) == 0 {
		return "", nil
	}
	return "{" + strings.Join(parts, ", ") + "}", nil
}

// errNotInRule says why a field of a rule cannot be in a file.
func errNotInRule(name string) error { return errors.New("it " + notInRule[name]) }
