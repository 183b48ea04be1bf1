package lock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// Some releases are answered with an error: the cooldown comes with the next one.
func TestCooldownOutlivesReleasesThatFail(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, failures := range []int32{1, 4} {
		t.Run(fmt.Sprint(failures), func(t *testing.T) {
			t.Parallel()
			coolsAfter(t, failures)
		})
	}
}

func coolsAfter(t *testing.T, failures int32) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		var failed atomic.Int32
		hook.Before(func(cmd redis.Cmder) error {
			if scriptName(cmd) == wire.ReleaseScript.Name && failed.Add(1) <= failures {
				return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
			}
			return nil
		})
		began := time.Now()
		if err := le.Cooldown(t.Context(), time.Minute); !errors.Is(err, ErrBackend) {
			t.Fatalf("Cooldown: %v, want ErrBackend", err)
		}
		coolsSoon(t, le, began.Add(time.Minute))
	})
}

// Redis cannot be reached for some seconds: the cooldown begins when it can, well
// before the lease would have ended, and ends when it was to end.
func TestCooldownOutlivesACut(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		_, far, p := through(t, s)
		m := far.Mutex(redistest.Name(t), TTL(time.Minute))
		le := mustTry(t, m)
		p.Refuse(true)
		p.Cut()
		began := time.Now()
		if err := le.Cooldown(t.Context(), time.Minute); !errors.Is(err, ErrBackend) {
			t.Fatalf("Cooldown: %v, want ErrBackend", err)
		}
		redistest.Eventually(t, soon, func() bool { return time.Since(began) > time.Second }, "an outage of a second")
		p.Heal()
		coolsSoon(t, le, began.Add(time.Minute))
	})
}

// coolsSoon waits until the lease's slot cools down, and holds the end of that
// against what was wanted.
func coolsSoon(t *testing.T, le *Lease, until time.Time) {
	t.Helper()
	var end time.Time
	redistest.Eventually(t, soon, func() (ok bool) {
		_, end, ok = gateOf(t, le.lock)
		return ok
	}, "a cooldown; %s", stringer(func() string { return dump(le.lock) }))
	left := end.Sub(serverNow(t, le.lock))
	if late := left - time.Until(until); late.Abs() > time.Second {
		t.Errorf("the cooldown ends %s after it was to end", late)
	}
	if _, holding := holds(t, le); holding {
		t.Errorf("cooling down, and held; %s", dump(le.lock))
	}
}

// A client that writes the same release again later asks for what is left then.
func TestCooldownArgumentIsWhatIsLeft(t *testing.T) {
	t.Parallel()
	le := newLocker(t, redistest.Mini(t).Client(t)).Mutex("x").newLease()
	if got := le.cooldownArgument(); got != int64(0) {
		t.Errorf("without a cooldown the argument is %v", got)
	}
	end := time.Now().Add(10 * time.Second)
	le.cooldownEnd.Store(&end)
	arg, _ := le.cooldownArgument().(*cooldownArg)
	first, err := arg.MarshalBinary()
	if err != nil || len(first) != len("10000") && len(first) != len("9999") {
		t.Errorf("%q, %v, want about 10000", first, err)
	}
	end = time.Now()
	le.cooldownEnd.Store(&end)
	if later, err := arg.MarshalBinary(); string(later) != "0" || err != nil {
		t.Errorf("after its end: %q, %v", later, err)
	}
}

// f may end the lease itself: that is no loss.
func TestDoWithALeaseThatItsFunctionEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for name, end := range map[string]func(context.Context, *Lease) error{
			"Unlock":   func(ctx context.Context, le *Lease) error { return le.Unlock(ctx) },
			"Cooldown": func(ctx context.Context, le *Lease) error { return le.Cooldown(ctx, time.Millisecond) },
		} {
			m := l.Mutex(redistest.Name(t))
			f := func(ctx context.Context) error {
				le, _ := FromContext(ctx)
				return end(ctx, le)
			}
			if err := m.Do(t.Context(), f); err != nil {
				t.Errorf("Do with %s: %v", name, err)
			}
			redistest.Eventually(t, soon, func() bool {
				locked, err := m.Locked(t.Context())
				return !locked && err == nil
			}, "nobody holding")
		}
	})
}
