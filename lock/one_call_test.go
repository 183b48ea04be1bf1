package lock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
)

// One at a time for a note of a lock, also when its work comes back, parks and
// is called anew before the Caller has returned.
func TestOneCallAtATimeForANote(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		began, goOn := make(chan int32, 10), make(chan inside.Fate)
		var under, made atomic.Int32
		l := newLocker(t, s.Client(t), calls(func(context.Context, string, string) inside.Fate {
			began <- under.Add(1)
			defer under.Add(-1)
			made.Add(1)
			select {
			case fate := <-goOn:
				return fate
			case <-t.Context().Done():
				return inside.FateUnsure
			}
		}))
		m := l.Mutex(redistest.Name(t))
		job := noted(m, "job")
		held := mustTry(t, m)
		mustPark(t, job)
		mustUnlock(t, held)
		come(t, began, "the first call")
		held = mustTry(t, m)
		mustPark(t, job) // it came, in vain
		ticket, _, _ := away(t, job)
		mustUnlock(t, held)
		if _, called, _ := away(t, job); !called {
			t.Fatalf("not called anew; %s", dump(m))
		}
		l.parking.StartChecks()
		goOn <- inside.FateGone // which is of the past
		if n := come(t, began, "the second call"); n != 1 {
			t.Errorf("%d calls at once for one note", n)
		}
		if got, called, ok := away(t, job); !ok || !called || got != ticket {
			t.Errorf("a fate of the past changed what is there; %s", dump(m))
		}
		goOn <- inside.FateComing
		mustUnlock(t, mustTry(t, job))
		free(t, m, 0)
	})
}

// One at a time in all processes: two of them that look at parked work before either
// has it run would have it run twice. A process that dies over a call does not keep the
// others from it for good.
func TestOneCallAtATimeInAllProcesses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		began, goOn := make(chan struct{}), make(chan struct{})
		begin := sync.OnceFunc(func() { close(began) })
		first := newLocker(t, s.Client(t), calls(func(ctx context.Context, _, _ string) inside.Fate {
			begin()
			<-goOn
			if by, ok := ctx.Deadline(); !ok || time.Until(by) > parking.CallTime/2 {
				t.Errorf("the call may go on until %s", by)
			}
			return inside.FateUnsure
		}))
		m := first.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		mustPark(t, noted(m, "job"))
		mustUnlock(t, held)
		come(t, began, "the first call")

		c, refused := answers(map[string]inside.Fate{"job": inside.FateComing}), make(chan struct{}, 100)
		var hook redistest.FailHook
		hook.After(func(cmd redis.Cmder) error {
			args := cmd.Args()
			if reply, _ := cmd.(*redis.Cmd); reply != nil && reply.Val() != int64(0) && slices.Contains(args, any(m.Key()+":call:job:claim")) {
				refused <- struct{}{}
			}
			return nil
		})
		rdb := s.Client(t)
		rdb.AddHook(&hook)
		second := newLocker(t, rdb, calls(c.call))
		mustUnlock(t, mustTry(t, handle(second, m))) // which says that job is called
		come(t, refused, "the second call, which is refused")
		if n := len(c.of("job")); n != 0 {
			t.Errorf("%d calls beside the first", n)
		}
		close(goOn)
		c.called(t, "job", 1)
		mustUnlock(t, mustTry(t, noted(m, "job")))
		free(t, m, 0)
	})
}
