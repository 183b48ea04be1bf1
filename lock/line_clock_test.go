package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// Redis' clock is stepped back by 10 s after a grant of which the waiter hears too
// late. The busy answer from after the step has an earlier time than that grant.
func TestRule07_GrantFromBeforeAClockStepProvesNothing(t *testing.T) {
	t.Parallel()
	const grantedUS, answeredUS = 20_000_000, 10_000_000
	l := newLocker(t, redistest.Mini(t).Client(t))
	busy := wire.Answer{ServerUS: answeredUS, Deadline: time.Minute, Place: 1}
	t.Run("heard before the ask", func(t *testing.T) {
		t.Parallel()
		w := hearing(l.Mutex(redistest.Name(t)), grantedUS-1000)
		l.line.mu.Lock()
		w.pending = &pendingAsk{mode: modeJoin}
		l.line.mu.Unlock()
		l.line.onMessage(wire.Message{Token: w.lease.token, Fence: 7, ServerUS: grantedUS})
		l.line.handleReply(w, busy, nil, time.Now().Add(time.Microsecond))
		if w.finished() {
			t.Error("a grant is believed that the answer to a later ask refutes")
		}
		l.line.leave(w)
	})
	t.Run("heard before an ask that took longer than the step", func(t *testing.T) {
		t.Parallel()
		w := hearing(l.Mutex(redistest.Name(t)), grantedUS-2000)
		l.line.mu.Lock()
		w.pending = &pendingAsk{mode: modeJoin}
		l.line.mu.Unlock()
		l.line.onMessage(wire.Message{Token: w.lease.token, Fence: 7, ServerUS: grantedUS})
		steppedBy1ms := wire.Answer{ServerUS: grantedUS - 1000, Deadline: time.Minute, Place: 1}
		l.line.handleReply(w, steppedBy1ms, nil, time.Now().Add(time.Microsecond))
		if w.finished() {
			t.Error("a grant is believed that the answer to a later ask refutes")
		}
		l.line.leave(w)
	})
	t.Run("heard after the ask", func(t *testing.T) {
		t.Parallel()
		w := hearing(l.Mutex(redistest.Name(t)), answeredUS)
		l.line.onMessage(wire.Message{Token: w.lease.token, Fence: 7, ServerUS: grantedUS})
		if w.finished() {
			t.Error("a grant is believed that is later than Redis' clock can be")
		}
		l.line.leave(w)
	})
}

// A grant that comes a while after the last answer is believed, as Redis' clock
// went on meanwhile.
func TestRule07_GrantIsBelievedWhileTheClockGoesOn(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	w := hearing(l.Mutex(redistest.Name(t)), 1_000_000)
	w.askedAt = time.Now().Add(-time.Second)
	l.line.onMessage(wire.Message{Token: w.lease.token, Fence: 7, ServerUS: 2_000_000})
	if !w.finished() {
		t.Error("a grant a second after the last answer is not believed")
	}
}
