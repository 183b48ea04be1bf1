package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/redistest"
)

// A Guard that works says which rules it runs, and nothing of a payload or a secret. Close
// takes it back.
func TestFleet(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const secret, value = "a secret of many bytes", "a-value-of-a-payload"
		rule := automutex.Rule{Task: "fleet", On: []string{"id"}, Limit: 3, Cooldown: time.Millisecond, Rate: automutex.Rate{Starts: 100, Per: time.Minute, Burst: 2}, Busy: automutex.Park,
			Name: "named"}
		r := start(t, s, setup{rules: []automutex.Rule{rule, {Task: "other", LimitField: &automutex.LimitField{Path: "max", Default: 2, Most: 0}, Busy: automutex.Retry}}, guarded: func(c *automutex.Config) {
			c.Private, c.HashKeys = false, secret
		}})
		ctx := context.Background()
		r.finish(r.enqueue("fleet", `{"id": "`+value+`"}`))
		r.finish(r.enqueue("no-rule", nil))
		var all []fleet.Process
		redistest.Eventually(t, patience, func() bool {
			var err error
			all, err = fleet.Read(ctx, r.rdb, r.cfg.Prefix)
			return err == nil && len(all) == 1
		}, "the Guard says what it is")
		if p := all[0]; p.Owner != "this-worker" || !p.Hashed || !slices.Equal(p.Serves, []string{"fleet", "no-rule"}) {
			t.Errorf("the process: %+v", p)
		}
		rules := fleet.Rules(all)
		if len(rules) != 2 || rules[0].Name != "named" || rules[1].Name != "other" || rules[0].LimitShown() != "3" || rules[1].LimitShown() != "<max> (default 2)" ||
			strings.Join(rules[0].Also(), "; ") != "rate 100 per 1m, burst 2; cooldown 1ms" {
			t.Errorf("the rules: %+v", rules)
		}
		if text := fmt.Sprint(r.rdb.HGetAll(ctx, fleet.Key(r.cfg.Prefix)).Val()); strings.Contains(text, value) || strings.Contains(text, secret) {
			t.Errorf("it says %s", text)
		}
		if err := r.guard.Close(ctx); err != nil {
			t.Error(err)
		}
		if all, err := fleet.Read(ctx, r.rdb, r.cfg.Prefix); err != nil || len(all) != 0 {
			t.Errorf("after Close: %+v, %v", all, err)
		}
	})
}

// A Guard with Private, and one whose Redis refuses, work as others and tell nothing.
func TestFleet_tellsNothing(t *testing.T) {
	t.Parallel()
	for _, private := range []bool{true, false} {
		s, hook := redistest.Mini(t), &redistest.FailHook{}
		refusals := make(chan struct{}, 1)
		hook.Before(func(cmd redis.Cmder) error {
			if args := cmd.Args(); cmd.Name() == "hset" && strings.Contains(fmt.Sprint(args[1]), "{fleet}") {
				select {
				case refusals <- struct{}{}:
				default:
				}
				return redistest.ReplyError("NOPERM this user has no permissions to run the 'hset' command")
			}
			return nil
		})
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "fleet", Busy: automutex.Retry}}, hook: hook, guarded: func(c *automutex.Config) { c.Private = private }})
		r.finish(r.enqueue("fleet", nil))
		if !private {
			<-refusals
		}
		r.finish(r.enqueue("fleet", nil))
		if f, err := fleet.Read(context.Background(), r.rdb, r.cfg.Prefix); err != nil || len(f) != 0 {
			t.Errorf("it tells %+v, %v", f, err)
		}
		if private && len(refusals) > 0 {
			t.Error("it tried to tell")
		}
		if warnings := r.log.Text(slog.LevelWarn); strings.Contains(warnings, "hset") {
			t.Errorf("it logs %s", warnings)
		}
	}
}

// Of two Guards with different limits of one scope the later one warns, once.
func TestFleet_differ(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	rule := automutex.Rule{Task: "fleet", Scope: "shared", Busy: automutex.Retry}
	say := func(c *automutex.Config) { c.Private = false }
	first := start(t, s, setup{rules: []automutex.Rule{rule}, guarded: say})
	redistest.Eventually(t, patience, func() bool { return first.rdb.Exists(t.Context(), fleet.Key(first.cfg.Prefix)).Val() == 1 }, "the first one says what it is")
	rule.Task, rule.Limit = "another", 3
	second := start(t, s, setup{prefix: first.cfg.Prefix, rules: []automutex.Rule{rule}, guarded: say})
	redistest.Eventually(t, patience, func() bool {
		return strings.Contains(second.log.Text(slog.LevelWarn), "rules for scope shared differ: limit 3")
	}, "a warning")
	if text := first.log.Text(slog.LevelWarn); text != "" {
		t.Errorf("the first one warns: %s", text)
	}
}
