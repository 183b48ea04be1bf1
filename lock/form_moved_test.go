package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// While a Cluster moves a slot to another node, a waiter must not delete a string lock of
// its holder: a script cannot write the key again there.
func TestForm_slotThatMovesKeepsTheHolder(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() != redistest.KindCluster {
			return // it has no slots
		}
		s = redistest.StartCluster(t, 0)
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		waiter := handle(newLocker(t, s.Client(t)), m)
		le := mustTry(t, m)
		asked := false
		s.MoveSlot(t, m.Key(), func() {
			if asked {
				return // the key has moved by now
			}
			asked = true // while the slot is open at both ends
			_, err := waiter.locker.conn.Run(t.Context(), wire.AskScript, m.keys, []any{
				"AAAAAAAAAAAAAAAA.3000.1|waiter|", int64(31000), int64(3000),
			})
			if err == nil || !exchange.Transient(err) {
				t.Errorf("an ask that would wait, in a slot that moves: %v, want an error after which it asks again", err)
			}
		})
		if !asked {
			t.Fatal("nothing was asked while the slot moved")
		}
		if err := le.Extend(t.Context(), DefaultTTL); err != nil {
			t.Fatalf("the holder has lost its lock: %v", err)
		}
		w := inLine(t, waiter, 1)
		mustUnlock(t, le)
		mustUnlock(t, w.got(t))
		if err := le.endErr(); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Err of a lease that was unlocked: %v", err)
		}
		free(t, m, soon)
	})
}

// A waiter and an Extend that meet a string lock in a slot that moves go on asking until its key
// has moved.
func TestForm_slotThatMovesIsWaitedFor(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() != redistest.KindCluster {
			return // it has no slots
		}
		s = redistest.StartCluster(t, 0)
		rdb := s.Client(t)
		k := newTap(rdb)
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		var waiter *attempt
		extended := make(chan error, 1)
		s.MoveSlot(t, m.Key(), func() {
			if waiter != nil {
				return // the key has moved by now
			}
			go func() { extended <- le.Extend(t.Context(), 2*time.Minute) }() // longer than a string tells
			waiter = lockBeside(t, handle(newLocker(t, rdb), m))
			// The pauses up to here are longer than half a second.
			redistest.Eventually(t, soon, func() bool { return k.count(wire.AskScript) > 7 || !waiter.pending() }, "asks while the slot is open")
		})
		if err := <-extended; err != nil {
			t.Errorf("Extend: %v", err)
		}
		waiting(t, m, 1)
		mustUnlock(t, le)
		mustUnlock(t, waiter.got(t))
		free(t, m, soon)
	})
}
