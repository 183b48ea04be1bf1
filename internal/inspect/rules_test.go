package inspect

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/keys"
)

func TestIsKeyOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule automutex.Rule
		key  string
		want bool
	}{
		{automutex.Rule{Task: "a", Scope: "s"}, keys.Key("p", "s"), true},
		{automutex.Rule{Task: "a", Scope: "s"}, keys.Key("p", "s", "1"), true},
		{automutex.Rule{Task: "a", Scope: "control"}, keys.Key("p", "control"), true}, // escaped, unlike with values
		{automutex.Rule{Task: "a", Scope: "control"}, keys.Key("p", "control", "1"), true},
		{automutex.Rule{Task: "a", Scope: "s"}, keys.Key("p", "st"), false},
		{automutex.Rule{Task: "a", Scope: "s t"}, keys.Key("p", "s t", "1"), true},
		{automutex.Rule{Task: "a:"}, keys.Key("p", "a:b", "1"), true},
		{automutex.Rule{Task: "a:"}, keys.Key("p", "b", "1"), false},
		{automutex.Rule{Task: "a:"}, keys.Key("q", "a:b", "1"), false},
	} {
		if got := IsKeyOf(c.rule, "p", c.key); got != c.want {
			t.Errorf("%+v, %s: %v", c.rule, c.key, got)
		}
	}
}

// Rules that workers say they run become rules again, but for a key that a function of the program makes: that gives no lock.
func TestFromFleet(t *testing.T) {
	t.Parallel()
	rules := []automutex.Rule{
		{Name: "a", Task: "a", On: []string{"id"}, Busy: automutex.Skip}, {Name: "b", Task: "b", Busy: automutex.RetryIn(90 * time.Second)},
		{Name: "c", Task: "c", Key: func(context.Context, *asynq.Task) ([]string, error) { return []string{"x"}, nil }},
	}
	got := FromFleet(Describe(rules))
	if len(got) != 3 || got[0].Busy != automutex.Skip || got[0].On[0] != "id" || got[1].Busy != automutex.RetryIn(90*time.Second) || got[2].Key == nil {
		t.Fatalf("%+v", got)
	}
	if _, err := got[2].Key(t.Context(), asynq.NewTask("c", nil)); !errors.Is(err, automutex.NoLock) {
		t.Errorf("the computed key: %v", err)
	}
	for _, rule := range []automutex.Rule{
		{Task: "d", Busy: automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil })},
		{Task: "e", InOrder: true}, {Task: "f", Limit: 1, Rate: automutex.Rate{Starts: 100, Per: 90 * time.Minute, Burst: 5}},
	} {
		was := Describe([]automutex.Rule{rule})
		again := FromFleet(was)
		if got, want := Describe(again)[0].String(), was[0].String(); got != want {
			t.Errorf("%s became %s", want, got)
		}
		if _, err := automutex.NewKeyMaker(automutex.Config{Rules: again}); err != nil {
			t.Errorf("%s: %v", was[0], err)
		}
	}
	for _, rate := range []string{"sometimes", "3 per fortnight, burst 2"} {
		if odd := FromFleet([]fleet.Rule{{Task: "g", Busy: "of a later version", Rate: rate}})[0]; odd.Busy == automutex.Park || odd.Rate != (automutex.Rate{}) {
			t.Errorf("an unknown policy became %s, the rate %q %s", odd.Busy, rate, odd.Rate)
		}
	}
	described := Describe(rules)
	if text := described[2].KeyText(); text != "<type>|<computed>" {
		t.Errorf("it is shown as %q", text)
	}
}
