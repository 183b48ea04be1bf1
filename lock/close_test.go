package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

func TestClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l, other := newLocker(t, rdb), newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t), TTL(time.Minute))
		held := mustTry(t, m)
		bound := held.Bind(t.Context())
		var waiters []*attempt
		for i := range 3 {
			waiters = append(waiters, inLine(t, m, i+1))
		}
		behind := inLine(t, handle(other, m), 4)
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		for _, w := range waiters {
			if err := w.failed(t); !errors.Is(err, ErrClosed) {
				t.Errorf("Lock: %v, want ErrClosed", err)
			}
		}
		waiting(t, handle(other, m), 1) // they have left the line

		_, err1 := m.TryLock(t.Context())
		_, err2 := m.Lock(t.Context())
		_, err3 := m.Available(t.Context())
		err4 := m.Do(t.Context(), func(context.Context) error { t.Error("Do ran"); return nil })
		for i, err := range []error{err1, err2, err3, err4} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("operation %d after Close: %v, want ErrClosed", i, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}

		// What is held can be extended and released.
		if bound.Err() != nil {
			t.Errorf("the lease ended with Close: %v", context.Cause(bound))
		}
		if err := held.Extend(t.Context(), 2*time.Minute); err != nil {
			t.Errorf("Extend after Close: %v", err)
		}
		mustUnlock(t, held)
		mustUnlock(t, behind.got(t))
		free(t, m, soon)
	})
}

// After Close nothing is renewed; the lease ends at its deadline, and its
// contexts with it.
func TestCloseStopsRenewing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t), TTL(2*time.Second))
		held := mustTry(t, m)
		bound := held.Bind(t.Context())
		redistest.Must(t, l.Close())
		renewed := k.count(wire.RenewScript)
		come(t, bound.Done(), "the end of the lease")
		if !errors.Is(context.Cause(bound), ErrLost) {
			t.Errorf("cause %v, want ErrLost", context.Cause(bound))
		}
		if n := k.count(wire.RenewScript) - renewed; n != 0 {
			t.Errorf("%d renewals after Close", n)
		}
		if err := held.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v, want ErrNotHeld", err)
		}
	})
}

// Close beside everything else: no panic, no race, nothing left behind.
func TestCloseRaces(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		look := newLocker(t, rdb)
		prefix := redistest.Name(t)
		for round := range 15 {
			name := fmt.Sprint(prefix, round)
			l := newLocker(t, rdb)
			m := l.Semaphore(name, 2)
			var wg sync.WaitGroup
			for i := range 12 {
				redistest.Go(&wg, func() {
					for {
						var le *Lease
						var err error
						if i%3 == 0 {
							le, err = m.TryLock(context.Background())
						} else {
							le, err = m.Lock(context.Background())
						}
						switch {
						case errors.Is(err, ErrClosed):
							return
						case errors.Is(err, ErrBusy):
							continue
						case err != nil:
							t.Errorf("lock: %v", err)
							return
						}
						le.Bind(context.Background())
						if err := le.Unlock(context.Background()); err != nil {
							t.Errorf("Unlock: %v", err)
						}
					}
				})
			}
			for range 3 {
				redistest.Go(&wg, func() {
					<-time.After(time.Duration(round) * time.Millisecond)
					if err := l.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
			}
			wg.Wait()
			free(t, look.Semaphore(name, 2), soon)
		}
	})
}

// Close does not close what it did not make.
func TestCloseLeavesTheClientAlone(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	redistest.Must(t, newLocker(t, rdb).Close())
	mustUnlock(t, mustTry(t, newLocker(t, rdb).Mutex(redistest.Name(t))))
}
