package lock

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// Rule 13: the call sites pass what the headers name: no argument of a script without a default is left out.
func TestRule13_HeadersMatchTheCallSites(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t)).Mutex(redistest.Name(t))
	passed := passedArgs(t, m)
	for _, s := range wire.Scripts {
		if s == wire.PoolPutScript {
			continue // takes as many values as there are
		}
		needed := slices.IndexFunc(s.Args, func(arg string) bool { return strings.Contains(arg, "=") })
		if needed < 0 {
			needed = len(s.Args)
		}
		if n, seen := passed[s.Name]; seen != (s != wire.SweepScript) || n != needed { // a sweep takes none
			t.Errorf("%s: the call sites pass %d arguments for a mutex, the header has %d without =", s.Name, n, needed)
		}
	}
}

// A call leaves out the last arguments that equal their defaults.
func TestShort(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t)).Mutex(redistest.Name(t))
	le := m.newLease()
	zero, one := int64(0), int64(1)
	for _, c := range []struct {
		s    *exchange.Script
		full []any
		want int
	}{
		{wire.AskScript, []any{le, int64(4000), zero, one, zero}, 2},
		{wire.AskScript, []any{le, int64(4000), int64(3000), one, zero}, 3},
		{wire.AskScript, []any{le, int64(4000), zero, int64(2), zero}, 4},
		{wire.AskScript, []any{le, int64(4000), zero, one, one}, 5},
		{wire.ReleaseScript, []any{le, zero, one, zero, parking.MinCallLifeArg}, 1},
		{wire.ReleaseScript, []any{le, one, one, zero, parking.MinCallLifeArg}, 2},
		{wire.ReleaseScript, []any{le, one, int64(2), zero, parking.MinCallLifeArg}, 3},
		{wire.ReleaseScript, []any{le, zero, one, one, parking.MinCallLifeArg}, 4},
		{wire.ReleaseScript, []any{le, one, one, zero, int64(1001)}, 5},
	} {
		if got := c.s.Short(c.full); len(got) != c.want {
			t.Errorf("of %s%v are sent %v, want %d", c.s.Name, c.full[1:], got[1:], c.want)
		}
	}
	// The callers' own arguments are of the kind that is compared.
	if _, args := m.kind.ask(le, turn.Try); len(args) != 2 {
		t.Errorf("a try sends %v, want body and keep", args[1:])
	}
}

// passedArgs runs every operation and counts the arguments that reach the client.
func passedArgs(t *testing.T, m *Lock) map[string]int {
	t.Helper()
	k := newTap(raw(m))
	_, err1 := m.Available(t.Context())
	checkLine(m)
	le := mustTry(t, m)
	mustBeBusy(t, m)
	err2 := errors.Join(le.Extend(t.Context(), time.Second), le.closeGate(t.Context(), time.Second))
	err3 := le.Unlock(t.Context())
	_, err4 := m.BreakAll(t.Context())
	p := m.locker.Pool(redistest.Name(t))
	_, err5 := p.Put(t.Context(), "value")
	taken, err6 := p.m.TryLock(t.Context())
	_, err7 := p.Inspect(t.Context())
	err8 := taken.Unlock(t.Context())
	_, err9 := p.Delete(t.Context())
	named := handle(m.locker, m, Note("note"))
	arrival, _, err10 := named.arrive(t.Context())
	_, err11 := handle(m.locker, m, onStop(arrival, func() {})).askOlderToStop(t.Context())
	err12 := named.forget(t.Context())
	claim := m.locker.claim(m.Key())
	_, err13 := claim.Take(t.Context(), "queue/task", "", time.Minute)
	_, err14 := claim.PassOn(t.Context(), "queue/task", "queue/next", false)
	_, err18 := claim.Start(t.Context(), "queue/next", inside.PhaseWaiting, false, time.Minute)
	_, err15 := claim.Drop(t.Context(), "queue/next")
	ordered := stampTask(t, m.locker, m.locker.Mutex("in order").Key(), "queue/ordered")
	ordered.end(t, ordered.mustRun(t), inside.OutcomeDone)
	headOf(t, m.locker, ordered.key)
	_ = m.locker.byOrder(ordered.key).actOrder(t.Context(), inside.ActNone, inside.OrderItem{}, 0)
	err16 := m.locker.Controls().Pause(t.Context(), m.Key(), time.Time{}, "")
	err17 := m.locker.Controls().Resume(t.Context(), m.Key())
	for _, err := range []error{err16, err17, err18, err1, err2, err3, err4, err5, err6, err7, err8, err9, err10, err11, err12, err13, err14, err15} {
		redistest.Must(t, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	passed := map[string]int{}
	for name, args := range k.first {
		passed[name] = len(args)
	}
	return passed
}
