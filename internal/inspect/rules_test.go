package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
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
	if odd := FromFleet([]fleet.Rule{{Task: "g", Busy: json.RawMessage(`"of a later version"`)}})[0]; odd.Busy == automutex.Park {
		t.Errorf("an unknown policy became %s", odd.Busy)
	}
	described := Describe(rules)
	if text := described[2].KeyText(); text != "<type>|<computed>" {
		t.Errorf("it is shown as %q", text)
	}
}

// What a Guard says of its rules is what a file says: package config reads the same rules in it.
func TestDescribe_isAFile(t *testing.T) {
	t.Parallel()
	rules := []automutex.Rule{
		{Task: "a:", Scope: "s", On: []string{"x.y"}, OnHeaders: []string{"h"}, Optional: true, Limit: 1_000_000, TTL: 90 * time.Second, Wait: time.Second, MaxHold: time.Hour, Cooldown: time.Minute, Busy: automutex.RetryIn(90 * time.Second)},
		{Task: "b", Limit: automutex.Unlimited, Rate: automutex.Rate{Starts: 100, Per: time.Minute}, Busy: automutex.Skip},
		{Task: "c", InOrder: true, OnArchive: automutex.Continue, MaxQueued: 8}, {Task: "d", LimitField: &automutex.LimitField{Path: "tenant.max", Default: 3, Most: 50}, Fence: false},
		{Task: "e", LimitField: &automutex.LimitField{Path: "tenant.max", Default: 0, Most: 0}, Busy: automutex.Allow}, {Task: "f", Fence: true},
	}
	text, err := json.Marshal(automutex.Config{Rules: rules, Prefix: "p", HashKeys: "a secret of many bytes"})
	if err != nil || bytes.Contains(text, []byte("secret")) {
		t.Fatalf("%s, %v", text, err)
	}
	cfg, _, err := config.Parse(text)
	if err != nil || cfg.Prefix != "p" {
		t.Fatalf("%v in %s", err, text)
	}
	if got, want := fmt.Sprintf("%+q", Describe(cfg.Rules)), fmt.Sprintf("%+q", Describe(rules)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	functions := Describe([]automutex.Rule{{
		Task: "g", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, nil }, LimitOf: func(context.Context, *asynq.Task) (int, error) { return 1, nil },
	}})
	if got := functions[0].String(); got != "<type>|<computed>, park, limit computed, lease 30s" {
		t.Errorf("got %s", got)
	}
}
