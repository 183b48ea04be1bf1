package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/internal/redistest"
)

// Rules that workers say they run make the same keys again, but for a key that a function of the program makes: that gives no lock.
func TestFromFleet(t *testing.T) {
	t.Parallel()
	rules := []automutex.Rule{
		{Name: "a", Task: "a", On: []string{"id"}}, {Name: "b", Task: "b", Busy: automutex.RetryIn(90 * time.Second), Wait: time.Minute}, {Task: "e", InOrder: true},
		{Name: "c", Task: "c", Key: func(context.Context, *asynq.Task) ([]string, error) { return []string{"x"}, nil }},
		{Task: "f", Limit: 1, Rate: automutex.Rate{Starts: 100, Per: 90 * time.Minute, Burst: 5}, Busy: automutex.Skip},
	}
	got := FromFleet(Describe(rules))
	if len(got) != 5 || got[0].Busy != automutex.Park || got[0].On[0] != "id" || got[1].Busy == automutex.Park || got[1].Wait != time.Minute || got[3].Key == nil {
		t.Fatalf("%+v", got)
	}
	maker, err := automutex.NewKeyMaker(automutex.Config{Prefix: "p", Rules: got})
	redistest.Must(t, err)
	for taskType, want := range map[string]string{"a": "[p:{a|7}]", "b": "[p:{b}]", "c": "[]", "e": "[p:{e}]"} {
		if keys, err := maker.Keys(t.Context(), asynq.NewTask(taskType, []byte(`{"id":7}`))); err != nil || fmt.Sprint(keys) != want {
			t.Errorf("%s: %q, %v", taskType, keys, err)
		}
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
