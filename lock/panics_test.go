package lock

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// A function of OnWait that panics while a holder waits for a second lock leaves
// neither the first one taken nor a waiter in line for the second.
func TestDo_onWaitPanics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		first := l.Mutex(name+"1", TTL(time.Hour))
		second := l.Mutex(name+"2", TTL(time.Hour), onWait(func() { panic("boom") }))
		held, err := l.Mutex(second.name).Lock(t.Context())
		redistest.Must(t, err)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not come through")
				}
			}()
			_ = first.Do(t.Context(), func(ctx context.Context) error {
				_, err := second.Lock(ctx)
				return err
			})
		}()
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for _, m := range []*Lock{first, second} {
			redistest.Eventually(t, soon, func() bool {
				locked, err := m.Locked(context.Background())
				return err == nil && !locked
			}, "%s is free", m.name)
		}
	})
}

// A Caller and a function of OnStop that panic are logged; the call is repeated.
func TestLocker_functionsPanic(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var calls atomic.Int64
		log := &redistest.Log{}
		l := New(s.Client(t), Options{Prefix: redistest.Name(t), Logger: log.Logger(), call: func(context.Context, string, string) inside.Fate {
			if calls.Add(1) == 1 {
				panic("the caller's own fault")
			}
			return inside.FateGone
		}})
		defer func() { _ = l.Close() }()
		held, err := l.Mutex("a").Lock(t.Context())
		redistest.Must(t, err)
		mustPark(t, l.Mutex("a", Note("parked")))
		redistest.Must(t, held.Unlock(t.Context()))
		redistest.Eventually(t, soon, func() bool { return calls.Load() > 1 }, "a call that panicked is repeated")

		older := l.Mutex("b", Note("older"))
		at, _, err := older.arrive(t.Context())
		redistest.Must(t, err)
		stopped := make(chan struct{}, 100)
		held, err = l.Mutex("b", Note("older"), onStop(at, func() { stopped <- struct{}{}; panic("the holder's own fault") })).Lock(t.Context())
		redistest.Must(t, err)
		if at, _, err = l.Mutex("b", Note("newer")).arrive(t.Context()); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, soon, func() bool { // the subscription may not be there yet
			if _, err := l.Mutex("b", Note("newer"), onStop(at, func() {})).askOlderToStop(t.Context()); err != nil {
				t.Fatal(err)
			}
			return len(stopped) > 0
		}, "the older one is asked to stop")
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		redistest.Eventually(t, soon, func() bool {
			return strings.Contains(log.String(), "the caller's own fault") && strings.Contains(log.String(), "the holder's own fault")
		}, "both panics are logged")
	})
}
