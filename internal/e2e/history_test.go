package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
)

func keepRuns(n int) func(*automutex.Config) {
	return func(c *automutex.Config) { c.History = n }
}

// awaitHistory waits until a key has at least so many runs, and gives them, the oldest first.
func (r *rig) awaitHistory(key string, n int) []history.Run {
	r.t.Helper()
	var runs []history.Run
	eventually(r.t, func() bool {
		var err error
		runs, err = history.Read(context.Background(), r.rdb, key, 1000)
		redistest.Must(r.t, err)
		return len(runs) >= n
	}, "%s has %d runs", key, n)
	slices.Reverse(runs)
	return runs
}

// The history of a key has each run and each wait, with who, when and how it ended.
func TestHistory(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const value = "a-value-of-a-payload"
		r := start(t, s, setup{
			rules: []automutex.Rule{
				{Task: "short", Scope: "history", On: onID, Wait: 100 * time.Millisecond, Busy: automutex.Skip},
				{Task: "long", Scope: "history", On: onID, Wait: patience, Busy: automutex.Skip},
				{Task: "hot", Scope: "history", On: onID, Busy: automutex.Skip},
			},
			guarded: func(c *automutex.Config) { c.History, c.HashKeys = 100, testSecret },
		})
		payload := map[string]string{"id": value}
		note := func(id string) string { return r.queue + "/" + id }
		failing := r.enqueue("long", payload)
		first := r.next()
		waiting := r.enqueue("long", payload)
		r.awaitEvent(automutex.EventWaiting, waiting)
		skipped := r.enqueue("short", payload)
		r.awaitDone(skipped)
		r.awaitDone(r.enqueue("hot", payload)) // refused at once: no wait, and no entry
		first.returns(errors.New(value))
		r.finish(waiting)

		key := keys.HashedKey(testSecret, r.cfg.Prefix, "history", value)
		runs := r.awaitHistory(key, 3)
		if len(runs) != 3 {
			t.Fatalf("%+v", runs)
		}
		byTask := map[string]history.Run{}
		for _, run := range runs {
			byTask[run.Task] = run
			if run.Worker != "this-worker" || run.Start.IsZero() && run.Outcome != "skipped" || run.End.Before(run.Start) ||
				run.Came.After(run.End) {
				t.Errorf("%+v", run)
			}
			if strings.Contains(fmt.Sprint(run), value) {
				t.Errorf("the history has a value of the payload: %+v", run)
			}
		}
		a, b, gaveUp := byTask[note(failing)], byTask[note(waiting)], byTask[note(skipped)]
		if a.Outcome != "failed" || b.Outcome != "done" || gaveUp.Outcome != "skipped" {
			t.Errorf("failing: %+v\nwaiting: %+v\nskipped: %+v", a, b, gaveUp)
		}
		if waited := gaveUp.End.Sub(gaveUp.Came); !gaveUp.Start.IsZero() || waited < 100*time.Millisecond {
			t.Errorf("the one who gave up: %+v", gaveUp)
		}
		if b.Start.Sub(b.Came) < 100*time.Millisecond {
			t.Errorf("it waited while the other one gave up: %+v", b)
		}
		for _, name := range []string{key + ":history", r.cfg.Prefix + ":{stats}:histories"} {
			eventually(t, func() bool {
				left := r.rdb.PTTL(context.Background(), name).Val()
				return left > 0 && left <= 24*time.Hour
			}, "%s expires within a day", name)
		}
	})
}

// The runs of a mutex do not overlap, however late their processes write them.
func TestHistory_runsAreDisjoint(t *testing.T) {
	t.Parallel()
	busy := setup{rules: []automutex.Rule{{Busy: automutex.Retry, Wait: time.Hour}}, workers: 99,
		guarded: keepRuns(1000),
		handler: func(context.Context, *asynq.Task) error { <-time.After(10 * time.Millisecond); return nil }}
	first := start(t, redistest.Real(t), busy)
	late := &redistest.FailHook{}
	late.Before(func(cmd redis.Cmder) error {
		if cmd.Name() == "eval" && strings.Contains(fmt.Sprint(cmd.Args()[1]), "history: adds") {
			<-time.After(50 * time.Millisecond)
		}
		return nil
	})
	busy.prefix, busy.hook = first.cfg.Prefix, late
	second := start(t, redistest.Real(t), busy)
	for range 60 {
		first.enqueue("work", nil)
		second.enqueue("work", nil)
	}
	runs := first.awaitHistory(first.lockOf("work").Key(), 120)
	slices.SortFunc(runs, func(a, b history.Run) int { return a.Start.Compare(b.Start) })
	runs = slices.DeleteFunc(runs, func(r history.Run) bool { return r.End.Equal(r.Start) })
	for i, run := range runs[min(1, len(runs)):] {
		if run.Start.Before(runs[i].End) {
			t.Errorf("%+v, and the next: %+v", runs[i], run)
		}
	}
}

// Under Allow a run without the lock is in the history of the key, beside the run that holds it, and its wait is over
// then: if it runs again, the next wait begins anew.
func TestHistory_withoutTheLock(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), setup{rules: []automutex.Rule{{Task: "allow", Busy: automutex.Allow,
		Wait: 50 * time.Millisecond}}, guarded: keepRuns(9)})
	r.enqueue("allow", nil)
	first := r.next()
	second := r.enqueue("allow", nil)
	r.next().returns(asynq.SkipRetry)
	r.awaitArchived(second)
	again := r.enqueue("allow", nil, asynq.MaxRetry(0))
	run := r.next()
	began := time.Now()
	first.returns(nil)
	r.awaitHistory(r.lockOf("allow").Key(), 2)
	run.returns(automutex.RetryAfter(0, errUpstream)) // on its last attempt it waits a second in its worker
	r.next().returns(nil)
	if waited := r.awaitEvent(automutex.EventAcquired, again).Waited; waited > time.Since(began)-time.Second {
		t.Errorf("it waited %s for the lock, want no more than since it came back", waited)
	}
	var outcomes []string
	for _, run := range r.awaitHistory(r.lockOf("allow").Key(), 4) {
		outcomes = append(outcomes, run.Outcome)
	}
	slices.Sort(outcomes)
	if want := []string{"archived, without the lock", "comes back, without the lock", "done",
		"done"}; !slices.Equal(outcomes, want) {
		t.Errorf("%q, want %q", outcomes, want)
	}
}

// A run whose lock was lost says so: another task may have run beside it.
func TestHistory_lockLost(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{Busy: automutex.Retry, TTL: time.Second}},
		guarded: keepRuns(10), served: comingBack}, func(t *testing.T, r *rig) {
		id := r.enqueue("work", nil)
		run := r.next()
		redistest.Must(t, r.lockOf("work").Delete(t.Context()))
		<-run.ctx.Done()
		run.returns(nil)
		runs := r.awaitHistory(r.lockOf("work").Key(), 1)
		if runs[0].Task != r.queue+"/"+id || !strings.HasSuffix(runs[0].Outcome, ", lock lost") {
			t.Errorf("%+v, want a run whose lock was lost", runs[0])
		}
		r.stage.end()
	})
}

// A Guard that works says which rules it runs, and nothing of a payload or a secret.
func TestFleet(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const secret, value = "a secret of many bytes", "a-value-of-a-payload"
		rule := automutex.Rule{Task: "fleet", Name: "named", On: onID, Limit: 3, Cooldown: time.Millisecond,
			Rate: automutex.Rate{Starts: 100, Per: time.Minute, Burst: 2}, Busy: automutex.Park}
		r := start(t, s, setup{rules: []automutex.Rule{rule, {Task: "other",
			LimitField: &automutex.LimitField{Path: "max", Default: 2, Most: 0}, Busy: automutex.Retry}},
			guarded: func(c *automutex.Config) { c.Private, c.HashKeys = false, secret }})
		ctx := context.Background()
		r.finish(r.enqueue("fleet", `{"id": "`+value+`"}`))
		r.finish(r.enqueue("no-rule", nil))
		var all []fleet.Process
		redistest.Eventually(t, 3*patience, func() bool { // it may have begun to say so before the second task
			var err error
			all, err = fleet.Read(ctx, r.rdb, r.cfg.Prefix)
			return err == nil && len(all) == 1 && slices.Equal(all[0].Serves, []string{"fleet", "no-rule"})
		}, "what it is")
		if p := all[0]; p.Owner != "this-worker" || !p.Hashed {
			t.Errorf("the process: %+v", p)
		}
		rules := fleet.Rules(all)
		if len(rules) != 2 || rules[0].Name != "named" || rules[1].Name != "other" || rules[0].Limit != "3" ||
			rules[1].Limit != "<max> (default 2)" ||
			strings.Join(slices.Concat(rules[0].Shares, rules[0].Also), "; ") != "rate 100 per 1m, burst 2; cooldown 1ms" {
			t.Errorf("the rules: %+v", rules)
		}
		if text := fmt.Sprint(r.rdb.HGetAll(ctx, fleet.Key(r.cfg.Prefix)).Val()); strings.Contains(text, value) ||
			strings.Contains(text, secret) {
			t.Errorf("it says %s", text)
		}
	})
}

// A Guard with Private, and one whose Redis refuses, work as others and tell nothing. The former begins first, so it
// would also try first.
func TestFleet_tellsNothing(t *testing.T) {
	t.Parallel()
	var tried [2]atomic.Int64
	for i, private := range []bool{true, false} {
		hook := &redistest.FailHook{}
		hook.Before(func(cmd redis.Cmder) error {
			if args := cmd.Args(); cmd.Name() == "hset" && strings.Contains(fmt.Sprint(args[1]), "{fleet}") {
				tried[i].Add(1)
				return redistest.ReplyError("NOPERM this user has no permissions to run the 'hset' command")
			}
			return nil
		})
		r := start(t, redistest.Mini(t), setup{rules: []automutex.Rule{{Task: "fleet"}}, hook: hook,
			guarded: func(c *automutex.Config) { c.Private = private }})
		r.finish(r.enqueue("fleet", nil))
		eventually(t, func() bool { return private || tried[i].Load() > 0 }, "it tries to tell")
		r.finish(r.enqueue("fleet", nil))
		f, err := fleet.Read(t.Context(), r.rdb, r.cfg.Prefix)
		if warnings := r.log.Text(slog.LevelWarn); err != nil || len(f) != 0 || strings.Contains(warnings, "hset") {
			t.Errorf("it tells %+v, %v, and logs %s", f, err, warnings)
		}
	}
	if tried[0].Load() > 0 {
		t.Error("a private one tries to tell")
	}
}

// Of two Guards with different limits of one scope the later one warns, once.
func TestFleet_differ(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	rule := automutex.Rule{Task: "fleet", Scope: "shared", Busy: automutex.Retry}
	say := func(c *automutex.Config) { c.Private = false }
	first := start(t, s, setup{rules: []automutex.Rule{rule}, guarded: say})
	eventually(t, func() bool {
		return first.rdb.Exists(t.Context(), fleet.Key(first.cfg.Prefix)).Val() == 1
	}, "the first one says what it is")
	rule.Task, rule.Limit = "another", 3
	second := start(t, s, setup{prefix: first.cfg.Prefix, rules: []automutex.Rule{rule}, guarded: say})
	eventually(t, func() bool {
		return strings.Contains(second.log.Text(slog.LevelWarn), "scope shared differs: limit 3")
	}, "a warning")
	if text := first.log.Text(slog.LevelWarn); text != "" {
		t.Errorf("the first one warns: %s", text)
	}
}
