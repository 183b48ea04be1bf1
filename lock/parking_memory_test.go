package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
)

// What was learned of a line is forgotten also when nothing was ever parked on
// it: else a program that waits on ever new locks would grow.
func TestParkingForgetsLinesThatOnlyWaited(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := New(s.Client(t), Options{Prefix: redistest.Name(t), call: func(context.Context, string, string) inside.Fate { return inside.FateGone }})
		t.Cleanup(func() { _ = l.Close() })
		held, err := l.Mutex("m").TryLock(t.Context())
		redistest.Must(t, err)
		var busy *BusyError
		err = outOfTime(t, l.Mutex("m"), func(ctx context.Context) error {
			return second(l.Mutex("m", Note("n")).lockOrPark(ctx, make(chan struct{})))
		})
		if !errors.As(err, &busy) || busy.Parked {
			t.Fatalf("got %v", err)
		}
		if l.parking.LineCount.Load() != 1 {
			t.Fatal("nothing is known of the line: this test is about what is")
		}
		at := l.parking.Alarm.Pending()
		if at.IsZero() || time.Until(at) > parking.ForgetAfter+time.Second {
			t.Errorf("nobody comes to forget it: %v", at)
		}
		// A minute later.
		l.parking.View(func(lines map[string]*parking.Line) {
			for _, n := range lines {
				n.UsedAt = n.UsedAt.Add(-parking.ForgetAfter - time.Second)
			}
		})
		l.parking.StartChecks()
		if n := l.parking.LineCount.Load(); n != 0 {
			t.Errorf("%d lines are still known", n)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A Locker that can call nobody does not look after what others have parked.
func TestParkingWithoutACallerLooksAfterNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := New(s.Client(t), Options{Prefix: redistest.Name(t)})
		t.Cleanup(func() { _ = l.Close() })
		held, err := l.Mutex("m").TryLock(t.Context())
		redistest.Must(t, err)
		now := make(chan struct{})
		close(now)
		var busy *BusyError
		if _, err := l.Mutex("m", Note("n")).lockOrPark(t.Context(), now); !errors.As(err, &busy) || !busy.Parked {
			t.Fatalf("got %v", err)
		}
		if free, err := held.Release(t.Context()); err != nil || free != 1 {
			t.Errorf("got %d free, %v", free, err)
		}
		l.parking.View(func(lines map[string]*parking.Line) {
			for key, n := range lines {
				if n.Parked || !n.CheckAt.IsZero() {
					t.Errorf("it looks after %s", key)
				}
			}
		})
	})
}
