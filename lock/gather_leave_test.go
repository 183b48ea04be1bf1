package lock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// A claim that waits for its turn to be sent ends with its context, and is not sent later.
func TestGather_waitingCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := &gate{open: make(chan struct{})}
	rdb := redistest.Mini(t).Client(t)
	rdb.AddHook(g)
	l := newLocker(t, rdb)
	name := redistest.Name(t)
	claimOf := func(part string) *claim { return l.claim(l.Mutex(name, Parts(part)).Key()) }
	var senders sync.WaitGroup // end when the gate opens
	defer senders.Wait()
	open := sync.OnceFunc(func() { close(g.open) })
	defer open()
	for range maxSenders {
		redistest.Go(&senders, func() { _, _ = claimOf("sent").TakeFree(t.Context(), "q/1", time.Minute) })
	}
	redistest.Eventually(t, soon, func() bool { return len(g.seen()) == maxSenders }, "the first callers sending")
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := claimOf("waits").TakeFree(ctx, "q/2", time.Minute)
		left <- err
	}()
	waitingSets := func() int {
		l.gather.mu.Lock()
		defer l.gather.mu.Unlock()
		n := 0
		for _, box := range l.gather.masters {
			n += len(box.waiting)
		}
		return n
	}
	redistest.Eventually(t, soon, func() bool { return waitingSets() == 1 }, "one caller waiting for its turn")
	cancel()
	if err := come(t, left, "the end of a call whose context has ended"); !errors.Is(err, context.Canceled) {
		t.Errorf("TakeFree whose context ended before its turn: %v; want that it Is %v", err, context.Canceled)
	}
	if n := waitingSets(); n != 0 {
		t.Errorf("%d calls wait for their turn, though all callers have left", n)
	}
	open()
	senders.Wait()
	if taken, err := claimOf("waits").TakeFree(t.Context(), "q/3", time.Minute); !taken || err != nil {
		t.Errorf("the claim that a caller left before its turn: %v, %v; want it free", taken, err)
	}
}
