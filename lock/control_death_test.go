package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// A holder's process is killed while the lock is paused: the lease ends at its deadline,
// and the lock goes to the next in line when it is resumed, not before. The operator's
// process may have died meanwhile.
func TestControls_holderKilledWhilePaused(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t) // of its own: the child has the default prefix
	name := redistest.Name(t)
	l := newLocker(t, s.Client(t), ownServer)
	m := l.Mutex(name)
	c := startChild(t, s, time.Second, name)
	c.has(t, 1)
	w := inLine(t, m, 1)
	operator := newLocker(t, s.Client(t), ownServer)
	pause(t, operator, name, time.Time{}, "")
	knows(t, l, name)
	c.kill()
	_ = operator.Close()
	redistest.Eventually(t, soon, func() bool {
		holders, err := m.Holders(t.Context())
		return err == nil && len(holders) == 0
	}, "the end of the killed holder's lease")
	// The waiter asks again within a second, and is answered.
	asked := time.Now()
	redistest.Eventually(t, soon, func() bool {
		l.line.mu.Lock()
		defer l.line.mu.Unlock()
		for _, waiter := range l.line.waiters {
			return askedAt(waiter).After(asked)
		}
		return false
	}, "another ask of the waiter")
	if !w.pending() {
		t.Fatal("the waiter has left the line while the lock was paused")
	}
	if holders, err := m.Holders(t.Context()); err != nil || len(holders) > 0 {
		t.Errorf("%v hold a lock that is paused, %v", holders, err)
	}
	resume(t, l, name)
	mustUnlock(t, w.got(t))
}
