package lock

import (
	"context"
	"errors"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

func TestOnWait(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		waits := 0
		m := l.Mutex(redistest.Name(t), onWait(func() { waits++ }))

		le, err := m.Lock(t.Context())
		redistest.Must(t, err)
		mustBeBusy(t, m)
		if waits != 0 {
			t.Errorf("told of %d waits, though nobody waited", waits)
		}

		err = outOfTime(t, m, func(ctx context.Context) error { return second(m.Lock(ctx)) })
		if !errors.Is(err, ErrBusy) || waits != 1 {
			t.Errorf("told of %d waits, want 1: %v", waits, err)
		}

		granted := l.Mutex(m.name, onWait(func() {
			waits++
			if err := le.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}))
		if le, err = granted.Lock(t.Context()); err != nil || waits != 2 {
			t.Fatalf("told of %d waits, want 2: %v", waits, err)
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
