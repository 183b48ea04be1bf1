package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func somePool(t *testing.T, l *Locker, options ...Option) *Pool {
	t.Helper()
	return l.Pool(redistest.Name(t), options...)
}

// poolHandle is the pool that p is, on another Locker.
func poolHandle(l *Locker, p *Pool, options ...Option) *Pool {
	return l.Pool(p.m.name, append([]Option{TTL(p.m.ttl)}, options...)...)
}

func putAll(t *testing.T, p *Pool, values ...string) {
	t.Helper()
	if n, err := p.Put(t.Context(), values...); n != len(values) || err != nil {
		t.Fatalf("Put of %d values: %d, %v; %s", len(values), n, err, dump(p.m))
	}
	poolAudit(t, p)
}

// takes is TryTake of a value, and wants it to be that one.
func takes(t *testing.T, p *Pool, value string) *Lease {
	t.Helper()
	le, err := p.TryTake(t.Context())
	if err != nil {
		t.Fatalf("TryTake: %v; %s", err, dump(p.m))
	}
	if le.Value() != value {
		t.Fatalf("took %q, want %q; %s", le.Value(), value, dump(p.m))
	}
	poolAudit(t, p)
	return le
}

func nothingFree(t *testing.T, p *Pool) *BusyError {
	t.Helper()
	le, err := p.TryTake(t.Context())
	if le != nil || err == nil {
		t.Fatalf("took %q; want nothing; %s", le.Value(), dump(p.m))
	}
	return wantBusy(t, err)
}

func consumes(t *testing.T, le *Lease) {
	t.Helper()
	if err := le.Consume(t.Context()); err != nil {
		t.Fatalf("Consume: %v; %s", err, dump(le.lock))
	}
}

func inspects(t *testing.T, p *Pool) PoolInfo {
	t.Helper()
	info, err := p.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// poolAudit holds what is stored against what must be true of a pool at every
// moment: each value is there once and either free or taken by one, each taken
// value is found by its body, and the key lasts for ever while there are values.
func poolAudit(t *testing.T, p *Pool) {
	t.Helper()
	r, err := raw(p.m).Eval(t.Context(), `return {redis.call('PTTL', KEYS[1]), redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}`,
		[]string{p.Key()}).Slice()
	if err != nil {
		t.Fatal(err)
	}
	taken, bodies := map[string]string{}, map[string]string{}
	values, waiters := map[string]bool{}, 0
	members, _ := r[1].([]any)
	for i := 0; i < len(members); i += 2 {
		member, _ := members[i].(string)
		score, _ := members[i+1].(string)
		kind, rest, _ := strings.Cut(member, ":")
		switch kind {
		case "t":
			values[rest] = score != "1"
		case "h":
			value, body, _ := strings.Cut(rest, "|")
			if other, twice := taken[value]; twice {
				t.Errorf("%q is taken by %q and by %q", value, other, body)
			}
			taken[value] = body
		case "b":
			i := strings.LastIndexByte(rest, '|')
			if other, twice := bodies[rest[:i]]; twice {
				t.Errorf("%q has %q and %q", rest[:i], other, rest[i+1:])
			}
			bodies[rest[:i]] = rest[i+1:]
		case "e":
			waiters++
		}
	}
	for value, free := range values {
		if body, ok := taken[value]; free == ok || ok && bodies[body] != value {
			t.Errorf("%q is free: %v, taken by %q, who has %q", value, free, body, bodies[body])
		}
	}
	if len(taken) != len(bodies) || len(taken) > len(values) {
		t.Errorf("%d values, %d taken, %d bodies; %s", len(values), len(taken), len(bodies), dump(p.m))
	}
	ttl, _ := r[0].(int64)
	switch {
	case len(values) > 0 && ttl != -1:
		t.Errorf("a pool with values lasts for %d ms", ttl)
	case len(values) == 0 && waiters > 0 && (ttl < stay.Milliseconds() || ttl > 60_000):
		t.Errorf("a pool that is only waited for lasts for %d ms", ttl)
	case len(values)+waiters == 0 && ttl != -2:
		t.Errorf("an empty pool is stored; %s", dump(p.m))
	}
}

func TestPool(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		p := somePool(t, newLocker(t, rdb, owner("taker")), Note("a note"))
		nothingFree(t, p)
		putAll(t, p, "a", "b", "c")
		a := takes(t, p, "a")
		b := takes(t, p, "b")
		if a.Fence() >= b.Fence() || !a.Held() {
			t.Errorf("fences %d, %d", a.Fence(), b.Fence())
		}

		// A set: what is free or taken is not added again, and keeps its place.
		if n, err := p.Put(t.Context(), "c", "a", "d", "d", "b"); n != 1 || err != nil {
			t.Errorf("Put with duplicates: %d, %v; want 1", n, err)
		}
		info := inspects(t, p)
		if info.Free != 2 || info.Taken != 2 || info.Waiting != 0 || !slices.Equal(info.Values, []string{"c", "d"}) || len(info.Holders) != 2 {
			t.Fatalf("Inspect: %+v", info)
		}
		for i, h := range info.Holders {
			le := []*Lease{a, b}[i]
			if h.Value != le.Value() || h.Token != le.Token() || h.Owner != "taker" || h.Note != "a note" ||
				h.ExpiresIn <= 0 || h.ExpiresIn > DefaultTTL+time.Second {
				t.Errorf("holder %d: %+v", i, h)
			}
		}
		if n, err := p.Available(t.Context()); n != 2 || err != nil {
			t.Errorf("Available: %d, %v; want 2", n, err)
		}

		// Back to the end, or gone for good.
		if free, err := a.Release(t.Context()); free != 3 || err != nil {
			t.Errorf("Release: %d free, %v; want 3", free, err)
		}
		consumes(t, b)
		poolAudit(t, p)
		c, d := takes(t, p, "c"), takes(t, p, "d")
		again := takes(t, p, "a")
		busy := nothingFree(t, p)
		if busy.Holder != "taker" || busy.Note != "a note" || busy.ExpiresIn <= 0 || busy.Name != p.m.name {
			t.Errorf("busy: %+v", busy)
		}
		for _, le := range []*Lease{c, d, again} {
			consumes(t, le)
		}
		poolAudit(t, p)
		if n := rdb.Exists(t.Context(), p.Key()).Val(); n != 0 {
			t.Errorf("all is consumed; %s", dump(p.m))
		}

		// Over is over, and what was consumed can be put again.
		for _, le := range []*Lease{a, b} {
			if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("second Unlock: %v, want ErrNotHeld", err)
			}
			if err := le.Consume(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("second Consume: %v, want ErrNotHeld", err)
			}
		}
		putAll(t, p, "b")
		consumes(t, takes(t, p, "b"))
	})
}

// First in, first out, across calls too, however fast they follow.
func TestPoolIsFirstInFirstOut(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)))
		var want []string
		for i := range 5 {
			var values []string
			for j := range 300 * (1 + i%2*4) { // 1,500 are more than one call
				values = append(values, fmt.Sprintf("%d/%d", i, j))
			}
			want = append(want, values...)
			putAll(t, p, values...)
		}
		info := inspects(t, p)
		if info.Free != len(want) || !slices.Equal(info.Values, want[:maxHolders]) {
			t.Fatalf("%d free, in the order %q ...", info.Free, info.Values[:10])
		}
		// Even behind values that were put by a clock that went ahead.
		if err := raw(p.m).ZIncrBy(t.Context(), p.Key(), 1e9, "t:"+want[len(want)-1]).Err(); err != nil {
			t.Fatal(err)
		}
		putAll(t, p, "behind")
		// Back to the end.
		first := takes(t, p, want[0])
		givesBack(t, first)
		for _, value := range want[1:50] {
			consumes(t, takesQuietly(t, p, value))
		}
		last, err := raw(p.m).ZRevRange(t.Context(), p.Key(), 0, 0).Result()
		if err != nil || len(last) != 1 || last[0] != "t:"+want[0] {
			t.Errorf("the last is %q, %v; want %q", last, err, want[0])
		}
	})
}

// givesBack is mustUnlock for a pool, whose key has no TTL.
func givesBack(t *testing.T, le *Lease) {
	t.Helper()
	if err := le.Unlock(t.Context()); err != nil {
		t.Fatalf("Unlock: %v; %s", err, dump(le.lock))
	}
}

// takesQuietly is takes without the audit.
func takesQuietly(t *testing.T, p *Pool, value string) *Lease {
	t.Helper()
	le, err := p.TryTake(t.Context())
	if err != nil || le.Value() != value {
		t.Fatalf("TryTake: %v, %v, want %q", le, err, value)
	}
	return le
}

// takeBeside calls Take on a goroutine, and returns when Redis has the waiter
// in line, as the n-th of all.
func takeBeside(t *testing.T, p *Pool, n int) *attempt {
	t.Helper()
	a := lockBeside(t, p.m)
	redistest.Eventually(t, soon, func() bool {
		info, err := p.Inspect(t.Context())
		return err == nil && info.Waiting == n
	}, "%d in line; %s", n, stringer(func() string { return dump(p.m) }))
	poolAudit(t, p)
	return a
}

func TestPoolTakersAreServedInOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		lockers := []*Locker{newLocker(t, s.Client(t)), newLocker(t, s.Client(t))}
		p := somePool(t, lockers[0])
		var waiters []*attempt
		for i := range 6 {
			waiters = append(waiters, takeBeside(t, poolHandle(lockers[i%2], p), i+1))
		}
		// A newcomer does not overtake, and several puts serve several.
		putAll(t, p, "a", "b")
		a, b := waiters[0].got(t), waiters[1].got(t)
		if a.Value() != "a" || b.Value() != "b" {
			t.Errorf("the first took %q, the second %q", a.Value(), b.Value())
		}
		nothingFree(t, p)
		consumes(t, a)
		givesBack(t, b)
		third := waiters[2].got(t)
		if third.Value() != "b" {
			t.Errorf("the third took %q, want what was given back", third.Value())
		}
		for _, w := range waiters[3:] {
			if !w.pending() {
				t.Fatal("served out of turn")
			}
		}
		waiters[3].cancel()
		if err := waiters[3].failed(t); !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
			t.Errorf("Take whose context ended: %v", err)
		}
		givesBack(t, third)
		if fifth := waiters[4].got(t); fifth.Value() != "b" {
			t.Errorf("the fifth took %q", fifth.Value())
		} else {
			consumes(t, fifth)
		}
		poolAudit(t, p)
		putAll(t, p, "c")
		consumes(t, waiters[5].got(t))
		poolAudit(t, p)
	})
}

// Wake-ups come by message: no refresh is due for an hour.
func TestPoolTakeIsWokenByAPut(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		producer, consumer := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		p := somePool(t, consumer)
		for _, give := range []func() error{
			func() error { _, err := poolHandle(producer, p).Put(t.Context(), "x y|z"); return err },
			func() error { // given back by another Locker
				le, err := poolHandle(producer, p).TryTake(t.Context())
				if !errors.Is(err, ErrBusy) || le != nil {
					return fmt.Errorf("took %v, %w", le, err)
				}
				_, err = poolHandle(producer, p).Put(t.Context(), "x y|z")
				return err
			},
		} {
			w := takeBeside(t, p, 1)
			calm(t, consumer, 1)
			if err := give(); err != nil {
				t.Fatal(err)
			}
			le := w.got(t)
			if le.Value() != "x y|z" {
				t.Errorf("took %q", le.Value())
			}
			consumes(t, le)
		}
		holder := poolHandle(producer, p)
		putAll(t, p, "v")
		le := takes(t, holder, "v")
		w := takeBeside(t, p, 1)
		calm(t, consumer, 1)
		givesBack(t, le)
		if got := w.got(t); got.Value() != "v" {
			t.Errorf("took %q", got.Value())
		}
	})
}

// A taker that dies: without renewal at its deadline, or when its Locker closes.
func TestPoolTakerThatDies(t *testing.T) {
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
				p := somePool(t, a, append(options, TTL(600*time.Millisecond))...)
				putAll(t, p, "v")
				dead := takes(t, p, "v")
				deadline := stored(t, p.m)["h:v|"+dead.body]
				w := takeBeside(t, poolHandle(b, p, TTL(time.Minute)), 1)
				die(t, dead, a)
				next := w.got(t)
				if next.Value() != "v" || next.Fence() <= dead.Fence() {
					t.Errorf("the next has %q with fence %d after %d", next.Value(), next.Fence(), dead.Fence())
				}
				if early := time.UnixMilli(int64(deadline)).Sub(time.UnixMicro(next.Fence())); name == "NoRenew" && early > 0 {
					t.Errorf("taken %s before the dead taker's deadline", early)
				}

				// Late, it changes nothing; not even if it did not know.
				_ = dead.Extend(t.Context(), time.Hour)
				if err := dead.Consume(t.Context()); !errors.Is(err, ErrNotHeld) {
					t.Errorf("late Consume: %v, want ErrNotHeld", err)
				}
				dead.consuming.Store(true)
				if _, held, err := dead.release(t.Context(), 0); held || err != nil {
					t.Errorf("late consume: held %v, %v", held, err)
				}
				if _, held, err := dead.release(t.Context(), 0); held || err != nil {
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
		p := somePool(t, newLocker(t, s.Client(t)), TTL(MinTTL), NoRenew())
		putAll(t, p, "v")
		late := takes(t, p, "v")
		ended(t, late, ErrLost)
		keeper := poolHandle(p.m.locker, p, TTL(time.Minute))
		redistest.Eventually(t, soon, func() bool { n, _ := p.Available(t.Context()); return n == 1 }, "the value back")
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
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)), TTL(time.Second))
		putAll(t, p, "a|b c")
		le := takes(t, p, "a|b c")
		taken := serverNow(t, p.m)
		redistest.Eventually(t, soon, func() bool {
			poolAudit(t, p)
			return serverNow(t, p.m).Sub(taken) > 2500*time.Millisecond
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

// Values, owners and notes are data, whatever their bytes.
func TestPoolTakesAnyBytes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		values := []string{
			"\x00", "a\x00b", "|", "a|b", "||", " ", " a b ", "%", "%7C", "{}", "~", "\n\r\t", "ключ", "Ελληνικά", "🔑",
			"\xff\xfe", "-1", "1", "t:x", "h:x|y.1.1|o|", "f", strings.Repeat("x", 10_000), strings.Repeat("| ", 5_000), "\u2028", "\u00a0",
		}
		for _, note := range []string{"", "a|b", "|", "\x00|\xff", "b:|"} {
			l := newLocker(t, s.Client(t), owner("own|er\x00 "+note))
			p := somePool(t, l, Note(note))
			putAll(t, p, values...)
			if n, err := p.Put(t.Context(), values...); n != 0 || err != nil {
				t.Errorf("Put again: %d, %v", n, err)
			}
			var leases []*Lease
			for _, value := range values {
				leases = append(leases, takesQuietly(t, p, value))
			}
			poolAudit(t, p)
			info := inspects(t, p)
			got := map[string]bool{}
			for _, h := range info.Holders {
				got[h.Value] = true
				if h.Note != note || h.Owner != "own|er\x00 "+note {
					t.Errorf("holder: %+v", h)
				}
			}
			if len(info.Holders) != len(values) || len(got) != len(values) {
				t.Errorf("%d holders with %d values, want %d", len(info.Holders), len(got), len(values))
			}
			// Through a message as well.
			w := takeBeside(t, p, 1)
			givesBack(t, leases[0])
			if le := w.got(t); le.Value() != values[0] {
				t.Errorf("granted %q, want %q", le.Value(), values[0])
			} else {
				givesBack(t, le)
			}
			for _, le := range leases[1:] {
				givesBack(t, le)
			}
			poolAudit(t, p)
			for _, value := range values {
				consumes(t, takesQuietly(t, p, value))
			}
			poolAudit(t, p)
		}
	})
}

func TestPoolRefusesTheEmptyValue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)))
		for _, values := range [][]string{{""}, {"a", ""}, {"", "a"}} {
			if n, err := p.Put(t.Context(), values...); n != 0 || err == nil || !strings.Contains(err.Error(), "is empty") {
				t.Errorf("Put(%q): %d, %v", values, n, err)
			}
		}
		if n, err := p.Put(t.Context()); n != 0 || err != nil {
			t.Errorf("Put of nothing: %d, %v", n, err)
		}
		poolAudit(t, p)
		nothingFree(t, p)
	})
}

func TestPoolDefinitions(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for want, p := range map[string]*Pool{"the name is empty": l.Pool(""), "at least 100ms": l.Pool("x", TTL(time.Millisecond))} {
		_, err1 := p.Put(t.Context(), "v")
		_, err2 := p.Put(t.Context())
		_, err3 := p.Take(t.Context())
		_, err4 := p.TryTake(t.Context())
		_, err5 := p.Inspect(t.Context())
		_, err6 := p.Available(t.Context())
		_, err7 := p.Delete(t.Context())
		err8 := p.Do(t.Context(), func(context.Context, *Lease) error { return nil })
		for i, err := range []error{p.Err(), err1, err2, err3, err4, err5, err6, err7, err8} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, want an error with %q", i, err, want)
			}
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Pool("x").Put(ended, "v"); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with an ended context: %v", err)
	}
	if _, err := l.Pool("x").Take(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Take with an ended context: %v", err)
	}
}

// A pool and a lock of one name have nothing to do with each other, and a
// lock's lease is nothing to consume.
func TestPoolIsNoLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		p := somePool(t, l)
		m := l.Mutex(p.m.name)
		putAll(t, p, "v")
		taken := takes(t, p, "v")
		held := mustTry(t, m)
		if err := held.Consume(t.Context()); err == nil || errors.Is(err, ErrNotHeld) || !held.Held() {
			t.Errorf("Consume of a mutex: %v, held %v", err, held.Held())
		}
		if held.Value() != "" {
			t.Errorf("a mutex has the value %q", held.Value())
		}
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
		if err := raw(m).Set(t.Context(), p.Key(), "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Put(t.Context(), "v"); !errors.Is(err, ErrBackend) {
			t.Errorf("Put on a foreign key: %v, want ErrBackend", err)
		}
		if _, err := p.Take(t.Context()); !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) {
			t.Errorf("Take on a foreign key: %v, want ErrBackend", err)
		}
	})
}

func TestPoolDo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)), TTL(time.Second))
		putAll(t, p, "a")
		failure := errors.New("a failure")
		err := p.Do(t.Context(), func(ctx context.Context, le *Lease) error {
			if le.Value() != "a" || ctx.Err() != nil {
				t.Errorf("Do with %q, %v", le.Value(), ctx.Err())
			}
			nothingFree(t, p)
			return failure
		})
		if !errors.Is(err, failure) || errors.Is(err, ErrLost) {
			t.Errorf("Do: %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = p.Do(t.Context(), func(context.Context, *Lease) error { panic("boom") })
		}()
		if n := inspects(t, p); n.Free != 1 || n.Taken != 0 {
			t.Errorf("after a panic: %+v", n)
		}
		err = p.Do(t.Context(), func(ctx context.Context, le *Lease) error {
			if _, err := p.Delete(ctx); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, ErrLost) {
			t.Errorf("Do of a deleted pool: %v, want ErrLost", err)
		}
		putAll(t, p, "b")
		if err := p.Do(t.Context(), func(ctx context.Context, le *Lease) error { return le.Consume(ctx) }); err != nil {
			t.Errorf("Do that consumes: %v", err)
		}
		poolAudit(t, p)
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err = p.Do(short, func(context.Context, *Lease) error { t.Error("Do ran its function"); return nil })
		if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do of an empty pool: %v", err)
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
			endsWithin(t, le.Bind(t.Context()), 10*time.Second)
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
		ttl := func() time.Duration { return raw(p.m).PTTL(t.Context(), p.Key()).Val() }
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
		p := somePool(t, l, TTL(MinTTL), NoRenew())
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
				a, err := p.m.ask(t.Context(), le, 0)
				if err != nil {
					t.Fatal(err)
				}
				if taken++; !a.yours {
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
			le, err := keeper.TryTake(t.Context())
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
			if _, err := keeper.m.ask(t.Context(), le, time.Hour); err != nil {
				t.Fatal(err)
			}
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

// The same body asks again: the same value, a fence that grew, no second value.
func TestPoolTakeIsIdempotent(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)))
		putAll(t, p, "a", "b")
		le := p.m.newLease()
		first := asksPool(t, p, le, 0)
		for range 3 {
			again := asksPool(t, p, le, stay)
			if !again.yours || again.value != first.value || again.fence <= first.fence {
				t.Errorf("asked again: %+v after %+v", again, first)
			}
		}
		if info := inspects(t, p); info.Free != 1 || info.Taken != 1 {
			t.Errorf("%+v", info)
		}
		// In line, granted without knowing it, then asked again.
		other, waiter := p.m.newLease(), p.m.newLease()
		asksPool(t, p, other, 0)
		if a := asksPool(t, p, waiter, stay); a.yours {
			t.Fatalf("%+v", a)
		}
		asksPool(t, p, waiter, stay)
		if _, held, err := other.release(t.Context(), 0); !held || err != nil {
			t.Fatal(held, err)
		}
		if a := asksPool(t, p, waiter, stay); !a.yours || a.value != "b" {
			t.Errorf("after its grant: %+v", a)
		}
		poolAudit(t, p)
	})
}

func asksPool(t *testing.T, p *Pool, le *Lease, stay time.Duration) answer {
	t.Helper()
	a, err := p.m.ask(t.Context(), le, stay)
	if err != nil {
		t.Fatal(err)
	}
	poolAudit(t, p)
	return a
}

// The reply is lost after the take ran; go-redis sends it again.
func TestPoolResentTakeIsOneValue(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		pool := somePool(t, near)
		warm(t, pool.m)
		putAll(t, pool, "a", "b")
		p.DropReplyTo(isScript(poolTakeScript, pool.m), 1)
		le, err := poolHandle(far, pool).Take(t.Context())
		if err != nil || le.Value() != "a" {
			t.Fatalf("Take with its reply lost: %v, %v", le, err)
		}
		if info := inspects(t, pool); info.Free != 1 || info.Taken != 1 {
			t.Errorf("%+v; %s", info, dump(pool.m))
		}
		givesBack(t, le)
		poolAudit(t, pool)

		// And of the way back.
		le = takesQuietly(t, poolHandle(far, pool), "b")
		p.DropReplyTo(isScript(poolReleaseScript, pool.m), 1)
		givesBack(t, le)
		if info := inspects(t, pool); info.Free != 2 || info.Taken != 0 {
			t.Errorf("%+v; %s", info, dump(pool.m))
		}
		p.DropReplyTo(isScript(poolPutScript, pool.m), 1)
		if _, err := poolHandle(far, pool).Put(t.Context(), "c"); err != nil {
			t.Errorf("Put with its reply lost: %v", err)
		}
		if info := inspects(t, pool); info.Free != 3 {
			t.Errorf("%+v", info)
		}
	})
}

func TestPoolResentConsume(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		pool := somePool(t, near)
		warm(t, pool.m)
		putAll(t, pool, "a", "b")
		le := takesQuietly(t, poolHandle(far, pool), "a")
		p.DropReplyTo(isScript(poolReleaseScript, pool.m), 1)
		consumes(t, le)
		if info := inspects(t, pool); info.Free != 1 || info.Taken != 0 || !slices.Equal(info.Values, []string{"b"}) {
			t.Errorf("%+v", info)
		}
	})
}

// A take that arrives late, when its lease was consumed, has got another value:
// that one is given back and not consumed.
func TestPoolLateTakeIsGivenBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)))
		putAll(t, p, "a", "b")
		le := takes(t, p, "a")
		consume := func() (held bool) {
			t.Helper()
			reply, err := p.m.locker.conn.run(t.Context(), poolReleaseScript, p.m.keys, []any{le.body, "a"})
			if err != nil {
				t.Fatal(err)
			}
			poolAudit(t, p)
			return reply.(int64) >= 0
		}
		if !consume() {
			t.Fatal("not held")
		}
		if a := asksPool(t, p, le, 0); a.value != "b" {
			t.Fatalf("%+v", a)
		}
		if !consume() { // sent again
			t.Error("not held the second time")
		}
		if info := inspects(t, p); info.Free != 1 || !slices.Equal(info.Values, []string{"b"}) {
			t.Errorf("a value was lost: %+v", info)
		}
	})
}

// Even the same one, that was put again meanwhile.
func TestPoolConsumedOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)))
		putAll(t, p, "a")
		le := takes(t, p, "a")
		consumes(t, le)
		putAll(t, p, "a")
		if a := asksPool(t, p, le, 0); a.value != "a" {
			t.Fatalf("%+v", a)
		}
		if _, held, err := le.release(t.Context(), 0); !held || err != nil {
			t.Errorf("the late release: held %v, %v", held, err)
		}
		if info := inspects(t, p); info.Free != 1 {
			t.Errorf("a value was consumed twice for one Consume: %+v", info)
		}
	})
}

// It grows from holder to holder, whatever the clock does.
func TestPoolFenceGrows(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)))
		putAll(t, p, "a", "b")
		last := int64(0)
		for i := range 6 {
			if i == 3 { // as if the clock had been ahead by a quarter of an hour
				if err := raw(p.m).ZIncrBy(t.Context(), p.Key(), -9e8, "f").Err(); err != nil {
					t.Fatal(err)
				}
				last += 9e8
			}
			le, err := p.TryTake(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if le.Fence() <= last {
				t.Errorf("fence %d after %d", le.Fence(), last)
			}
			last = le.Fence()
			givesBack(t, le)
		}
	})
}

// A granted lease that nobody renews lasts its TTL all the same.
func TestPoolGrantedWithoutRenewal(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)), TTL(time.Minute), NoRenew())
		w := takeBeside(t, p, 1)
		putAll(t, p, "a")
		le := w.got(t)
		if left := time.Until(le.Deadline()); left < 40*time.Second {
			t.Errorf("the lease lasts %s, want about a minute", left)
		}
		if h := inspects(t, p).Holders; len(h) != 1 || h[0].ExpiresIn < 40*time.Second {
			t.Errorf("stored: %+v", h)
		}
	})
}

// Consume whose outcome is unknown is tried again as what it was.
func TestPoolUnknownConsumeIsRepeated(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s, func(o *redis.UniversalOptions) {
			o.MaxRetries, o.ReadTimeout = -1, 200*time.Millisecond
		})
		pool := somePool(t, near, TTL(time.Minute))
		warm(t, pool.m)
		putAll(t, pool, "a")
		le := takesQuietly(t, poolHandle(far, pool), "a")
		held := p.Hold(isScript(poolReleaseScript, pool.m), 1)
		if err := le.Consume(t.Context()); !errors.Is(err, ErrBackend) {
			t.Fatalf("Consume without an answer: %v, want ErrBackend", err)
		}
		redistest.Eventually(t, soon, func() bool {
			info := inspects(t, pool)
			if info.Free > 0 {
				t.Fatalf("the value came back; %s", dump(pool.m))
			}
			return info.Taken == 0
		}, "the value consumed")
		held.Release()
		poolAudit(t, pool)
	})
}

// Takes whose outcome is unknown come back.
func TestPoolUnknownTakeIsGivenBack(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
		pool := somePool(t, near, TTL(time.Minute))
		warm(t, pool.m)
		putAll(t, pool, "a")
		p.DropReplyTo(isScript(poolTakeScript, pool.m), 1)
		if _, err := poolHandle(far, pool).TryTake(t.Context()); !errors.Is(err, ErrBackend) {
			t.Fatalf("TryTake with its reply lost: %v, want ErrBackend", err)
		}
		redistest.Eventually(t, soon, func() bool { return inspects(t, pool).Free == 1 }, "the value back")
		poolAudit(t, pool)
	})
}

// Memory is full: what is taken can be given back and consumed all the same,
// and nothing is lost halfway.
func TestPoolWithFullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	l := newLocker(t, rdb)
	p := somePool(t, l)
	warm(t, p.m)
	short := poolHandle(l, p, TTL(MinTTL), NoRenew())
	putAll(t, p, "a", "b", "c", "d")
	a, b := takes(t, p, "a"), takes(t, p, "b")
	c := takesQuietly(t, short, "c")
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	ended(t, c, ErrLost)
	// Redis refuses the first write of a script, unless it began by removing
	// something (here: a lapsed holder). Either way it is all or nothing.
	want := []string{"b", "c", "d"}
	switch _, err := p.Put(t.Context(), "e"); {
	case err == nil:
		want = append(want, "e")
	case !errors.Is(err, ErrBackend):
		t.Errorf("Put with full memory: %v, want ErrBackend", err)
	}
	if err := a.Consume(t.Context()); err != nil {
		t.Errorf("Consume with full memory: %v", err)
	}
	if err := b.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock with full memory: %v", err)
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	poolAudit(t, p)
	redistest.Eventually(t, soon, func() bool {
		info := inspects(t, p)
		slices.Sort(info.Values)
		return slices.Equal(info.Values, want) && info.Taken == 0
	}, "%q free; %s", want, stringer(func() string { return dump(p.m) }))
}

// Three processes take, give back, consume, die and put: no value is held twice
// at any moment, and in the end there is what was put and not consumed.
func TestPoolStress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lockers, each, values = 3, 8, 20
		rounds := 25
		if s.Kind() != redistest.KindReal {
			rounds = 10
		}
		var (
			mu    sync.Mutex
			until = map[string]time.Time{} // until when somebody may believe that the value is theirs
			there = map[string]bool{}      // put and not consumed
		)
		watch := somePool(t, newLocker(t, s.Client(t)))
		for i := range values {
			there[fmt.Sprint("first|", i)] = true
		}
		putAll(t, watch, slices.Collect(maps.Keys(there))...)
		var wg sync.WaitGroup
		for i := range lockers {
			l := newLocker(t, s.Client(t))
			for j := range each {
				wg.Go(func() {
					for round := range rounds {
						dies := rand.IntN(4) == 0
						p := poolHandle(l, watch)
						if dies {
							p = poolHandle(l, watch, TTL(MinTTL), NoRenew())
						}
						le, err := p.Take(t.Context())
						if err != nil {
							t.Errorf("Take: %v", err)
							return
						}
						now, value := time.Now(), le.Value()
						mu.Lock()
						if other, ok := until[value]; ok && now.Before(other) {
							t.Errorf("%q was taken while another had it for %s more", value, other.Sub(now))
						}
						if !there[value] {
							t.Errorf("took %q, which is consumed, or never was", value)
						}
						until[value] = le.Deadline()
						if !dies {
							until[value] = now.Add(time.Hour)
						}
						mu.Unlock()
						if dies {
							continue // and never heard of again
						}
						mu.Lock()
						delete(until, value)
						consume := rand.IntN(3) == 0
						if consume {
							// Before it is so: whoever takes it now took what is consumed.
							delete(there, value)
						}
						mu.Unlock()
						if !consume {
							if err := le.Unlock(t.Context()); err != nil {
								t.Errorf("Unlock: %v", err)
							}
							continue
						}
						if err := le.Consume(t.Context()); err != nil {
							t.Errorf("Consume: %v", err)
						}
						// Another in its place, and some that are there.
						fresh := fmt.Sprintf("%d|%d|%d", i, j, round)
						mu.Lock()
						there[fresh] = true
						mu.Unlock()
						if n, err := p.Put(t.Context(), fresh, fresh); n != 1 || err != nil {
							t.Errorf("Put: %d, %v", n, err)
						}
					}
				})
			}
		}
		wg.Wait()
		redistest.Eventually(t, soon, func() bool {
			poolAudit(t, watch)
			info := inspects(t, watch)
			return info.Taken == 0 && info.Waiting == 0
		}, "all given back; %s", stringer(func() string { return dump(watch.m) }))
		info := inspects(t, watch)
		got := map[string]bool{}
		for _, value := range info.Values {
			got[value] = true
		}
		if info.Free != len(there) || !maps.Equal(got, there) {
			t.Errorf("%d values are left: %v, want %d: %v", info.Free, got, len(there), there)
		}
	})
}

// Processes come and go while the network drops what they send.
func TestPoolStressWithLostReplies(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		const values = 10
		near, far, p := through(t, s)
		watch := somePool(t, near)
		warm(t, watch.m)
		for i := range values {
			putAll(t, watch, fmt.Sprint(i))
		}
		var mu sync.Mutex
		held := map[string]bool{}
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				pool := poolHandle(far, watch)
				for range 15 {
					le, err := pool.Take(t.Context())
					if errors.Is(err, ErrBackend) {
						continue // lost more often than the client tries
					}
					if err != nil {
						t.Errorf("Take: %v", err)
						return
					}
					mu.Lock()
					if held[le.Value()] {
						t.Errorf("%q is held twice", le.Value())
					}
					held[le.Value()] = true
					mu.Unlock()
					p.DropReplyTo(func(command []string) bool { return len(command) > 3 && command[3] == watch.Key() }, 1)
					mu.Lock()
					delete(held, le.Value())
					mu.Unlock()
					if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, ErrBackend) {
						t.Errorf("Unlock: %v", err)
					}
				}
			})
		}
		wg.Wait()
		p.Heal()
		redistest.Eventually(t, soon, func() bool { return inspects(t, watch).Free == values }, "all values back; %s",
			stringer(func() string { return dump(watch.m) }))
		poolAudit(t, watch)
	})
}
