package lock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

// steppedBack is a mutex on a miniredis whose clock the returned function sets: an
// hour back, and then so much further on.
func steppedBack(t *testing.T) (m *Lock, step func(after time.Duration)) {
	t.Helper()
	s := redistest.StartMini(t)
	now := time.Now()
	s.SetTime(t, now)
	return newLocker(t, s.Client(t)).Mutex(redistest.Name(t)), func(after time.Duration) {
		s.SetTime(t, now.Add(after-time.Hour))
	}
}

// Waiters die, and Redis' clock is stepped back by an hour. Without a bound their
// marks would last for that hour, and each of them would be granted the lock.
func TestDeadWaitersCountAsDeadSoonAfterAStepBack(t *testing.T) {
	t.Parallel()
	m, step := steppedBack(t)
	held := mustTry(t, m)
	const dead = 100
	for range dead {
		mustAsk(t, m, m.newLease(), turn.EntryLifetime)
	}
	step(0)
	if err := held.Unlock(t.Context()); err != nil { // the first of the dead is granted it
		t.Fatal(err)
	}
	counts := func() (near, far int) {
		for member, score := range stored(t, m) {
			switch {
			case !strings.HasPrefix(member, "d:"):
			case -score > float64(serverNow(t, m).Add(4*time.Second).UnixMilli()):
				far++
			default:
				near++
			}
		}
		return near, far
	}
	if near, far := counts(); near != 64 || far != dead-1-64 {
		t.Fatalf("%d marks are within 4 s, %d are not; want 64 and %d", near, far, dead-1-64)
	}
	// Two of them hold it for 3 s each, until the marks of all in reach have passed, and
	// two more when the others are. All of them would take 300 s.
	for after := time.Second; ; after += time.Second {
		step(after)
		le, err := m.TryLock(t.Context())
		if err == nil {
			mustUnlock(t, le)
			break
		}
		wantBusy(t, err)
		if after > 20*time.Second {
			t.Fatalf("still busy %s after the step; %s", after, dump(m))
		}
	}
	free(t, m, 0)
}

// A waiter that lives keeps its place when its mark is shortened.
func TestLiveWaiterKeepsItsPlaceThroughAStepBack(t *testing.T) {
	t.Parallel()
	m, step := steppedBack(t)
	held := mustTry(t, m)
	first, second := m.newLease(), m.newLease()
	mustAsk(t, m, first, turn.EntryLifetime)
	mustAsk(t, m, second, turn.EntryLifetime)
	step(0)
	mustUnlock(t, held)
	if _, ok := holds(t, first); !ok {
		t.Fatalf("the first one was not granted the lock; %s", dump(m))
	}
	step(time.Second)
	mustAsk(t, m, second, turn.EntryLifetime) // as each does once a second
	mark := -stored(t, m)["d:"+second.body]
	if want := float64(serverNow(t, m).Add(turn.EntryLifetime).UnixMilli()); mark != want {
		t.Errorf("its mark is %.0f, want %.0f", mark, want)
	}
	if _, _, err := first.release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := holds(t, second); !ok {
		t.Errorf("the second one was not granted the lock; %s", dump(m))
	}
}

// A task is called, does not come, and Redis' clock is stepped back by an hour: the
// call is overdue after its life. The task keeps its place, and the next one is called beside it.
func TestCallIsOverdueSoonAfterAStepBack(t *testing.T) {
	t.Parallel()
	m, step := steppedBack(t)
	held := mustTry(t, m)
	parkAll(t, m, "a", "b")
	want(t, "called", releases(t, held, 1, parking.MinCallLife), []string{"a"})
	place, _, _ := away(t, noted(m, "a"))
	step(0)
	want(t, "right after the step", looksAfter(t, m, 1, parking.MinCallLife), []string{"a"})
	step(parking.MinCallLife + 100*time.Millisecond)
	want(t, "after the life of a call", looksAfter(t, m, 1, parking.MinCallLife), []string{"a", "b"})
	if ticket, called, ok := away(t, noted(m, "a")); !ok || !called || ticket != place {
		t.Errorf("a is there: %v, called: %v, ticket %.0f; want it called, in its place %.0f", ok, called, ticket, place)
	}
}

// More calls than one script looks at: the next looks find the others.
func TestCallsAheadAreShortenedInSteps(t *testing.T) {
	t.Parallel()
	m, step := steppedBack(t)
	held := mustTry(t, m)
	for i := range 100 {
		mustPark(t, noted(m, fmt.Sprint(i)))
	}
	if n := len(releases(t, held, 100, parking.MinCallLife)); n != 100 {
		t.Fatalf("%d called", n)
	}
	step(0)
	ahead := func() (n int) {
		for member, score := range stored(t, m) {
			if strings.HasPrefix(member, "l:") && -score-1e14 > float64(serverNow(t, m).Add(time.Second).UnixMilli()) {
				n++
			}
		}
		return n
	}
	for _, left := range []int{36, 0} {
		looksAfter(t, m, 100, parking.MinCallLife)
		if n := ahead(); n != left {
			t.Errorf("%d calls lie ahead, want %d", n, left)
		}
	}
}
