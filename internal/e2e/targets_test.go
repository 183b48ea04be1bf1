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
	"github.com/automutex/automutex/internal/redistest"
)

// What becomes of a task whose key is not to be had, and of one that needs none.

// keyRig is a rig with one rule of that policy, whose Key gives "k" or the error.
func keyRig(t *testing.T, s *redistest.Server, busy automutex.Policy, err *atomic.Pointer[error]) *rig {
	t.Helper()
	return start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: busy, Key: func(context.Context, *asynq.Task) ([]string, error) {
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
		for _, busy := range []automutex.Policy{automutex.Retry, automutex.Skip, automutex.Park} {
			failed.Store(&reset)
			r := keyRig(t, s, busy, &failed)
			id := r.enqueue("work", nil)
			info := r.awaitRetried(id, 0)
			if !strings.Contains(info.LastErr, "connection reset") || !strings.Contains(info.LastErr, `rule "work"`) {
				t.Errorf("the last error is %q", info.LastErr)
			}
			if event := r.awaitEvent(automutex.EventBackendError, id); !errors.Is(event.Err, reset) || event.Rule != "work" {
				t.Errorf("got %+v", event)
			}
			if delay := r.awaitEvent(automutex.EventRetried, id).Delay; delay < time.Second || delay > 30*time.Second {
				t.Errorf("it comes back after %s", delay)
			}
			r.stage.none(t)
			failed.Store(nil)
			r.rerun(id)
			r.finish(id)
			r.stop()
			if text := r.log.Text(slog.LevelInfo); strings.Count(text, "no *KeyError") != 1 || strings.Count(text, "works again") != 1 {
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
		r := keyRig(t, s, automutex.Retry, &failed)
		ended := r.enqueue("work", nil, asynq.MaxRetry(0), asynq.Timeout(2*time.Second))
		if info := r.await(ended, asynq.TaskStateArchived); !strings.Contains(info.LastErr, "connection reset") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.stage.none(t)
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		r.awaitEvent(automutex.EventBackendError, id)
		failed.Store(nil)
		r.finish(id)
	})
}

// A *KeyError, also wrapped, archives.
func TestKeyFunc_neverHasAKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var failed atomic.Pointer[error]
		never := fmt.Errorf("looked: %w", &automutex.KeyError{Task: "work", Field: "shop"})
		failed.Store(&never)
		r := keyRig(t, s, automutex.Retry, &failed)
		id := r.enqueue("work", nil)
		r.await(id, asynq.TaskStateArchived)
		r.awaitEvent(automutex.EventKeyError, id)
	})
}

func TestKeyFunc_noLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var answer atomic.Pointer[error]
		none := fmt.Errorf("free of charge: %w", automutex.NoLock)
		answer.Store(&none)
		r := keyRig(t, s, automutex.Skip, &answer)
		first, second := r.enqueue("work", nil), r.enqueue("work", nil)
		runs := []*run{r.stage.next(t), r.stage.next(t)} // at once
		if _, ok := automutex.Lease(runs[0].ctx); ok {
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
	})
}

// Other rules of the task hold all the same.
func TestKeyFunc_noLockOfOneRule(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), &redistest.Log{}, &events{},
		automutex.Rule{Task: "work", Name: "a", Scope: "a", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, automutex.NoLock }, Busy: automutex.Retry},
		automutex.Rule{Task: "work", Name: "b", Scope: "b", On: []string{"id"}, Busy: automutex.Retry})
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
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "measured", On: []string{"id"}, Busy: automutex.Allow},
			{Task: "both", Name: "allow", Scope: "allow", On: []string{"idd"}, Busy: automutex.Allow},
			{Task: "both", Name: "retry", Scope: "retry", On: []string{"id"}, Busy: automutex.Retry},
			{Task: "header", OnHeaders: []string{"h"}, Busy: automutex.Allow},
		}})
		for taskType, payload := range map[string]string{"measured": "not JSON", "both": `{"id":1}`, "header": ""} {
			id := r.enqueue(taskType, payload)
			run := r.stage.next(t)
			event := r.awaitEvent(automutex.EventKeyError, id)
			var keyErr *automutex.KeyError
			if event.Policy != automutex.Allow || event.Rule == "" || !errors.As(event.Err, &keyErr) {
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
		if kinds := r.seen.kindsOf(id); !slices.Equal(kinds, []automutex.EventKind{automutex.EventKeyError}) {
			t.Errorf("events %v", kinds)
		}
	})
}

// A task may stop an older one under Replace and then be ended by a later rule.
func TestNew_replaceBeforeSkip(t *testing.T) {
	t.Parallel()
	replace := automutex.Rule{Task: "work", Name: "doc", Scope: "doc", Busy: automutex.Replace}
	after := automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil })
	for _, c := range []struct {
		busy  automutex.Policy
		first bool // the other rule is declared before
		warns bool
	}{{automutex.Skip, false, true}, {automutex.Archive, false, true}, {automutex.Fail, false, true}, {after, false, true}, {automutex.Skip, true, false}, {automutex.Retry, false, false}, {automutex.Park, false, false}} {
		rules := []automutex.Rule{replace, {Task: "work", Name: "all", Scope: "all", Busy: c.busy}}
		if c.first {
			slices.Reverse(rules)
		}
		log := &redistest.Log{}
		newGuard(t, redistest.Mini(t), log, &events{}, rules...)
		if text := log.Text(slog.LevelWarn); strings.Contains(text, "may stop the older one") != c.warns {
			t.Errorf("%s, declared first %t: logged %q", c.busy, c.first, text)
		}
	}
}

// A Guard that was closed while its server goes on says so, once.
func TestClose_tooEarly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}})
		redistest.Must(t, r.guard.Close(t.Context()))
		for range 3 {
			r.awaitRetried(r.enqueue("work", nil), 0)
		}
		if text := r.log.Text(slog.LevelWarn); strings.Count(text, "Close was called too early") != 1 {
			t.Errorf("logged: %q", text)
		}
	})
}

// A Redis client that was closed before the Guard.
func TestClose_clientBefore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, busy := range []automutex.Policy{automutex.Retry, automutex.Replace, automutex.Park} {
			locks := s.Client(t)
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: busy}}, locks: locks})
			held := r.enqueue("work", nil)
			run := r.stage.next(t)
			redistest.Must(t, locks.(interface{ Close() error }).Close())
			id := r.enqueue("work", nil)
			if info := r.awaitRetried(id, 0); !strings.Contains(info.LastErr, "close the Guard first") {
				t.Errorf("%s: the last error is %q", busy, info.LastErr)
			}
			run.returns(nil)
			r.await(held, asynq.TaskStateCompleted)
			if event := r.awaitEvent(automutex.EventBackendError, held); !errors.Is(event.Err, redis.ErrClosed) || !strings.Contains(event.Err.Error(), "close the Guard first") {
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
			rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1, locks: other.Client(t),
			guarded: func(c *automutex.Config) {
				if !elsewhere {
					c.Inspector = asynq.NewInspectorFromRedisClient(s.Client(t))
				}
			},
		})
		held := r.hold("work", "1")
		for range 2 {
			r.awaitParked(r.enqueue("work", one))
		}
		text := r.log.Text(slog.LevelWarn)
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
		rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1, locks: other.Client(t),
		guarded: func(c *automutex.Config) { c.Inspector = asynq.NewInspectorFromRedisClient(hanging) },
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

// Optional is for the fields of the key: a task without the field of its LimitField is archived.
func TestRule_optionalLimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Optional: true, LimitField: &automutex.LimitField{Path: "tenant.max"}, Busy: automutex.Retry}}})
		r.await(r.enqueue("work", one), asynq.TaskStateArchived)
		r.finish(r.enqueue("work", map[string]any{"tenant": map[string]int{"max": 2}}))
	})
}

// With Optional a task without the field takes no lock of the rule; a field that is no value for a key still archives.
func TestRule_optional(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		g := newGuard(t, s, &redistest.Log{}, &events{},
			automutex.Rule{Task: "work", Name: "tenant", Scope: "tenant", On: []string{"tenant"}, OnHeaders: []string{"region"}, Optional: true, Busy: automutex.Retry}, automutex.Rule{Task: "work", Name: "id", Scope: "id", On: []string{"id"}, Busy: automutex.Retry})
		headers := map[string]string{"region": "eu"}
		for payload, want := range map[string]int{
			`{"id":1,"tenant":"a"}`: 2, `{"id":1}`: 1, `{"id":1,"tenant":null}`: 1, `{"id":1,"tenant":""}`: 1,
		} {
			if keys, err := g.Keys(t.Context(), asynq.NewTaskWithHeaders("work", []byte(payload), headers)); err != nil || len(keys) != want {
				t.Errorf("%s: %d keys, %v, want %d", payload, len(keys), err, want)
			}
		}
		if keys, err := g.Keys(t.Context(), asynq.NewTask("work", []byte(`{"id":1,"tenant":"a"}`))); err != nil || len(keys) != 1 {
			t.Errorf("without the header: %d keys, %v", len(keys), err)
		}
		for _, payload := range []string{"", " ", "null", "{}", "7", `""`, "no JSON"} { // the last one is archived
			for _, on := range []string{"tenant", "."} {
				maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: "work", On: []string{on}, Optional: true}}})
				redistest.Must(t, err)
				missing := strings.Contains(" null \"\"", payload) || on != "." && payload != "no JSON"
				if keys, err := maker.Keys(t.Context(), asynq.NewTask("work", []byte(payload))); missing != (err == nil && len(keys) == 0) {
					t.Errorf("%q of %q: %q, %v", on, payload, keys, err)
				}
			}
		}
		for _, payload := range []string{"", `{"tenant":"a"}`, `{"id":1,"tenant":1e999999}`, `no JSON`} {
			var never *automutex.KeyError
			if _, err := g.Keys(t.Context(), asynq.NewTaskWithHeaders("work", []byte(payload), headers)); !errors.As(err, &never) {
				t.Errorf("%s: %v", payload, err)
			} else if named := strings.HasSuffix(err.Error(), "; enqueue the task with a value there, or change the rule's On, or set its Optional"); named != (payload == "" || payload == `{"tenant":"a"}`) {
				t.Errorf("%s names Optional: %t: %v", payload, named, err)
			}
		}
	})
}
