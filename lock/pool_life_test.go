package lock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

// A taker that dies: without renewal at its deadline, or when its Locker closes.
func TestPoolTakerThatDies(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, die := range map[string]func(t *testing.T, le *Lease, l *Locker){
			"NoRenew": func(*testing.T, *Lease, *Locker) {},
			"Close":   func(_ *testing.T, _ *Lease, l *Locker) { _ = l.Close() },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
				var options []Option
				if name == "NoRenew" {
					options = append(options, NoRenew())
				}
				p := somePool(t, a, append(options, TTL(2*time.Second))...)
				putAll(t, p, "v")
				dead := takes(t, p, "v")
				deadline := stored(t, p.m)["h:v|"+dead.body]
				w := takeBeside(t, poolHandle(b, p, TTL(time.Minute)), 1)
				die(t, dead, a)
				next := w.got(t)
				if next.Value() != "v" || fenceOf(t, next) <= fenceOf(t, dead) {
					t.Errorf("the next has %q with fence %d after %d", next.Value(), fenceOf(t, next), fenceOf(t, dead))
				}
				if early := time.UnixMilli(int64(deadline)).Sub(time.UnixMicro(fenceOf(t, next))); name == "NoRenew" && early > 0 {
					t.Errorf("taken %s before the dead taker's deadline", early)
				}

				// Late, it changes nothing; not even if it did not know.
				_ = dead.Extend(t.Context(), time.Hour)
				if err := dead.Consume(t.Context()); !errors.Is(err, ErrNotHeld) {
					t.Errorf("late Consume: %v, want ErrNotHeld", err)
				}
				dead.consuming.Store(true)
				if _, held, err := dead.release(t.Context()); held || err != nil {
					t.Errorf("late consume: held %v, %v", held, err)
				}
				if _, held, err := dead.release(t.Context()); held || err != nil {
					t.Errorf("late release: held %v, %v", held, err)
				}
				poolAudit(t, poolHandle(b, p))
				info := inspects(t, poolHandle(b, p))
				if info.Free != 0 || info.Taken != 1 || len(info.Holders) != 1 || info.Holders[0].Token != next.Token() {
					t.Errorf("after a late release: %+v", info)
				}
				consumes(t, next)
			})
		}
	})
}

// A late Unlock says so, and leaves the successor alone.
func TestPoolLateUnlock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)), TTL(inside.MinTTL), NoRenew())
		putAll(t, p, "v")
		late := takes(t, p, "v")
		ended(t, late, ErrLost)
		keeper := poolHandle(p.m.locker, p, TTL(time.Minute))
		redistest.Eventually(t, soon, func() bool { n, _ := p.Inspect(t.Context()); return n.Free == 1 }, "the value back")
		le := takes(t, keeper, "v")
		if err := late.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("late Unlock: %v, want ErrNotHeld", err)
		}
		nothingFree(t, p)
		givesBack(t, le)
		// Its time is over by its own clock: not consumed, even if nobody noticed.
		late = takes(t, p, "v")
		ended(t, late, ErrLost)
		if err := late.Consume(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("late Consume: %v, want ErrNotHeld", err)
		}
		consumes(t, takes(t, keeper, "v"))
	})
}

func TestPoolRenewal(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)), TTL(2*time.Second))
		putAll(t, p, "a|b c")
		le := takes(t, p, "a|b c")
		taken := serverNow(t, p.m)
		redistest.Eventually(t, soon, func() bool {
			poolAudit(t, p)
			return serverNow(t, p.m).Sub(taken) > 5*time.Second
		}, "more than two TTLs")
		nothingFree(t, p)
		if !le.Held() {
			t.Fatalf("not renewed; %s", dump(p.m))
		}
		// A granted one as well, and Extend.
		w := takeBeside(t, p, 1)
		givesBack(t, le)
		le = w.got(t)
		if err := le.Extend(t.Context(), time.Hour); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if h := inspects(t, p).Holders; len(h) != 1 || h[0].ExpiresIn < 59*time.Minute {
			t.Errorf("extended by an hour: %+v", h)
		}
		poolAudit(t, p)
		if err := le.Cooldown(t.Context(), time.Hour); err != nil { // a plain Unlock
			t.Errorf("Cooldown: %v", err)
		}
		consumes(t, takes(t, p, "a|b c"))
	})
}

// A pool and a lock of one name have nothing to do with each other.
func TestPoolIsNoLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		p := somePool(t, l)
		m := l.Mutex(p.m.name)
		putAll(t, p, "v")
		taken := takes(t, p, "v")
		mustTry(t, m)
		if ok, err := m.Break(t.Context(), taken.Token()); ok || err != nil {
			t.Errorf("Break of a pool's token: %v, %v", ok, err)
		}
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v", n, err)
		}
		if err := m.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		poolAudit(t, p)
		givesBack(t, taken)
		le := mustTry(t, m)
		if n, err := p.Delete(t.Context()); n != 1 || err != nil {
			t.Errorf("Delete: %d, %v", n, err)
		}
		mustUnlock(t, le)

		// The other way: a pool's key that is something else.
		redistest.Must(t, raw(m).Set(t.Context(), p.m.Key(), "x", 0).Err())
		if _, err := p.Put(t.Context(), "v"); !errors.Is(err, ErrBackend) {
			t.Errorf("Put on a foreign key: %v, want ErrBackend", err)
		}
		if _, err := p.Take(t.Context()); !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) {
			t.Errorf("Take on a foreign key: %v, want ErrBackend", err)
		}
	})
}

func TestPoolDelete(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		p := somePool(t, a, TTL(time.Minute))
		putAll(t, p, "a", "b", "c")
		la, lb := takes(t, p, "a"), takes(t, p, "b")
		listening(t, a)
		if n, err := poolHandle(b, p).Delete(t.Context()); n != 3 || err != nil {
			t.Errorf("Delete: %d, %v; want 3", n, err)
		}
		for _, le := range []*Lease{la, lb} {
			ends(t, le.Bind(t.Context()))
		}
		if err := la.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock after Delete: %v", err)
		}
		if err := lb.Consume(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Consume after Delete: %v", err)
		}
		poolAudit(t, p)
		if n, err := p.Delete(t.Context()); n != 0 || err != nil {
			t.Errorf("second Delete: %d, %v", n, err)
		}

		// Waiters come back by themselves.
		w := takeBeside(t, poolHandle(b, p), 1)
		if _, err := p.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		putAll(t, p, "d")
		if le := w.got(t); le.Value() != "d" {
			t.Errorf("took %q", le.Value())
		}
	})
}

// The key lasts for ever with values in it, and goes with them.
func TestPoolKeyLife(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)), TTL(time.Minute))
		ttl := func() time.Duration { return raw(p.m).PTTL(t.Context(), p.m.Key()).Val() }
		w := takeBeside(t, p, 1)
		if d := ttl(); d <= 0 || d > time.Minute {
			t.Errorf("only waited for: PTTL %s", d)
		}
		putAll(t, p, "a")
		le := w.got(t)
		if d := ttl(); d != -1 {
			t.Errorf("with a value that is taken: PTTL %s", d)
		}
		second := takeBeside(t, p, 1)
		consumes(t, le)
		if d := ttl(); d <= 0 || d > time.Minute {
			t.Errorf("only waited for again: PTTL %s", d)
		}
		second.cancel()
		second.failed(t)
		redistest.Eventually(t, soon, func() bool { return ttl() == -2 }, "the key gone; %s", stringer(func() string { return dump(p.m) }))
	})
}

// More values lapse at once than one call takes back: all are free at once for
// those who look, and each can be taken.
func TestPoolManyLapseAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		p := somePool(t, l, TTL(inside.MinTTL), NoRenew())
		const n = 150
		want := map[string]bool{}
		for i := range n {
			want[fmt.Sprint(i)] = true
		}
		putAll(t, p, slices.Collect(maps.Keys(want))...)
		lapse := func() {
			t.Helper()
			for taken := 0; taken < n; {
				le := p.m.newLease()
				a, err := p.m.ask(t.Context(), le, turn.Try)
				redistest.Must(t, err)
				if taken++; !a.Yours {
					break // a busy machine: some have lapsed and were taken again
				}
			}
			redistest.Eventually(t, soon, func() bool {
				info := inspects(t, p)
				if info.Free+info.Taken != n {
					t.Fatalf("%d free and %d taken of %d", info.Free, info.Taken, n)
				}
				return info.Free == n && len(info.Values) == n && len(info.Holders) == 0
			}, "all deadlines")
		}

		lapse()
		got := map[string]bool{}
		keeper := poolHandle(l, p, TTL(time.Minute))
		var leases []*Lease
		for range n {
			le, err := keeper.m.TryLock(t.Context())
			if err != nil {
				t.Fatalf("TryTake: %v; %s", err, dump(p.m))
			}
			got[le.Value()] = true
			leases = append(leases, le)
		}
		if !maps.Equal(got, want) {
			t.Errorf("took %d different values, want %d", len(got), n)
		}
		poolAudit(t, p)
		for _, le := range leases {
			givesBack(t, le)
		}

		// With more in line than one call serves.
		lapse()
		var bodies []*Lease
		for range n + 10 { // no goroutines behind them
			le := keeper.m.newLease()
			bodies = append(bodies, le)
			mustJoin(t, keeper.m, le, time.Hour)
		}
		poolAudit(t, p)
		info := inspects(t, p)
		if info.Taken != n || info.Waiting != 10 || info.Free != 0 {
			t.Errorf("%d free, %d taken, %d waiting; want 0, %d, 10", info.Free, info.Taken, info.Waiting, n)
		}
		z := stored(t, p.m)
		for _, le := range bodies[n:] {
			if _, ok := z["e:"+le.body]; !ok {
				t.Errorf("one of the last is not in line")
			}
		}
	})
}
