package inspect

import (
	"math/rand/v2"
	"path"
	"strings"
	"testing"
)

// A Pattern matches what path.Match does, but for slashes.
func TestPattern_likePath(t *testing.T) {
	t.Parallel()
	const runs = 200_000
	pieces := []string{"a", "b", "ab", "é", "*", "?", "[ab]", "[^a]", "[a-c]", `\*`, `[\]]`, "x"}
	texts := []string{"a", "b", "ab", "é", "x", "*", "]", "c"}
	source := rand.New(rand.NewPCG(1, 2))
	matched := 0
	for range runs {
		var pattern, text strings.Builder
		for range source.IntN(6) {
			pattern.WriteString(pieces[source.IntN(len(pieces))])
		}
		for range source.IntN(7) {
			text.WriteString(texts[source.IntN(len(texts))])
		}
		want, err := path.Match(pattern.String(), text.String())
		want = want && err == nil && strings.ContainsAny(pattern.String(), `*?[\`) || strings.Contains(text.String(), pattern.String())
		if got := Compile(pattern.String()).Matches(text.String()); got != want {
			t.Fatalf("%q, %q: %v, want %v", pattern.String(), text.String(), got, want)
		}
		if want {
			matched++
		}
	}
	if matched < runs/20 {
		t.Errorf("only %d of %d match", matched, runs)
	}
}

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
