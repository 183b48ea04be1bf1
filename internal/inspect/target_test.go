package inspect

import (
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A key is named as Redis has it, by what stands between its braces, or as a person reads it.
func TestTypedKey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"p:{a|b}": "p:{a|b}", "other:{a}": "other:{a}", "a|b": "p:{a|b}", "a|b%20c": "p:{a|b%2520c}", "a|b c": "p:{a|b%20c}", "a b": "p:{a%20b}", "a|50%": "p:{a|50%25}",
	} {
		if got := TypedKey("p", text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

// An order reaches what a person has typed, and no other: text has one reading, whatever else there is.
func TestTarget(t *testing.T) {
	t.Parallel()
	rule := func(task string, on ...string) fleet.Rule { return fleet.Rule{Name: task, Task: task, On: on} }
	raw, spaced := rule("a%20b", "id"), rule("a b", "id")
	rdb := redistest.StartMini(t).Client(t)
	locker := lock.New(rdb, lock.Options{Prefix: "p"})
	t.Cleanup(func() { _ = locker.Close() })
	_, err := locker.Mutex("un ruled", lock.Parts("x y")).TryLock(t.Context())
	redistest.Must(t, err)
	for _, c := range []struct {
		rules []fleet.Rule
		typed string
		want  string // or a part of the error
	}{
		{nil, "report", "p:{report}"}, {nil, "report:", "p:{report:}"}, {nil, "report|b c", "p:{report|b%20c}"}, {nil, "report|b%20c", "p:{report|b%2520c}"},
		{nil, "a%20b", "p:{a%2520b}"}, {nil, "p:{a%20b}", "p:{a%20b}"}, {nil, "|x", ""}, {nil, strings.Repeat("|x", 500_000), ""},
		{[]fleet.Rule{spaced, raw}, "a%20b", "p:{a%2520b}"},
		{[]fleet.Rule{spaced}, "a%20b", "No rule has the scope of a%2520b"},
		{[]fleet.Rule{raw}, "a%20b|1", "p:{a%2520b|1}"},
		{[]fleet.Rule{spaced}, "a%20b|1", "No rule has the scope of a%2520b|1"},
		{[]fleet.Rule{rule("a|b", "id")}, "a|b", "p:{a%7Cb}"},
		{[]fleet.Rule{rule("a", "id")}, "a|b", "p:{a|b}"},
		{[]fleet.Rule{rule("a", "id"), rule("a|b", "id")}, "a|b", "p:{a%7Cb}"},
		{[]fleet.Rule{rule("a", "id")}, "a|b|7", "No task has the key a|b|7: it has 2 values, and the keys of rule a have 1; nor is there such a lock now"},
		{[]fleet.Rule{rule("a", "id")}, "a|~" + strings.Repeat("0", 64), "p:{a|~" + strings.Repeat("0", 64) + "}"},
		{[]fleet.Rule{rule("svc:/items:q=a%20b")}, "svc:/items:q=a%20b", "p:{svc:/items:q=a%2520b}"},
		{[]fleet.Rule{rule("a%20b:c")}, "a%20b:", "p:{a%2520b:}"},
		{[]fleet.Rule{raw}, "un ruled", "p:{un%20ruled}"}, {[]fleet.Rule{raw}, "un ruled|x y", "p:{un%20ruled|x%20y}"},
		{[]fleet.Rule{raw}, "un ruled|x%20y", "No rule has the scope of un%20ruled|x%2520y"},
		{[]fleet.Rule{raw}, "ruled", "No rule has the scope of ruled; nor is there such a lock now; --force does it all the same"},
		{[]fleet.Rule{rule("report:"), rule("mail")}, "mali|7", "did you mean mail|7?"},
		{[]fleet.Rule{rule("report:"), rule("mail")}, "repor:|7", "now; --force"}, // a prefix is the beginning of scopes, and no key has it
	} {
		target, err := Target(t.Context(), locker, rdb, c.rules, false, "p", c.typed, false)
		if err != nil && c.want != "" && strings.Contains(err.Error(), c.want) {
			continue
		}
		if err != nil || target != c.want {
			t.Errorf("%.50q is %q, %v; want %q", c.typed, target, err, c.want)
		}
	}
	if target, err := Target(t.Context(), locker, rdb, []fleet.Rule{raw}, false, "p", "ruled", true); err != nil || target != "p:{ruled}" {
		t.Errorf("with force: %q, %v", target, err)
	}
}
