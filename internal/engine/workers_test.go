package engine

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// office is a server's workers by themselves: who gives way, and when. It asks no Redis.
type office struct {
	Workers
	t *testing.T
}

// comes is a worker that is taken and then waits for the lock called so.
func (o *office) comes(key string, turn int64) (me *WorkerWait, left chan struct{}) {
	left = make(chan struct{}, 1)
	me = &WorkerWait{Key: key, Place: turn, Leave: func() { left <- struct{}{} }}
	o.Begin(me) // first, or yieldAfter may pass
	o.Started()
	return me, left
}

// isDue reports whether somebody is to leave in yieldAfter.
func (o *office) isDue() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.full != nil
}

func (o *office) leaves(left <-chan struct{}) {
	o.t.Helper()
	redistest.Eventually(o.t, redistest.Patience, func() bool { return len(left) > 0 }, "the task leaves")
	if o.isDue() {
		o.t.Error("another one is to leave, before this one has")
	}
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	t.Run("a free worker", func(t *testing.T) {
		o := &office{Workers{Limit: 3}, t}
		o.comes("a", 0)
		if _, _ = o.comes("a", 0); o.isDue() {
			t.Error("a task leaves although a worker is free")
		}
	})
	t.Run("the newest leaves, one at a time", func(t *testing.T) {
		o := &office{Workers{Limit: 3}, t}
		o.Started()
		_, first := o.comes("a", 0)
		second, left := o.comes("b", 0)
		o.leaves(left)
		if o.End(second, false); o.isDue() {
			t.Error("another one is to leave, before that worker is free")
		}
		o.Ended()
		if o.isDue() {
			t.Error("a worker is free, and another leaves")
		}
		o.Started() // one that has work
		o.leaves(first)
	})
	t.Run("got its lock instead", func(t *testing.T) {
		o := &office{Workers{Limit: 2}, t}
		_, first := o.comes("a", 0)
		second, left := o.comes("a", 0)
		o.leaves(left)
		o.End(second, true) // and works on
		o.leaves(first)
	})
	t.Run("the wait is over before", func(t *testing.T) {
		o := &office{Workers{Limit: 2}, t}
		o.Started()
		me, left := o.comes("a", 0)
		if !o.isDue() && len(left) == 0 {
			t.Error("nobody leaves")
		}
		if o.End(me, false); o.isDue() {
			t.Error("nobody waits, and somebody is to leave")
		}
		o.Begin(me)
		if o.Ended(); o.isDue() {
			t.Error("a worker is free, and somebody is to leave")
		}
	})
	t.Run("a timer that was replaced", func(t *testing.T) {
		o := &office{Workers{Limit: 1}, t}
		me, left := o.comes("a", 0)
		o.End(me, false)
		told, stale := len(left), time.NewTimer(0)
		o.yieldOne(&stale)
		o.Ended()
		if len(left) > told || o.isDue() {
			t.Error("a task that does not wait is told to leave")
		}
	})
	t.Run("after one has left, and before one gets its lock, at once", func(t *testing.T) {
		o := &office{Workers{Limit: 2}, t}
		o.Started()
		first, left := o.comes("a", 0)
		o.leaves(left)
		o.End(first, false)
		if o.Ended(); !o.crowded {
			t.Error("the next one is given time")
		}
		next, left := o.comes("a", 0)
		o.leaves(left)
		if o.End(next, true); o.crowded {
			t.Error("one has got its lock, and the next one is given no time")
		}
	})
	t.Run("but not one that waits already", func(t *testing.T) {
		o := &office{Workers{Limit: 2, crowded: true}, t}
		_, left := o.comes("a", 0)
		began := time.Now()
		o.Started()
		<-time.After(yieldAfter / 10)
		if len(left) > 0 && time.Since(began) < yieldAfter {
			t.Error("it leaves before the next one waits or works")
		}
		o.Works()
		o.leaves(left)
	})
	t.Run("in order the last one leaves", func(t *testing.T) {
		o := &office{Workers{Limit: 4}, t}
		o.Started()
		_, last := o.comes("a", 9)
		o.comes("a", 7)
		o.comes("a", 8)
		o.leaves(last)
	})
	t.Run("another key's turn does not count", func(t *testing.T) {
		o := &office{Workers{Limit: 3}, t}
		o.Started()
		o.comes("b", 9)
		_, newest := o.comes("a", 7)
		o.leaves(newest)
	})
}
