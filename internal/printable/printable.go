// Package printable shows texts that are anybody's, such as task IDs, labels and notes, in errors, logs and tables.
package printable

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Text shows what a terminal would obey, or not show at all, by escapes.
func Text(s string) string {
	fit := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !fit(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if _, size := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		} else if fit(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// longest is what is shown of a text within another one, in bytes.
const longest = 300

// Short is Text of no more than fits into a line of a log.
func Short(s string) string {
	if len(s) <= longest {
		return Text(s)
	}
	end := longest
	for end > longest-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s... (%d bytes)", Text(s[:end]), len(s))
}

// OneLine is Text of an error, however it was made: on one line, of a length that people read.
func OneLine(s string) string {
	const limit = 1000 // characters
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "..."
	}
	return Text(s)
}

// Count is a number with its noun: 1 queue, 2 queues.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Duration is a duration for people: no more than two units.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return Exact(d.Round(time.Millisecond))
	case d < time.Minute:
		return Exact(d.Round(100 * time.Millisecond))
	case d < time.Hour:
		return Exact(d.Round(time.Second))
	case d < 48*time.Hour:
		return Exact(d.Round(time.Minute))
	}
	days, hours := d/(24*time.Hour), d%(24*time.Hour)/time.Hour
	if hours == 0 {
		return fmt.Sprintf("%dd", days)
	}
	return fmt.Sprintf("%dd%dh", days, hours)
}

// Exact is a duration as people write it, and as time.ParseDuration reads it: 1h, 5m or
// 1m30s, where String has 1h0m0s, 5m0s and 1m30s.
func Exact(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Timed is a text that may end with a duration, as "retry in 1m0s" does, with that duration as Exact has it.
func Timed(text string) string {
	last := strings.LastIndexByte(text, ' ') + 1
	d, err := time.ParseDuration(text[last:])
	if err != nil {
		return text
	}
	return text[:last] + Exact(d)
}

// MeantUnit says what a duration was probably meant to be that is given as a bare number,
// which Go counts in nanoseconds. It is "" for other durations.
func MeantUnit(d time.Duration) string {
	if d <= 0 || d >= 100*time.Microsecond {
		return ""
	}
	return fmt.Sprintf("; did you mean %ds? Go counts a bare number in nanoseconds", int64(d))
}
