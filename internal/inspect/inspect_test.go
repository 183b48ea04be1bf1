package inspect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What an operator reads of a lock: why its gate is closed, what a place in line is, who has ordered what and when.
func TestTexts(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{Gate{Closed: lock.ReasonRate}.String(), "rate used up"}, {Gate{Closed: lock.ReasonCooldown}.String(),
			"cooling down"}, {Gate{Closed: lock.ReasonClosed}.String(), "closed"},
		{WaiterState(engine.Waiter{Called: true, Parked: true}), "called"},
		{WaiterState(engine.Waiter{Held: true}), "archived"}, {WaiterState(engine.Waiter{Ordered: true}), "in order"},
		{Work{Note: "a note"}.TaskName(), "a note"}, {Work{Queue: "q", Task: "id"}.TaskName(), "q/id"},
	} {
		if got, want := c[0], c[1]; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A slash is a character like any other, a part is enough, and what is no pattern is a part.
func TestPattern(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "a", true}, {"b", "abc", true}, {"B", "abc", false}, {"a*c", "a/b/c", true}, {"a?c", "a/c", true},
		{"*99", "default/task-99", true}, {"*99", "99x", false},
		{"*a*b*", "xxaxxbxx", true}, {"*a*b", "xxaxxbxx", false}, {"a[", "a[", true}, {"a[", "a", false}, {`a\`, `a\b`, true},
		{"[^x]b", "/b", true}, {"**", "", true}, {"?*", "", false},
	} {
		if got := Matches(c.pattern, c.text); got != c.want {
			t.Errorf("%q, %q: %v, want %v", c.pattern, c.text, got, c.want)
		}
	}
}

// A pattern made to go back often does not take long.
func TestPattern_goesBackOnce(t *testing.T) {
	t.Parallel()
	if Matches(strings.Repeat("*a", 50)+"*b", strings.Repeat("a", 10_000)) {
		t.Error("it matches")
	}
}

// Rules that workers say they run make the same keys again, but for a key that a function of the program makes: that
// gives no lock.
func TestFromFleet(t *testing.T) {
	t.Parallel()
	rules := []automutex.Rule{
		{Name: "a", Task: "a", On: []string{"id"}}, {Name: "b", Task: "b", Busy: automutex.RetryIn(90 * time.Second),
			Wait: time.Minute}, {Task: "e", InOrder: true},
		{Name: "c", Task: "c", Key: func(context.Context, *asynq.Task) ([]string, error) { return []string{"x"}, nil }},
		{Task: "f", Limit: 1, Rate: automutex.Rate{Starts: 100, Per: 90 * time.Minute, Burst: 5}, Busy: automutex.Skip},
	}
	got := FromFleet(Describe(rules))
	if len(got) != 5 || got[0].Busy != automutex.Park || got[0].On[0] != "id" || got[1].Busy == automutex.Park ||
		got[1].Wait != time.Minute || got[3].Key == nil {
		t.Fatalf("%+v", got)
	}
	maker, err := automutex.NewKeyMaker(automutex.Config{Prefix: "p", Rules: got})
	redistest.Must(t, err)
	for taskType, want := range map[string]string{"a": "[p:{a|7}]", "b": "[p:{b}]", "c": "[]", "e": "[p:{e}]"} {
		if keys, err := maker.Keys(t.Context(), asynq.NewTask(taskType, []byte(`{"id":7}`))); err != nil ||
			fmt.Sprint(keys) != want {
			t.Errorf("%s: %q, %v", taskType, keys, err)
		}
	}
}

// What a Guard says of its rules, in words.
func TestDescribe(t *testing.T) {
	t.Parallel()
	limitOf := func(context.Context, *asynq.Task) (int, error) { return 1, nil }
	for want, rule := range map[string]automutex.Rule{
		"a: s|<x.y>|<header h> 1000000 1m30s 1s retry in 1m30s optional, cooldown 1m, held for at most 1h": {
			Task: "a:", Scope: "s", On: []string{"x.y"}, OnHeaders: []string{"h"}, Optional: true, Limit: 1_000_000,
			TTL: 90 * time.Second, Wait: time.Second,
			MaxHold: time.Hour, Cooldown: time.Minute, Busy: automutex.RetryIn(90 * time.Second),
		},
		"b <type> unlimited 30s  skip rate 100 per 1m, burst 1": {Task: "b", Limit: automutex.Unlimited,
			Rate: automutex.Rate{Starts: 100, Per: time.Minute}, Busy: automutex.Skip},
		"c <type> 1 30s  park in order, on archive continue, at most 8 queued": {Task: "c", InOrder: true,
			OnArchive: automutex.Continue, MaxQueued: 8},
		"d <type> <tenant.max> (default 3, most 50) 30s  allow ": {Task: "d",
			LimitField: &automutex.LimitField{Path: "tenant.max", Default: 3, Most: 50}, Busy: automutex.Allow},
		"e <type> <max> 30s  replace ": {Task: "e",
			LimitField: &automutex.LimitField{Path: "max", Default: 0, Most: 0}, Busy: automutex.Replace},
		"f <type> 1 30s  archive fenced": {Task: "f", Fence: true, Busy: automutex.Archive},
		"g <type>|<computed> computed 30s  park ": {Task: "g",
			Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, nil }, LimitOf: limitOf},
	} {
		d := Describe([]automutex.Rule{rule})
		if len(d) != 1 {
			t.Fatalf("%s: %v", want, d)
		}
		if got := fmt.Sprint(d[0].Name, " ", d[0].KeyText(), " ", d[0].Limit, " ", d[0].TTL, " ", d[0].Wait, " ", d[0].Busy,
			" ", strings.Join(slices.Concat(d[0].Shares, d[0].Also), ", ")); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if all := Describe([]automutex.Rule{{Task: "a", Scope: "x"}, {Task: "b"}, {Task: "a", Scope: "y"}}); len(all) != 3 ||
		all[1].Name != "b" || all[2].Name != "a#2" {
		t.Errorf("names and their order: %+v", all)
	}
}

// A key is named as Redis has it, by what stands between its braces, or as a person reads it.
func TestTypedKey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"p:{a|b}": "p:{a|b}", "other:{a}": "other:{a}", "a|b": "p:{a|b}", "a|b%20c": "p:{a|b%2520c}", "a|b c": "p:{a|b%20c}",
		"a b": "p:{a%20b}", "a|50%": "p:{a|50%25}",
	} {
		if got := TypedKey("p", "", text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	const secret = "sixteen bytes ..."
	if got, want := TypedKey("p", secret, "a|b c"), keys.HashedKey(secret, "p", "a", "b c"); got != want {
		t.Errorf("with a secret it is %q, want %q", got, want)
	}
}

// An order reaches what a person has typed, and no other: text has one reading, whatever else there is.
func TestTarget(t *testing.T) {
	t.Parallel()
	rule := func(task string, on ...string) fleet.Rule { return fleet.Rule{Name: task, Task: task, On: on} }
	type rules = []fleet.Rule
	raw, spaced := rule("a%20b", "id"), rule("a b", "id")
	rdb := redistest.StartMini(t).Client(t)
	locker := lock.New(rdb, lock.Options{Prefix: "p"})
	t.Cleanup(func() { _ = locker.Close() })
	_, err := locker.Mutex("un ruled", lock.Parts("x y")).TryLock(t.Context())
	redistest.Must(t, err)
	for _, c := range []struct {
		rules rules
		typed string
		want  string // or a part of why it is unknown
	}{
		{nil, "report", "p:{report}"}, {nil, "report:", "p:{report:}"}, {nil, "report|b c", "p:{report|b%20c}"},
		{nil, "report|b%20c", "p:{report|b%2520c}"},
		{nil, "a%20b", "p:{a%2520b}"}, {nil, "p:{a%20b}", "p:{a%20b}"}, {nil, "|x", ""},
		{nil, strings.Repeat("|x", 500_000), ""},
		{rules{spaced, raw}, "a%20b", "p:{a%2520b}"},
		{rules{spaced}, "a%20b", "No rule has the scope of a%2520b"},
		{rules{raw}, "a%20b|1", "p:{a%2520b|1}"},
		{rules{spaced}, "a%20b|1", "No rule has the scope of a%2520b|1"},
		{rules{rule("a|b", "id")}, "a|b", "p:{a%7Cb}"},
		{rules{rule("a", "id")}, "a|b", "p:{a|b}"},
		{rules{rule("a", "id"), rule("a|b", "id")}, "a|b", "p:{a%7Cb}"},
		{rules{rule("a", "id")}, "a|b|7", "No task has the key a|b|7: it has 2 values, and the keys of rule a have " +
			"1. There is no such lock now either"},
		{rules{rule("a", "id")}, "a|~" + strings.Repeat("0", 64), "p:{a|~" + strings.Repeat("0", 64) + "}"},
		{rules{rule("svc:/items:q=a%20b")}, "svc:/items:q=a%20b", "p:{svc:/items:q=a%2520b}"},
		{rules{rule("a%20b:c")}, "a%20b:", "p:{a%2520b:}"},
		{rules{raw}, "un ruled", "p:{un%20ruled}"}, {rules{raw}, "un ruled|x y", "p:{un%20ruled|x%20y}"},
		{rules{raw}, "un ruled|x%20y", "No rule has the scope of un%20ruled|x%2520y"},
		{rules{raw}, "ruled", "No rule has the scope of ruled (scopes: a%2520b). There is no such lock now either"},
		{rules{rule("mail:", "id")}, "mail:send", "p:{mail:send}"},
		{rules{rule("report:"), rule("mail"), rule("mail", "id")}, "mali|7",
			"No rule has the scope of mali|7: did you mean mail|7? There is"},
	} {
		target := ""
		e := engine.New(engine.Options{Client: rdb, Prefix: "p", Log: slog.New(slog.DiscardHandler), Obeys: true,
			HasScope: func(text string) bool { return IsScope(c.rules, text) }})
		t.Cleanup(e.Close)
		if stored, err := e.Controls().Target(c.typed); err == nil {
			target = "p:{" + stored + "}"
		}
		why, err := Unknown(t.Context(), e, c.rules, false, c.typed)
		if err == nil && why != "" && c.want != "" && strings.Contains(why, c.want) {
			continue
		}
		if err != nil || why != "" || target != c.want {
			t.Errorf("%.50q is %q, %q, %v; want %q", c.typed, target, why, err, c.want)
		}
	}
	for text, hashes := range map[string]bool{"a%20b|7": false, "a%20b|~" + strings.Repeat("0", 64): true} {
		why, err := Unknown(t.Context(), *inside.At(locker), rules{raw}, true, text)
		if err != nil || (why == "") != hashes || !hashes && !strings.Contains(why, "are hashed, so no task has the key") {
			t.Errorf("%s where keys are hashed: %q, %v", text, why, err)
		}
	}
}

// An error of Redis ends a walk, and is told once.
func TestWalk_refused(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]struct{ locks, errors int }{"scan": {0, 1}, "none": {1, 0}} {
		rdb := redistest.StartMini(t).Client(t)
		locker := lock.New(rdb, lock.Options{})
		t.Cleanup(func() { _ = locker.Close() })
		_, err := locker.Mutex("report").TryLock(t.Context())
		redistest.Must(t, err)
		hook := &redistest.FailHook{}
		hook.Before(func(cmd redis.Cmder) error {
			if cmd.Name() == command {
				return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
			}
			return nil
		})
		rdb.AddHook(hook)
		locks, failed := 0, 0
		for _, err := range Walk(t.Context(), *inside.At(locker)) {
			if locks++; err != nil {
				locks--
				failed++
				if !errors.Is(err, lock.ErrBackend) {
					t.Errorf("without %s: %v, want ErrBackend", command, err)
				}
			}
		}
		if locks != want.locks || failed != want.errors {
			t.Errorf("without %s: %d locks and %d errors, want %+v", command, locks, failed, want)
		}
	}
}
