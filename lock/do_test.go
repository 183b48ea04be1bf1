package lock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestDoWaits(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		m := mutexOn(t, s)
		held := mustTry(t, m)
		ran := make(chan error, 1)
		go func() { ran <- m.Do(context.Background(), func(context.Context) error { return nil }) }()
		waiting(t, m, 1)
		mustUnlock(t, held)
		if err := come(t, ran, "the end of Do"); err != nil {
			t.Errorf("Do: %v", err)
		}
		free(t, m)
	})
}

// A panic goes through untouched: the value, and the stack of where it was.
func TestRule10_PanicKeepsItsStack(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		m := mutexOn(t, s)
		func() {
			defer func() {
				origin := panicOrigin()
				if value := recover(); value != "boom" {
					t.Errorf("recovered %v, want boom", value)
				}
				if !strings.HasSuffix(origin, "explodeForTheStack") {
					t.Errorf("the panic seems to come from %s", origin)
				}
			}()
			_ = m.Do(t.Context(), explodeForTheStack)
		}()
		free(t, m)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = m.Do(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		}()
		come(t, done, "the goroutine's end")
		free(t, m)
	})
}

// panicOrigin is the function that panicked, as asynq finds it for its logs: the
// first below the runtime's own. Called by a deferred function.
func panicOrigin() string {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)]) // from what called the deferred function
	for {
		frame, more := frames.Next()
		if !more || !strings.HasPrefix(frame.Function, "runtime.") {
			return frame.Function
		}
	}
}

func explodeForTheStack(context.Context) error { panic("boom") }

// The lease is lost during the work, also while Redis is away: the context says so, and so does Do beside the work's
// own error.
func TestDoJoinsErrLost(t *testing.T) {
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		for _, own := range []error{errors.New("failure"), nil} {
			for _, away := range []bool{true, false} {
				t.Run(fmt.Sprintf("away %t, its own error is %v", away, own), func(t *testing.T) {
					t.Parallel()
					near, far, p := through(t, s)
					m := far.Mutex(redistest.Name(t), lock.TTL(2*time.Second))
					err := m.Do(t.Context(), func(ctx context.Context) error {
						if away {
							p.Refuse(true)
							p.Cut()
						} else {
							redistest.Must(t, client(t).Del(t.Context(), m.Key()).Err())
						}
						ends(t, ctx, lock.ErrLost)
						return own
					})
					if !errors.Is(err, lock.ErrLost) || own != nil && !errors.Is(err, own) {
						t.Errorf("Do: %v, want ErrLost and %v", err, own)
					}
					p.Heal()
					free(t, handle(near, m))
				})
			}
		}
	})
}

// Without a function there is nothing to guard, and nothing is taken.
func TestDo_withoutAFunction(t *testing.T) {
	t.Parallel()
	m := mutexOn(t, redistest.Mini(t))
	if err := m.Do(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "the function to run is nil") {
		t.Error(err)
	}
	free(t, m)
}

// f may end the lease itself: that is no loss.
func TestDoWithALeaseThatItsFunctionEnds(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s)
		for name, end := range map[string]func(context.Context, *lock.Lease) error{
			"Unlock":   func(ctx context.Context, le *lock.Lease) error { return le.Unlock(ctx) },
			"Cooldown": func(ctx context.Context, le *lock.Lease) error { return le.Cooldown(ctx, time.Millisecond) },
		} {
			m := l.Mutex(redistest.Name(t))
			f := func(ctx context.Context) error {
				le, _ := lock.FromContext(ctx)
				return end(ctx, le)
			}
			if err := m.Do(t.Context(), f); err != nil {
				t.Errorf("Do with %s: %v", name, err)
			}
			eventually(t, func() bool {
				locked, err := m.Locked(t.Context())
				return !locked && err == nil
			}, "nobody holding")
		}
	})
}
