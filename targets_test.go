package automutex

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

	"github.com/automutex/automutex/internal/redistest"
)

// What becomes of a task whose key is not to be had, and of one that needs none.

// keyRig is a rig with one rule of that policy, whose Key gives "k" or the error.
func keyRig(t *testing.T, s *redistest.Server, busy Policy, err *atomic.Pointer[error]) *rig {
	t.Helper()
	return start(t, s, setup{rules: []Rule{{Task: "work", Busy: busy, Key: func(context.Context, *asynq.Task) ([]string, error) {
		if failed := err.Load(); failed != nil {
			return nil, *failed
		}
		return []string{"k"}, nil
	}}}})
}

// An error that is no *KeyError has the task come back, its attempt not spent.
func TestKeyFunc_failsForNow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var failed atomic.Pointer[error]
		reset := errors.New("db: connection reset \xff")
		for _, busy := range []Policy{Retry, Skip, Park} {
			failed.Store(&reset)
			r := keyRig(t, s, busy, &failed)
			id := r.enqueue("work", nil)
			info := r.awaitRetried(id, 0)
			if !strings.Contains(info.LastErr, "connection reset") || !strings.Contains(info.LastErr, `rule "work"`) {
				t.Errorf("the last error is %q", info.LastErr)
			}
			if event := r.awaitEvent(EventBackendError, id); !errors.Is(event.Err, reset) || event.Rule != "work" {
				t.Errorf("got %+v", event)
			}
			if delay := r.awaitEvent(EventRetried, id).Delay; delay < time.Second || delay > 30*time.Second {
				t.Errorf("it comes back after %s", delay)
			}
			r.stage.none(t)
			failed.Store(nil)
			r.rerun(id)
			r.finish(id)
			r.stop()
			if text := r.log.text(slog.LevelInfo); strings.Count(text, "no *KeyError") != 1 || strings.Count(text, "works again") != 1 {
				t.Errorf("logged: %s", text)
			}
		}
	})
}

// Without attempts left it tries again in its worker, until the margin.
func TestKeyFunc_failsOnTheLastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var failed atomic.Pointer[error]
		reset := errors.New("db: connection reset")
		failed.Store(&reset)
		r := keyRig(t, s, Retry, &failed)
		ended := r.enqueue("work", nil, asynq.MaxRetry(0), asynq.Timeout(2*time.Second))
		if info := r.await(ended, asynq.TaskStateArchived); !strings.Contains(info.LastErr, "connection reset") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.stage.none(t)
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		r.awaitEvent(EventBackendError, id)
		failed.Store(nil)
		r.finish(id)
	})
}

// A *KeyError, also wrapped, archives.
func TestKeyFunc_neverHasAKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var failed atomic.Pointer[error]
		never := fmt.Errorf("looked: %w", &KeyError{Task: "work", Field: "shop"})
		failed.Store(&never)
		r := keyRig(t, s, Retry, &failed)
		id := r.enqueue("work", nil)
		r.await(id, asynq.TaskStateArchived)
		r.awaitEvent(EventKeyError, id)
	})
}

func TestKeyFunc_noLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var answer atomic.Pointer[error]
		none := fmt.Errorf("free of charge: %w", NoLock)
		answer.Store(&none)
		r := keyRig(t, s, Skip, &answer)
		first, second := r.enqueue("work", nil), r.enqueue("work", nil)
		runs := []*run{r.stage.next(t), r.stage.next(t)} // at once
		if _, ok := Lease(runs[0].ctx); ok {
			t.Error("it has a lease")
		}
		for _, run := range runs {
			run.returns(nil)
		}
		for _, id := range []string{first, second} {
			r.await(id, asynq.TaskStateCompleted)
			if kinds := r.seen.kindsOf(id); len(kinds) > 0 {
				t.Errorf("events %v", kinds)
			}
		}
		task := asynq.NewTask("work", nil)
		if keys, err := r.guard.Keys(t.Context(), task); err != nil || len(keys) != 0 {
			t.Errorf("Keys: %v, %v", keys, err)
		}
		if all, err := r.guard.Explain(t.Context(), task); err != nil || len(all) != 0 {
			t.Errorf("Explain: %v, %v", all, err)
		}
	})
}

// Other rules of the task hold all the same.
func TestKeyFunc_noLockOfOneRule(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), &logged{}, &events{},
		Rule{Task: "work", Name: "a", Scope: "a", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, NoLock }},
		Rule{Task: "work", Name: "b", Scope: "b", On: []string{"id"}})
	keys, err := guard.Keys(t.Context(), asynq.NewTask("work", []byte(`{"id":1}`)))
	if err != nil || len(keys) != 1 || !strings.Contains(keys[0], "{b|1}") {
		t.Errorf("got %v, %v", keys, err)
	}
}

// Under Allow a task runs without the key that cannot be made, and under those of
// other rules.
func TestAllow_noKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{
			{Task: "measured", On: []string{"id"}, Busy: Allow},
			{Task: "both", Name: "allow", Scope: "allow", On: []string{"idd"}, Busy: Allow},
			{Task: "both", Name: "retry", Scope: "retry", On: []string{"id"}},
			{Task: "header", OnHeaders: []string{"h"}, Busy: Allow},
		}})
		for taskType, payload := range map[string]string{"measured": "not JSON", "both": `{"id":1}`, "header": ""} {
			id := r.enqueue(taskType, payload)
			run := r.stage.next(t)
			event := r.awaitEvent(EventKeyError, id)
			var keyErr *KeyError
			if event.Policy != Allow || event.Rule == "" || !errors.As(event.Err, &keyErr) {
				t.Errorf("%s: %+v", taskType, event)
			}
			if taskType == "both" && !r.locked("retry", "1") {
				t.Error("the other rule's lock is not held")
			}
			run.returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		}
		id := r.enqueue("both", `{"idd":1}`) // the rule that enforces has no key
		r.await(id, asynq.TaskStateArchived)
		r.stage.none(t)
		if kinds := r.seen.kindsOf(id); !slices.Equal(kinds, []EventKind{EventKeyError}) {
			t.Errorf("events %v", kinds)
		}
	})
}

// A task may stop an older one under Replace and then be ended by a later rule.
func TestNew_replaceBeforeSkip(t *testing.T) {
	t.Parallel()
	replace := Rule{Task: "work", Name: "doc", Scope: "doc", Busy: Replace}
	for _, c := range []struct {
		busy  Policy
		first bool // the other rule is declared before
		warns bool
	}{{Skip, false, true}, {Archive, false, true}, {Fail, false, true}, {Skip, true, false}, {Retry, false, false}, {Park, false, false}} {
		rules := []Rule{replace, {Task: "work", Name: "all", Scope: "all", Busy: c.busy}}
		if c.first {
			slices.Reverse(rules)
		}
		log := &logged{}
		newGuard(t, redistest.Mini(t), log, &events{}, rules...)
		if text := log.text(slog.LevelWarn); strings.Contains(text, "may stop the older one") != c.warns {
			t.Errorf("%s, declared first %t: logged %q", c.busy, c.first, text)
		}
	}
}

// A Guard that was closed while its server goes on says so, once.
func TestClose_tooEarly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{{Task: "work"}}})
		if err := r.guard.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r.awaitRetried(r.enqueue("work", nil), 0)
		}
		if text := r.log.text(slog.LevelWarn); strings.Count(text, "Close was called too early") != 1 {
			t.Errorf("logged: %q", text)
		}
	})
}

// A Redis client that was closed before the Guard.
func TestClose_clientBefore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, busy := range []Policy{Retry, Replace, Park} {
			locks := s.Client(t)
			r := start(t, s, setup{rules: []Rule{{Task: "work", Busy: busy}}, locks: locks})
			held := r.enqueue("work", nil)
			run := r.stage.next(t)
			if err := locks.(interface{ Close() error }).Close(); err != nil {
				t.Fatal(err)
			}
			id := r.enqueue("work", nil)
			if info := r.awaitRetried(id, 0); !strings.Contains(info.LastErr, "close the Guard first") {
				t.Errorf("%s: the last error is %q", busy, info.LastErr)
			}
			run.returns(nil)
			r.await(held, asynq.TaskStateCompleted)
			if event := r.awaitEvent(EventBackendError, held); !errors.Is(event.Err, redis.ErrClosed) || !strings.Contains(event.Err.Error(), "close the Guard first") {
				t.Errorf("%s: at the release: %v", busy, event.Err)
			}
			r.stop()
		}
	})
}

// Locks on another Redis than asynq's, and no Inspector: nobody would call what
// is parked.
func TestPark_inspectorElsewhere(t *testing.T) {
	t.Parallel()
	s, other := redistest.Mini(t), redistest.StartMini(t)
	for _, elsewhere := range []bool{true, false} {
		r := start(t, s, setup{
			rules: []Rule{{Task: "work", On: []string{"id"}, Busy: Park}}, workers: 1, locks: other.Client(t),
			guarded: func(c *Config) {
				if !elsewhere {
					c.Inspector = asynq.NewInspectorFromRedisClient(s.Client(t))
				}
			},
		})
		held := r.hold("work", "1")
		for range 2 {
			r.awaitParked(r.enqueue("work", one))
		}
		text := r.log.text(slog.LevelWarn)
		if n := strings.Count(text, "Config.Inspector does not see"); n > 1 || n == 1 != elsewhere {
			t.Errorf("elsewhere %t: logged %q", elsewhere, text)
		}
		r.free(held)
		r.stop()
	}
}

// An asynq Redis that hangs does not keep a task from parking for longer than a moment.
func TestPark_inspectorHangs(t *testing.T) {
	t.Parallel()
	s, other := redistest.Mini(t), redistest.StartMini(t)
	p := redistest.NewProxy(t, s.Addr())
	hanging := p.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = patience })
	r := start(t, s, setup{
		rules: []Rule{{Task: "work", On: []string{"id"}, Busy: Park}}, workers: 1, locks: other.Client(t),
		guarded: func(c *Config) { c.Inspector = asynq.NewInspectorFromRedisClient(hanging) },
	})
	held := r.hold("work", "1")
	p.Blackhole(true)
	var took []time.Duration
	for range 2 {
		began := time.Now()
		r.awaitParked(r.enqueue("work", one))
		took = append(took, time.Since(began))
	}
	if took[0] > patience/2 || took[1] > patience/2 {
		t.Errorf("two tasks parked after %s, while asynq's Redis hung", took)
	}
	p.Cut()
	p.Heal()
	r.free(held)
	r.stop()
}
