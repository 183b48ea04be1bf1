package lock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// twins makes two handles of a semaphore with one note, on Lockers of their own, that
// are not to hold it at once, and a third with another note, for several holders.
func twins(t *testing.T, s *redistest.Server, limit int) (one, two, other *Lock) {
	t.Helper()
	name := redistest.Name(t)
	of := func(options ...Option) *Lock {
		return newLocker(t, s.Client(t)).Semaphore(name, limit, options...)
	}
	const note = "queue/task"
	return of(Note(note), onePerNote()), of(Note(note), onePerNote()), of(Note("another|" + note))
}

// While a holder has the note, whoever asks with it gets no second slot, and is told of
// that holder; others get theirs.
func TestOnePerNote_refusesASecondSlot(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, other := twins(t, s, 4)
		mustTry(t, other)
		held := mustTry(t, one)
		mustTry(t, other)
		if busy := mustBeBusy(t, two); busy.Note != one.note {
			t.Errorf("TryLock beside a holder with the note names %q", busy.Note)
		}
		for what, yield := range map[string]chan struct{}{"parking": closedYield, "waiting": make(chan struct{})} {
			_, err := two.lockOrPark(t.Context(), yield)
			if busy := wantBusy(t, err); busy.Parked || busy.Note != one.note {
				t.Errorf("LockOrPark, %s, beside a holder with the note: %v", what, err)
			}
		}
		mustUnlock(t, mustTry(t, other))
		mustUnlock(t, held)
		mustUnlock(t, mustTry(t, two))
	})
}

// Whoever waits with the note of a holder is passed over by releases and asks: the slot
// goes to those behind it, and to newcomers. It is served, as the first, when the
// holder leaves.
func TestOnePerNote_aWaiterIsPassedOver(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, other := twins(t, s, 2)
		held, second := mustTry(t, one), mustTry(t, other)
		twin := inLine(t, two, 1)
		behind := inLine(t, other, 2)
		mustUnlock(t, second)
		if n := band(t, two, "h:"); n != 2 {
			t.Errorf("the release passed over both in line, not the first one only; %s", dump(two))
		}
		second = behind.got(t)
		mustUnlock(t, second)
		second = mustTry(t, other) // a newcomer
		// Its own asks, once a second, get no slot either.
		mustUnlock(t, second)
		asks := func() int { return int(-stored(t, two)["d:"+twinBody(t, two)]) }
		first := asks()
		redistest.Eventually(t, soon, func() bool { return asks() > first }, "a refresh of the waiter")
		if !twin.pending() || band(t, two, "h:") != 1 {
			t.Fatalf("the waiter holds beside a holder with its note; %s", dump(two))
		}
		second = mustTry(t, other)
		last := inLine(t, other, 2)
		mustUnlock(t, held)
		got := twin.got(t)
		if !last.pending() {
			t.Error("one behind was served before the waiter whose twin left")
		}
		mustUnlock(t, got)
		mustUnlock(t, last.got(t))
		mustUnlock(t, second)
		free(t, two, soon)
	})
}

// twinBody is the body of the only waiter.
func twinBody(t *testing.T, m *Lock) (body string) {
	t.Helper()
	for member := range stored(t, m) {
		if rest, ok := strings.CutPrefix(member, "e:"); ok {
			body = rest
		}
	}
	return body
}

// Of two that wait with one note, one has a slot and the other waits for it, though
// there are slots for both; also when they ask at the same moment.
func TestOnePerNote_twoWaitersTakeTurns(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, other := twins(t, s, 2)
		a, b := mustTry(t, other), mustTry(t, other)
		first, second := inLine(t, one, 1), inLine(t, two, 2)
		mustUnlock(t, a)
		mustUnlock(t, b)
		held := first.got(t)
		if band(t, one, "h:") != 1 || !second.pending() {
			t.Fatalf("two hold with one note; %s", dump(one))
		}
		mustUnlock(t, held)
		mustUnlock(t, second.got(t))
		free(t, one, soon)
	})
}

// A holder that died keeps its note from others until its deadline only.
func TestOnePerNote_aDeadHolderIsSucceeded(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, _ := twins(t, s, 2)
		one = one.locker.Semaphore(one.name, 2, Note(one.note), onePerNote(), TTL(time.Second), NoRenew())
		mustTry(t, one)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		le, err := two.Lock(ctx)
		redistest.Must(t, err)
		mustUnlock(t, le)
	})
}

// Without the option a note may be held several times, and a mutex is what it was.
func TestOnePerNote_isAWish(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 2, Note("note"))
		mustTry(t, m)
		mustTry(t, m)
		mutex := l.Mutex(redistest.Name(t)+"mutex", Note("note"), onePerNote())
		held := mustTry(t, mutex)
		w := inLine(t, mutex, 1)
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
	})
}
