package inspect

import (
	"strings"
	"testing"
)

// A slash is a character like any other, a part is enough, and what is no pattern is a part.
func TestPattern(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "a", true}, {"b", "abc", true}, {"B", "abc", false}, {"a*c", "a/b/c", true}, {"a?c", "a/c", true}, {"*99", "default/task-99", true}, {"*99", "99x", false},
		{"*a*b*", "xxaxxbxx", true}, {"*a*b", "xxaxxbxx", false}, {"a[", "a[", true}, {"a[", "a", false}, {`a\`, `a\b`, true}, {"[^x]b", "/b", true}, {"**", "", true}, {"?*", "", false},
	} {
		if got := Compile(c.pattern).Matches(c.text); got != c.want {
			t.Errorf("%q, %q: %v, want %v", c.pattern, c.text, got, c.want)
		}
	}
}

// A pattern made to go back often does not take long.
func TestPattern_goesBackOnce(t *testing.T) {
	t.Parallel()
	if Compile(strings.Repeat("*a", 50) + "*b").Matches(strings.Repeat("a", 10_000)) {
		t.Error("it matches")
	}
}
