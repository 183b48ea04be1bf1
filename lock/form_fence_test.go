package lock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// Fences grow from holder to holder whatever the form, whenever they are asked for, and
// whoever widens the lock meanwhile. Each lease keeps its own.
func TestForm_fencesGrowThroughBothForms(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Minute))
		other := handle(newLocker(t, s.Client(t)), m)
		last := int64(0)
		grows := func(le *Lease) {
			t.Helper()
			fence := fenceOf(t, le)
			if again := fenceOf(t, le); fence <= last || again != fence {
				t.Fatalf("fence %d, and again %d, after %d; %s", fence, again, last, dump(m))
			}
			last = fence
		}
		for i := range 40 {
			le := mustTry(t, m)
			if i%2 == 0 {
				grows(le) // before it is widened
			}
			w := inLine(t, other, 1)
			if i%2 == 1 {
				grows(le) // and after
			}
			if i%4 > 1 {
				fenceOf(t, le)
			}
			mustUnlock(t, le)
			next := w.got(t)
			grows(next)
			mustUnlock(t, next)
		}
	})
}

// Who asks for its fence again, and several at once, are told the same, by one command or few.
func TestForm_fenceIsRemembered(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		commands := newTap(rdb)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		fences := make([]int64, 20)
		var wg sync.WaitGroup
		for i := range fences {
			redistest.Go(&wg, func() { fences[i] = fenceOf(t, le) })
		}
		wg.Wait()
		for _, fence := range fences {
			if fence != fences[0] {
				t.Errorf("fences %v", fences)
				break
			}
		}
		commands.reset()
		fenceOf(t, le)
		mustUnlock(t, le)
		if fence, err := le.Fence(t.Context()); fence != fences[0] || err != nil {
			t.Errorf("after Unlock: %d, %v; want %d, which was told before", fence, err, fences[0])
		}
		if n := commands.count(fenceScript); n != 0 {
			t.Errorf("%d commands for a fence that is known", n)
		}
	})
}

// A fence is told to the holder alone: of a lock that was taken away it says so, and the
// contexts of the lease end.
func TestForm_fenceNeedsTheLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for name, takenAway := range map[string]func(m *Lock){
			"deleted":  func(m *Lock) { raw(m).Del(t.Context(), m.Key()) },
			"a string": func(m *Lock) { raw(m).Del(t.Context(), m.Key()); mustTry(t, handle(newLocker(t, s.Client(t)), m)) },
			"a set": func(m *Lock) {
				raw(m).Del(t.Context(), m.Key())
				mustTry(t, handle(asksAlways(newLocker(t, s.Client(t))), m))
			},
		} {
			m := l.Mutex(redistest.Name(t)+name, TTL(time.Minute))
			le := mustTry(t, m)
			ctx := le.Bind(t.Context())
			takenAway(m)
			if fence, err := le.Fence(t.Context()); fence != 0 || !errors.Is(err, ErrNotHeld) {
				t.Errorf("%s: %d, %v; want ErrNotHeld", name, fence, err)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, ErrLost) || le.Held() {
				t.Errorf("%s: the context ended with %v", name, cause)
			}
		}
	})
	t.Run("Redis is away", func(t *testing.T) {
		t.Parallel()
		_, far, p := through(t, redistest.Mini(t))
		le := mustTry(t, far.Mutex(redistest.Name(t), TTL(time.Minute)))
		p.Refuse(true)
		p.Cut()
		if fence, err := le.Fence(t.Context()); fence != 0 || !errors.Is(err, ErrBackend) || !le.Held() {
			t.Errorf("%d, %v, held: %t; want ErrBackend of a lease that is held", fence, err, le.Held())
		}
		p.Heal()
		fenceOf(t, le)
		mustUnlock(t, le)
	})
}
