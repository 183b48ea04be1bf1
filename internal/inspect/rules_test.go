package inspect

import (
	"testing"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keytext"
)

func TestIsKeyOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule automutex.Rule
		key  string
		want bool
	}{
		{automutex.Rule{Task: "a", Scope: "s"}, keytext.Key("p", "s"), true},
		{automutex.Rule{Task: "a", Scope: "s"}, keytext.Key("p", "s", "1"), true},
		{automutex.Rule{Task: "a", Scope: "control"}, keytext.Key("p", "control"), true}, // escaped, unlike with values
		{automutex.Rule{Task: "a", Scope: "control"}, keytext.Key("p", "control", "1"), true},
		{automutex.Rule{Task: "a", Scope: "s"}, keytext.Key("p", "st"), false},
		{automutex.Rule{Task: "a", Scope: "s t"}, keytext.Key("p", "s t", "1"), true},
		{automutex.Rule{Task: "a:"}, keytext.Key("p", "a:b", "1"), true},
		{automutex.Rule{Task: "a:"}, keytext.Key("p", "b", "1"), false},
		{automutex.Rule{Task: "a:"}, keytext.Key("q", "a:b", "1"), false},
	} {
		if got := IsKeyOf(c.rule, "p", c.key); got != c.want {
			t.Errorf("%+v, %s: %v", c.rule, c.key, got)
		}
	}
}
