package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/operate"
	"github.com/automutex/automutex/internal/redistest"
)

// oddPrefix is one of this test's own, made of what means something in patterns.
func oddPrefix(t *testing.T) string {
	t.Helper()
	return redistest.Name(t) + `*?[a-z]\:^`
}

func prefixed(prefix string) func(*Options) { return func(o *Options) { o.Prefix = prefix } }

func TestList(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := oddPrefix(t)
		rdb := s.Client(t)
		l := newLocker(t, rdb, prefixed(prefix), owner("lister"), func(o *Options) { o.TTL = time.Hour })
		want := map[string]inside.Info{}
		for i := range 300 {
			m := l.Semaphore("lock "+fmt.Sprint(i), 3, Note(fmt.Sprint(i)))
			info := inside.Info{Key: m.Key(), Held: 1 + i%3, Waiting: i % 2}
			for range info.Held {
				mustAsk(t, m, m.newLease(), 0)
			}
			if info.Waiting > 0 {
				one := l.Mutex("lock " + fmt.Sprint(i))
				mustAsk(t, one, one.newLease(), time.Hour)
			}
			want[m.Key()] = info
		}
		// Not ours, or no locks, or nothing in them.
		decoy := newLocker(t, rdb, prefixed(strings.ReplaceAll(strings.ReplaceAll(prefix, "*", "XX"), "?", "Y")))
		mustTry(t, decoy.Mutex("decoy"))
		mustTry(t, newLocker(t, rdb, prefixed(prefix+"x")).Mutex("decoy"))
		mustTry(t, newLocker(t, rdb, prefixed("x"+prefix)).Mutex("decoy"))
		if _, err := l.Pool("pool").Put(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		expired := l.Mutex("expired", TTL(inside.MinTTL))
		mustAsk(t, expired, expired.newLease(), 0)
		foreign := func(err error) {
			t.Helper()
			redistest.Must(t, err)
		}
		foreign(rdb.Set(t.Context(), prefix+":{string}", "x", 0).Err())
		foreign(rdb.HSet(t.Context(), prefix+":{hash}", "a", "b").Err())
		foreign(rdb.RPush(t.Context(), prefix+":{list}", "a").Err())
		foreign(rdb.SAdd(t.Context(), prefix+":{set}", "a").Err())
		foreign(rdb.ZAdd(t.Context(), prefix+":{zset}:more", redis.Z{Score: 1e13, Member: "a"}).Err())
		redistest.Eventually(t, soon, func() bool { ok, _ := expired.existsNow(t.Context()); return !ok }, "a deadline")

		got := map[string]inside.Info{}
		for info, err := range l.list(t.Context()) {
			if err != nil {
				t.Fatalf("List: %v", err)
			}
			if _, twice := got[info.Key]; twice {
				t.Errorf("%q is listed twice", info.Key)
			}
			if len(info.Holders) != info.Held {
				t.Errorf("%q: %d held, %d holders", info.Key, info.Held, len(info.Holders))
			}
			for _, h := range info.Holders {
				if h.Owner != "lister" || h.ExpiresIn <= 0 || h.ExpiresIn > time.Hour+time.Second {
					t.Errorf("%q is held by %+v", info.Key, h)
				}
			}
			info.Holders = nil
			got[info.Key] = info
		}
		if !maps.EqualFunc(got, want, func(a, b inside.Info) bool { return a.Key == b.Key && a.Held == b.Held && a.Waiting == b.Waiting }) {
			t.Errorf("List gave %d locks, want %d:\n%v\n%v", len(got), len(want), got, want)
		}

		// It may stop early, and be used again.
		n := 0
		for _, err := range l.list(t.Context()) {
			if err != nil {
				t.Fatalf("List after %d locks: %v", n, err)
			}
			if n++; n == 7 {
				break
			}
		}
		if n != 7 {
			t.Errorf("stopped after %d", n)
		}

		// And ends with its context, at the latest with the next batch.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		n = 0
		for _, err := range l.list(ctx) {
			if n++; !errors.Is(err, context.Canceled) {
				t.Errorf("List with an ended context: %v", err)
			}
		}
		if n != 1 {
			t.Errorf("List with an ended context yielded %d times, want an error", n)
		}
		if _, err := l.sweep(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Sweep with an ended context: %v", err)
		}
	})
}

// The context ends while the keys are walked.
func TestListEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t), prefixed("few"))
	fill := s.Client(t).Pipeline()
	for i := range 20_000 {
		fill.ZAdd(t.Context(), fmt.Sprintf("few:{%d}", i), redis.Z{Score: 9e13, Member: "h:a.1.1|o|"})
	}
	if _, err := fill.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	var last error
	for _, err := range l.list(ctx) {
		n++
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) || n > 3*operate.ScanCount {
		t.Errorf("List yielded %d times, last %v; want context.Canceled soon", n, last)
	}
	// Close from inside does not wait for the loop that it is called from.
	n = 0
	for _, err := range l.list(t.Context()) {
		if n++; n == 1 {
			_ = l.Close()
		}
		last = err
	}
	if !errors.Is(last, ErrClosed) {
		t.Errorf("List of a Locker that was closed meanwhile: %v, want ErrClosed", last)
	}
	if _, err := l.sweep(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Sweep of a closed Locker: %v, want ErrClosed", err)
	}
}

// A server of this test's own tells which commands it ran.
func TestListNeverUsesKeys(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	l := newLocker(t, rdb)
	fill := rdb.Pipeline()
	for i := range 5_000 {
		fill.Set(t.Context(), "other:"+fmt.Sprint(i), i, 0)
	}
	if _, err := fill.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustTry(t, l.Mutex("x"))
	n := 0
	for _, err := range l.list(t.Context()) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := l.sweep(t.Context()); removed != 0 || err != nil {
		t.Errorf("Sweep: %d, %v", removed, err)
	}
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	redistest.Must(t, err)
	if n != 1 || !strings.Contains(stats, "cmdstat_scan:") || strings.Contains(stats, "cmdstat_keys:") {
		t.Errorf("List gave %d locks, with %s", n, stats)
	}
}

// SCAN may tell a key several times.
func TestListTellsEachLockOnce(t *testing.T) {
	t.Parallel()
	rdb := redistest.Real(t).Client(t)
	l := newLocker(t, rdb, prefixed(redistest.Name(t)))
	mustTry(t, l.Mutex("x"))
	var hook redistest.FailHook
	hook.After(func(cmd redis.Cmder) error {
		if scan, ok := cmd.(*redis.ScanCmd); ok {
			keys, cursor := scan.Val()
			scan.SetVal(append(keys, keys...), cursor)
		}
		return nil
	})
	rdb.AddHook(&hook)
	n := 0
	for _, err := range l.list(t.Context()) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 1 {
		t.Errorf("a lock is listed %d times", n)
	}
}

// What hides a Cluster must not have one node walked for all.
func TestListNeedsAClientThatItKnows(t *testing.T) {
	t.Parallel()
	l := newLocker(t, struct{ redis.UniversalClient }{redistest.Mini(t).Client(t)})
	for _, err := range l.list(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), "*redis.ClusterClient") {
			t.Errorf("List with a client of another type: %v", err)
		}
	}
	if _, err := l.sweep(t.Context()); err == nil {
		t.Error("Sweep with a client of another type succeeded")
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb, prefixed(oddPrefix(t)))
		past := float64(serverNow(t, l.Mutex("x")).UnixMilli() - 1)
		dead := func(m *Lock, members ...redis.Z) {
			t.Helper()
			redistest.Must(t, rdb.ZAdd(t.Context(), m.Key(), members...).Err())
		}
		stale := func(i int) []redis.Z { // a waiter of a process that is gone
			id := fmt.Sprintf("gone.3000.%d|o|", i)
			return []redis.Z{{Member: "e:" + id, Score: 2e15 + float64(i)}, {Member: "d:" + id, Score: -past}}
		}

		// Three dead holders of one lock and a gate that is open; the key goes.
		gone := l.Mutex("gone")
		dead(gone, redis.Z{Member: "h:a.1.1|o|", Score: past}, redis.Z{Member: "h:a.1.2|o|", Score: past - 1e6},
			redis.Z{Member: "h:a.1.3|o|", Score: past}, redis.Z{Member: "f", Score: -2.7e15},
			redis.Z{Member: "g:cooldown:1000", Score: 1.7e9})
		// A live holder, three dead waiters among live ones.
		mixed := l.Mutex("mixed")
		holder, waiter := mixed.newLease(), mixed.newLease()
		mustAsk(t, mixed, holder, 0)
		mustAsk(t, mixed, waiter, time.Hour)
		for i := range 3 {
			dead(mixed, stale(i)...)
		}
		dead(mixed, stale(3)[1]) // half of one does not count
		// A dead holder before a live waiter, who is granted the slot, behind a dead one.
		granted := l.Mutex("granted")
		next := granted.newLease()
		mustAsk(t, granted, granted.newLease(), 0)
		mustAsk(t, granted, next, time.Hour)
		for member := range stored(t, granted) {
			if strings.HasPrefix(member, "h:") {
				dead(granted, redis.Z{Member: member, Score: past})
			}
		}
		dead(granted, stale(0)...)
		// More than one run of the script removes.
		many := l.Mutex("many")
		var crowd []redis.Z
		for i := range 2*operate.SweepMost + 5 {
			crowd = append(crowd, stale(i)...)
		}
		dead(many, crowd...)
		// Live, and somebody else's.
		live := mustTry(t, l.Semaphore("live", 2))
		redistest.Must(t, rdb.Set(t.Context(), l.prefix+":{string}", "x", 0).Err())
		before := stored(t, live.lock)

		want := 3 + 3 + 2 + 2*operate.SweepMost + 5
		if n, err := l.sweep(t.Context()); n != want || err != nil {
			t.Errorf("Sweep: %d, %v; want %d", n, err, want)
		}
		if n, err := l.sweep(t.Context()); n != 0 || err != nil {
			t.Errorf("second Sweep: %d, %v; want 0", n, err)
		}
		for _, m := range []*Lock{gone, many} {
			if n := rdb.Exists(t.Context(), m.Key()).Val(); n != 0 {
				t.Errorf("%q is still there; %s", m.name, dump(m))
			}
		}
		z := stored(t, mixed)
		if _, ok := z["e:"+waiter.body]; !ok || len(z) != 4 || band(t, mixed, "h:") != 1 {
			t.Errorf("of a live holder, a live and three dead waiters is left: %v", z)
		}
		if _, ok := holds(t, next); !ok || band(t, granted, "h:") != 1 || band(t, granted, "e:") != 0 {
			t.Errorf("the live waiter was not granted the slot; %s", dump(granted))
		}
		if after := stored(t, live.lock); !maps.Equal(after, before) {
			t.Errorf("a live lock went from %v to %v", before, after)
		}
		audit(t, granted)
		audit(t, mixed)
	})
}

// The waiters of a process that is gone.
func TestSweepOfADeadProcess(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes three seconds")
	}
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex("x")
	le := mustTry(t, m)
	c := startChild(t, s, time.Minute, m.name)
	waiting(t, m, 1)
	c.kill()
	redistest.Eventually(t, soon, func() bool {
		n, err := l.sweep(t.Context())
		if n > 1 || err != nil {
			t.Fatalf("Sweep: %d, %v", n, err)
		}
		return n == 1
	}, "a stale waiter")
	if n, _ := m.Waiting(t.Context()); n != 0 {
		t.Errorf("%d in line; %s", n, dump(m))
	}
	mustUnlock(t, le)
}
