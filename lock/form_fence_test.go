package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// Fences grow from one fenced holder to the next, while others take the same lock without a fence,
// as a string or not, and while waiters widen it.
func TestForm_fencesGrowThroughBothForms(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		plain := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Minute))
		fenced := handle(newLocker(t, s.Client(t)), plain, TTL(time.Minute), Fenced())
		last := int64(0)
		grows := func(le *Lease) {
			t.Helper()
			fence, err := le.Fence()
			if again, _ := le.Fence(); fence <= last || again != fence || err != nil {
				t.Fatalf("fence %d, and again %d, after %d, %v; %s", fence, again, last, err, dump(plain))
			}
			last = fence
		}
		for i := range 40 {
			first, second := plain, fenced
			if i%2 == 0 {
				first, second = fenced, plain
			}
			plain.locker.contended = newContendedKeys() // so that each second turn begins as a string
			le := mustTry(t, first)
			wantForm(t, plain, map[bool]string{true: "string", false: "zset"}[first == plain])
			w := inLine(t, second, 1)
			if first == fenced {
				grows(le)
			}
			mustUnlock(t, le)
			next := w.got(t)
			if second == fenced {
				grows(next)
			}
			mustUnlock(t, next)
		}
	})
}

// A fence is known from the grant, after the end of the lease too. It costs no command, and a lease
// of a lock without the option has none, in either form.
func TestForm_fenceIsKnownFromTheGrant(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		m := newLocker(t, rdb).Mutex(redistest.Name(t), Fenced())
		warm(t, m)
		commands := newTap(rdb)
		le := mustTry(t, m)
		taken := commands.count(wire.AskScript)
		first, err := le.Fence()
		if err != nil || first <= 0 || taken != 1 {
			t.Fatalf("fence %d, %v, by %d asks", first, err, taken)
		}
		commands.reset()
		if _, err := le.Fence(); err != nil || commands.total() != 0 {
			t.Errorf("%v, by %d commands", err, commands.total())
		}
		mustUnlock(t, le)
		if fence, err := le.Fence(); fence != first || err != nil {
			t.Errorf("after Unlock: %d, %v; want %d", fence, err, first)
		}
		for what, m := range map[string]*Lock{
			"a string":     m.locker.Mutex(redistest.Name(t) + "string"),
			"a sorted set": asksAlways(newLocker(t, rdb)).Mutex(redistest.Name(t) + "set"),
			"a semaphore":  m.locker.Semaphore(redistest.Name(t)+"semaphore", 2),
		} {
			le := mustTry(t, m)
			if fence, err := le.Fence(); fence != 0 || !errors.Is(err, ErrNotFenced) {
				t.Errorf("%s: %d, %v; want ErrNotFenced", what, fence, err)
			}
			mustUnlock(t, le)
		}
	})
}

// In a split brain the first holder's fence is below that of its successor, whoever looks at its own
// first: the number comes with the grant.
func TestForm_fenceAfterASplit(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	name := redistest.Name(t)
	a, b := newLocker(t, s.Client(t)), newLocker(t, replica.Client(t))
	mustUnlock(t, mustTry(t, a.Mutex("warm")))
	replica.Forget(t) // the replica does not hear of what comes now
	old := mustTry(t, a.Mutex(name, Fenced()))
	replica.Promote(t)
	next := mustTry(t, b.Mutex(name, Fenced()))
	nextFence := fenceOf(t, next)
	if oldFence := fenceOf(t, old); oldFence >= nextFence {
		t.Errorf("the fence of the earlier holder is above that of its successor, by %d us", oldFence-nextFence)
	}
}

// A semaphore that a control limits to one gives each holder its own fence, in the order of the
// grants, also when the limit goes while one holds.
func TestForm_fencesUnderALimitOfOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Semaphore("report", 5, Fenced())
		redistest.Must(t, l.Controls().SetLimit(t.Context(), "report", 1, ""))
		a := mustTry(t, m)
		redistest.Must(t, l.Controls().ClearLimit(t.Context(), "report"))
		b, c := mustTry(t, m), mustTry(t, m)
		if fa, fb, fc := fenceOf(t, a), fenceOf(t, b), fenceOf(t, c); fa >= fb || fb >= fc {
			t.Errorf("fences %d, %d, %d in the order of the grants", fa, fb, fc)
		}
	})
}
