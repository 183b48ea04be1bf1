package e2e

import (
	"context"
	"fmt"
	"log/slog"
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
		r := start(t, s, setup{rules: []automutex.Rule{rule, {Task: "other", LimitField: &automutex.LimitField{Path: "max", Default: 2}, Busy: automutex.Retry}}, guarded: func(c *automutex.Config) {
			c.Private, c.HashKeys = false, secret
		}})
		ctx := context.Background()
		if f, err := fleet.Read(ctx, r.rdb, r.cfg.Prefix); err != nil || len(f.Processes) != 0 {
			t.Errorf("before the first task: %+v, %v", f, err)
		}
		r.finish(r.enqueue("fleet", `{"id": "`+value+`"}`))
		var f *fleet.Fleet
		redistest.Eventually(t, patience, func() bool {
			var err error
			f, err = fleet.Read(ctx, r.rdb, r.cfg.Prefix)
			return err == nil && len(f.Processes) == 1
		}, "the Guard tells of itself")
		p := f.Processes[0]
		if p.Owner != "this-worker" || p.Kind != fleet.Worker || !p.Hashed {
			t.Errorf("the process: %+v", p)
		}
		rules := f.Rules(fleet.Worker)
		if len(rules) != 2 || rules[0].Name != "named" || rules[1].Name != "other" || rules[0].Limit != 3 || rules[1].LimitText != "<max> (default 2)" ||
			strings.Join(rules[0].Also(), "; ") != "rate 100 per 1m, burst 2; cooldown 1ms" {
			t.Errorf("the rules: %+v", rules)
		}
		start := r.cfg.Prefix + ":{fleet}:"
		for _, key := range []string{start + "process:" + p.ID, start + "rules:" + p.Hash} {
			if text := r.rdb.Get(ctx, key).Val(); text == "" || strings.Contains(text, value) || strings.Contains(text, secret) {
				t.Errorf("%s has %q", key, text)
			}
		}
		if err := r.guard.Close(ctx); err != nil {
			t.Error(err)
		}
		if f, err := fleet.Read(ctx, r.rdb, r.cfg.Prefix); err != nil || len(f.Processes) != 0 {
			t.Errorf("after Close: %+v, %v", f, err)
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
			if args := cmd.Args(); cmd.Name() == "zadd" && strings.Contains(fmt.Sprint(args[1]), "{fleet}") {
				select {
				case refusals <- struct{}{}:
				default:
				}
				return redistest.ReplyError("NOPERM this user has no permissions to run the 'zadd' command")
			}
			return nil
		})
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "fleet", Busy: automutex.Retry}}, hook: hook, guarded: func(c *automutex.Config) { c.Private = private }})
		r.finish(r.enqueue("fleet", nil))
		if !private {
			<-refusals
		}
		r.finish(r.enqueue("fleet", nil))
		if f, err := fleet.Read(context.Background(), r.rdb, r.cfg.Prefix); err != nil || len(f.Processes) != 0 {
			t.Errorf("it tells %+v, %v", f, err)
		}
		if private && len(refusals) > 0 {
			t.Error("it tried to tell")
		}
		if warnings := r.log.Text(slog.LevelWarn); strings.Contains(warnings, "zadd") {
			t.Errorf("it logs %s", warnings)
		}
	}
}
