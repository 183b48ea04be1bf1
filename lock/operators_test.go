package lock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// Holders, waiters and what is free, as Inspect, Available, Waiting, Locked and Holders tell it, also of one that is past
// its deadline and still stored.
func TestInspect(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 2, lock.Note("first"), lock.TTL(time.Minute))
		other := slots(his, m, 2, lock.TTL(time.Hour))
		check := func(when string, available, waits, holders int) []lock.Holder {
			t.Helper()
			n, err1 := m.Available(t.Context())
			w, err2 := m.Waiting(t.Context())
			h, err3 := m.Holders(t.Context())
			locked, err4 := m.Locked(t.Context())
			info, err5 := insider.Inspect(t.Context(), m)
			redistest.Must(t, errors.Join(err1, err2, err3, err4, err5))
			if n != available || w != waits || len(h) != holders || locked != (available == 0) || info.Held != holders || info.Waiting != waits || info.InUse() != (holders > 0) {
				t.Errorf("%s: %d available, %d waiting, locked %v, holders %+v, %+v; want %d, %d, %d holders", when, n, w, locked, h, info, available, waits, holders)
			}
			return h
		}
		check("nobody", 2, 0, 0)
		b := mustTry(t, other)
		check("one", 1, 0, 1)
		a := mustTry(t, m)
		h := check("two", 0, 0, 2)
		if len(h) == 2 { // first deadline first
			if h[0].Owner != "alice" || h[0].Note != "first" || h[0].Token != a.Token() || h[0].ExpiresIn <= 0 || h[0].ExpiresIn > time.Minute+time.Millisecond {
				t.Errorf("first holder %+v", h[0])
			}
			if h[1].Owner != "bob" || h[1].Note != "" || h[1].Token != b.Token() || h[1].ExpiresIn < 59*time.Minute {
				t.Errorf("second holder %+v", h[1])
			}
		}
		if n, err := handle(hers, m).Available(t.Context()); n != 0 || err != nil {
			t.Errorf("with a lower N %d are available, %v", n, err)
		}
		w := inLine(t, m, 1)
		check("one waiting", 0, 1, 2)
		mustUnlock(t, a)
		mustUnlock(t, w.got(t))
		check("granted and released", 1, 0, 1)
		gone := mustTry(t, slots(his, m, 2, lock.TTL(inside.MinTTL), lock.NoRenew()))
		ends(t, gone.Bind(t.Context()), lock.ErrLost)
		redistest.Eventually(t, soon, func() bool { n, err := m.Available(t.Context()); return n == 1 && err == nil }, "a free slot")
		check("one past its deadline", 1, 0, 1)
		mustUnlock(t, b)
		check("nobody again", 2, 0, 0)
	})
}

// What stands under the key is no lock, or Redis refuses: an error, and nothing is changed or told.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t))
		redistest.Must(t, rdb.RPush(t.Context(), m.Key(), "somebody's").Err())
		for what, err := range map[string]error{"TryLock": second(m.TryLock(t.Context())), "Lock": second(m.Lock(t.Context())), "Available": second(m.Available(t.Context()))} {
			if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
				t.Errorf("%s: %v, want ErrBackend", what, err)
			}
		}
		if v := rdb.LRange(t.Context(), m.Key(), 0, -1).Val(); !slices.Equal(v, []string{"somebody's"}) {
			t.Errorf("the value is now %q", v)
		}
		redistest.Must(t, rdb.Del(t.Context(), m.Key()).Err())
		redistest.Must(t, rdb.Close())
		if n, err := slots(l, m, 2).Available(t.Context()); n != 0 || !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Available without Redis: %d, %v; want 0 and ErrBackend", n, err)
		}
		if locked, err := m.Locked(t.Context()); locked || !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Locked without Redis: %v, %v", locked, err)
		}
		if _, err := insider.Line(t.Context(), insider.ByKey(l, m.Key()), inside.Info{}, 10); !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Line without Redis: %v", err)
		}
	})
}

// A key that List tells leads back to its lock, its line and its holders.
func TestByKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, other := newLocker(t, s.Client(t), owner("this|worker")), newLocker(t, s.Client(t), owner("the other"))
		name := redistest.Name(t)
		for i, parts := range [][]string{nil, {"a|b", "{c} %"}, {strings.Repeat("long", 100)}} {
			of := func(l *lock.Locker, note string) *lock.Lock {
				return l.Mutex(name+[]string{"", "", " é"}[i], lock.Note(note), lock.Parts(parts...))
			}
			began := time.Now()
			le := mustTry(t, of(l, "default/1"))
			waiter := inLine(t, of(other, "q|2/x"), 1)
			m := insider.ByKey(l, of(l, "").Key())
			redistest.Must(t, insider.LockErr(m))
			holders, err := m.Holders(t.Context())
			if err != nil || len(holders) != 1 || holders[0].Token != le.Token() || holders[0].Owner != "this|worker" || holders[0].Note != "default/1" {
				t.Errorf("holders %+v, %v", holders, err)
			}
			mustPark(t, of(l, "q/parked"))
			info, err := insider.Inspect(t.Context(), m)
			if err != nil || info.Parked != 1 || info.Waiting != 1 || info.Granted < 0 || info.Granted > time.Since(began)+2*time.Millisecond {
				t.Errorf("%+v, %v", info, err)
			}
			line, err := insider.Line(t.Context(), m, info, 10)
			if err != nil || len(line) != 2 || line[0].Owner != "the other" || line[0].Note != "q|2/x" || line[0].Parked ||
				line[1].Note != "q/parked" || !line[1].Parked || line[1].Called || line[1].Since.Before(line[0].Since) {
				t.Fatalf("line %+v, %v", line, err)
			}
			if ok, err := m.Break(t.Context(), le.Token()); err != nil || !ok {
				t.Errorf("Break: %v, %v", ok, err)
			}
			mustUnlock(t, waiter.got(t))
			mustUnlock(t, mustTry(t, of(l, "q/parked")))
			free(t, m)
			if line, err := insider.Line(t.Context(), m, inside.Info{}, 10); err != nil || len(line) != 0 {
				t.Errorf("line %+v, %v", line, err)
			}
		}
	})
}

func TestByKey_refuses(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for key, want := range map[string]string{
		"":                       "begin",
		"room":                   "begin",
		"other:{room}":           "begin",
		"automutex:{room":        "not closed",
		"automutex:{}":           "nothing",
		"automutex:{room}x":      "follows",
		"automutex:{ports}:pool": "pool",
		"automutex:{a b}":        "escaped",
		"automutex:{\xff}":       "escaped",
		"automutex:{a\x1b[2J}":   "escaped",
		"automutex:{" + strings.Repeat("x", 1<<20): "not closed",
	} {
		m := insider.ByKey(l, key)
		if err := insider.LockErr(m); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.40q: %.600v; want %q", key, err, want)
		}
		if second(m.BreakAll(t.Context())) == nil || second(insider.Line(t.Context(), m, inside.Info{}, 1)) == nil {
			t.Errorf("%.40q: a call did something", key)
		}
	}
}

// List tells each lock of its own prefix once, with its holders, whatever else lies beside; Sweep leaves what lives. Both
// end with their context, and early.
func TestList(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t) + `*?[a-z]\:^` // of what means something in patterns
		rdb, hook := s.Client(t), &redistest.FailHook{}
		l := newLocker(t, rdb, prefixed(prefix), owner("lister"), func(o *lock.Options) { o.TTL = time.Hour })
		want := map[string]int{}
		for i := range 150 {
			m := l.Semaphore(fmt.Sprint("lock ", i), 3)
			for range 1 + i%3 {
				mustTry(t, m)
			}
			want[m.Key()] = 1 + i%3
		}
		for _, other := range []string{strings.ReplaceAll(strings.ReplaceAll(prefix, "*", "XX"), "?", "Y"), prefix + "x", "x" + prefix} {
			mustTry(t, newLocker(t, rdb, prefixed(other)).Mutex("decoy"))
		}
		mustPut(t, pool.New(l, "pool"), 2, "a", "b")
		redistest.Must(t, errors.Join(rdb.HSet(t.Context(), prefix+":{hash}", "a", "b").Err(), rdb.RPush(t.Context(), prefix+":{list}", "a").Err(),
			rdb.SAdd(t.Context(), prefix+":{set}", "a").Err(), rdb.ZAdd(t.Context(), prefix+":{zset}:more", redis.Z{Score: 1e13, Member: "a"}).Err()))
		hook.After(func(cmd redis.Cmder) error { // SCAN may tell a key several times
			if scan, ok := cmd.(*redis.ScanCmd); ok {
				keys, cursor := scan.Val()
				scan.SetVal(append(keys, keys...), cursor)
			}
			return nil
		})
		rdb.AddHook(hook)
		got := map[string]int{}
		for info, err := range insider.List(t.Context(), l) {
			redistest.Must(t, err)
			if _, twice := got[info.Key]; twice || len(info.Holders) != info.Held || info.Holders[0].Owner != "lister" {
				t.Errorf("listed twice: %v, %+v", twice, info)
			}
			got[info.Key] = info.Held
		}
		if !maps.Equal(got, want) {
			t.Errorf("List gave %d locks, want %d:\n%v\n%v", len(got), len(want), got, want)
		}
		if n, err := insider.Sweep(t.Context(), l); n != 0 || err != nil {
			t.Errorf("Sweep of the living: %d, %v", n, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n, last := 0, error(nil)
		for _, err := range insider.List(ctx, l) {
			if n++; n == 7 {
				cancel()
			}
			last = err
		}
		if second(insider.Sweep(ctx, l)) == nil || last != nil && !errors.Is(last, context.Canceled) {
			t.Errorf("List with an ended context: %v", last)
		}
		n = 0
		for range insider.List(t.Context(), l) {
			if n++; n == 7 {
				break
			}
		}
		for _, err := range insider.List(t.Context(), l) { // Close from inside does not wait for the loop that it is called from
			_ = l.Close()
			last = err
		}
		if err := second(insider.Sweep(t.Context(), l)); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("Sweep of a closed Locker: %v, want ErrClosed; List ended with %v", err, last)
		}
	})
}

// The keys are walked by SCAN, and not by KEYS; a client that may hide a Cluster is refused, since one node would be
// walked for all.
func TestListNeverUsesKeys(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t) // which tells the commands that it ran
	rdb := s.Client(t)
	l := newLocker(t, rdb)
	mustTry(t, l.Mutex("x"))
	n := 0
	for _, err := range insider.List(t.Context(), l) {
		redistest.Must(t, err)
		n++
	}
	if removed, err := insider.Sweep(t.Context(), l); removed != 0 || err != nil {
		t.Errorf("Sweep: %d, %v", removed, err)
	}
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil || n != 1 || !strings.Contains(stats, "cmdstat_scan:") || strings.Contains(stats, "cmdstat_keys:") {
		t.Errorf("List gave %d locks, with %s, %v", n, stats, err)
	}
	hidden := newLocker(t, struct{ redis.UniversalClient }{rdb})
	for _, err := range insider.List(t.Context(), hidden) {
		if err == nil || !strings.Contains(err.Error(), "*redis.ClusterClient") {
			t.Errorf("List with a client of another type: %v", err)
		}
	}
	if second(insider.Sweep(t.Context(), hidden)) == nil {
		t.Error("Sweep with a client of another type succeeded")
	}
}

// Arrivals of one lock grow, and are the same when they come again, until they are forgotten.
func TestArrive(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		of := func(i int) *lock.Lock { return l.Mutex(name, lock.Note(fmt.Sprint("note ", i))) }
		var all []int64
		last := int64(0)
		for i := range 30 {
			arrival, first, err := insider.Arrive(t.Context(), of(i))
			if err != nil || !first || arrival <= last {
				t.Fatalf("arrival %d is %d after %d, first: %v, %v", i, arrival, last, first, err)
			}
			last, all = arrival, append(all, arrival)
		}
		for i, want := range all {
			if arrival, first, err := insider.Arrive(t.Context(), of(i)); err != nil || first || arrival != want {
				t.Fatalf("note %d comes again: %d, first: %v, %v, want %d", i, arrival, first, err, want)
			}
		}
		free(t, of(0)) // an arrival makes the idle lock no key
		redistest.Must(t, insider.Forget(t.Context(), of(3)))
		if arrival, first, err := insider.Arrive(t.Context(), of(3)); err != nil || !first || arrival <= last {
			t.Errorf("after Forget: %d, first: %v, %v; the last was %d", arrival, first, err, last)
		}
		plain := l.Mutex(name)
		for what, err := range map[string]error{"Note": insider.Forget(t.Context(), plain), "OnStop": second(insider.AskOlderToStop(t.Context(), of(1)))} {
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("without %s: %v", what, err)
			}
		}
		if _, _, err := insider.Arrive(t.Context(), plain); err == nil || !strings.Contains(err.Error(), "Note") {
			t.Errorf("Arrive without a note: %v", err)
		}
		for _, bad := range []lock.Option{insider.OnStop(0, func() {}), insider.OnStop(1, nil)} {
			if err := insider.LockErr(l.Mutex("x", bad)); err == nil || !strings.Contains(err.Error(), "OnStop") {
				t.Errorf("a bad OnStop: %v", err)
			}
		}
	})
}
