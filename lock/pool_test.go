package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// The tests of pools that look into what package lock does are here. Pool is what package pool has of a lock.
type Pool struct{ m *Lock }

func (l *Locker) Pool(name string, options ...Option) *Pool { return &Pool{l.pool(name, options...)} }

func (p *Pool) Put(ctx context.Context, values ...string) (added int, err error) {
	args := make([]any, len(values))
	for i, value := range values {
		args[i] = keys.Escape(value)
	}
	reply, err := insider{}.Operate(ctx, p.m, wire.PoolPutScript, args)
	if err != nil {
		return 0, err
	}
	n, err := wire.CodeOf(reply, 10_000)
	if err != nil {
		err = exchange.Failed("put", p.m.Key(), err)
	}
	return int(n), err
}

func (p *Pool) Take(ctx context.Context) (*Lease, error) { return p.m.Lock(ctx) }

func (p *Pool) Inspect(ctx context.Context) (wire.Pool, error) {
	reply, err := insider{}.Operate(ctx, p.m, wire.PoolInspectScript, []any{maxHolders})
	if err != nil {
		return wire.Pool{}, err
	}
	info, err := wire.ParsePool(reply)
	if err != nil {
		err = exchange.Failed("inspect", p.m.Key(), err)
	}
	return info, err
}

func (p *Pool) Delete(ctx context.Context) (int, error) {
	return insider{}.OperateBreak(ctx, p.m, wire.PoolDeleteScript)
}

func (le *Lease) Value() string                     { return insider{}.Value(le) }
func (le *Lease) Consume(ctx context.Context) error { return insider{}.Consume(ctx, le) }

// available is the number of free values.
func (p *Pool) available(ctx context.Context) (int, error) {
	info, err := p.Inspect(ctx)
	return info.Free, err
}

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
	le, err := p.m.TryLock(t.Context())
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
	le, err := p.m.TryLock(t.Context())
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

func inspects(t *testing.T, p *Pool) wire.Pool {
	t.Helper()
	info, err := p.Inspect(t.Context())
	redistest.Must(t, err)
	return info
}

// poolAudit holds what is stored against what must be true of a pool at every
// moment: each value is there once and either free or taken by one, each taken
// value is found by its body, and the key lasts for ever while there are values.
func poolAudit(t *testing.T, p *Pool) {
	t.Helper()
	r, err := raw(p.m).Eval(t.Context(), `return {redis.call('PTTL', KEYS[1]), redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}`,
		[]string{p.m.Key()}).Slice()
	redistest.Must(t, err)
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
	case len(values) == 0 && waiters > 0 && (ttl < turn.EntryLifetime.Milliseconds() || ttl > 60_000):
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
		if fenceOf(t, a) >= fenceOf(t, b) || !a.Held() {
			t.Errorf("fences %d, %d", fenceOf(t, a), fenceOf(t, b))
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
		if n, err := p.Inspect(t.Context()); n.Free != 2 || err != nil {
			t.Errorf("Available: %d, %v; want 2", n.Free, err)
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
		if n := rdb.Exists(t.Context(), p.m.Key()).Val(); n != 0 {
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
			for j := range 300 * (1 + i%2*2) {
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
		redistest.Must(t, raw(p.m).ZIncrBy(t.Context(), p.m.Key(), 1e9, "t:"+want[len(want)-1]).Err())
		putAll(t, p, "behind")
		// Back to the end.
		first := takes(t, p, want[0])
		givesBack(t, first)
		for _, value := range want[1:50] {
			consumes(t, takesQuietly(t, p, value))
		}
		last, err := raw(p.m).ZRevRange(t.Context(), p.m.Key(), 0, 0).Result()
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
	le, err := p.m.TryLock(t.Context())
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
				le, err := poolHandle(producer, p).m.TryLock(t.Context())
				if !errors.Is(err, ErrBusy) || le != nil {
					return fmt.Errorf("took %v, %w", le, err)
				}
				_, err = poolHandle(producer, p).Put(t.Context(), "x y|z")
				return err
			},
		} {
			w := takeBeside(t, p, 1)
			calm(t, consumer, 1)
			redistest.Must(t, give())
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
