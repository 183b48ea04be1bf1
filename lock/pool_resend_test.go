package lock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// The same body asks again: the same value, a fence that grew, no second value.
func TestPoolTakeIsIdempotent(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := somePool(t, newLocker(t, s.Client(t)))
		putAll(t, p, "a", "b")
		le := p.m.newLease()
		first := asksPool(t, p, le)
		for range 3 {
			again := asksPool(t, p, le)
			if !again.Yours || again.Value != first.Value || again.Fence <= first.Fence {
				t.Errorf("asked again: %+v after %+v", again, first)
			}
		}
		if info := inspects(t, p); info.Free != 1 || info.Taken != 1 {
			t.Errorf("%+v", info)
		}
		// In line, granted without knowing it, then asked again.
		other, waiter := p.m.newLease(), p.m.newLease()
		asksPool(t, p, other)
		if a := asksPool(t, p, waiter); a.Yours {
			t.Fatalf("%+v", a)
		}
		asksPool(t, p, waiter)
		if _, held, err := other.release(t.Context()); !held || err != nil {
			t.Fatal(held, err)
		}
		if a := asksPool(t, p, waiter); !a.Yours || a.Value != "b" {
			t.Errorf("after its grant: %+v", a)
		}
		poolAudit(t, p)
	})
}

func asksPool(t *testing.T, p *Pool, le *Lease) wire.Answer {
	t.Helper()
	a, err := p.m.ask(t.Context(), le, turn.Join)
	redistest.Must(t, err)
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
		p.DropReplyTo(isScript(wire.PoolTakeScript, pool.m), 1)
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
		p.DropReplyTo(isScript(wire.PoolReleaseScript, pool.m), 1)
		givesBack(t, le)
		if info := inspects(t, pool); info.Free != 2 || info.Taken != 0 {
			t.Errorf("%+v; %s", info, dump(pool.m))
		}
		p.DropReplyTo(isScript(wire.PoolPutScript, pool.m), 1)
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
		p.DropReplyTo(isScript(wire.PoolReleaseScript, pool.m), 1)
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
			reply, err := p.m.locker.conn.Run(t.Context(), wire.PoolReleaseScript, p.m.keys, []any{le.body, "a"})
			redistest.Must(t, err)
			poolAudit(t, p)
			return reply.(int64) >= 0
		}
		if !consume() {
			t.Fatal("not held")
		}
		if a := asksPool(t, p, le); a.Value != "b" {
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
		if a := asksPool(t, p, le); a.Value != "a" {
			t.Fatalf("%+v", a)
		}
		if _, held, err := le.release(t.Context()); !held || err != nil {
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
				redistest.Must(t, raw(p.m).ZIncrBy(t.Context(), p.m.Key(), -9e8, "f").Err())
				last += 9e8
			}
			le, err := p.m.TryLock(t.Context())
			redistest.Must(t, err)
			if fenceOf(t, le) <= last {
				t.Errorf("fence %d after %d", fenceOf(t, le), last)
			}
			last = fenceOf(t, le)
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
			o.MaxRetries, o.ReadTimeout = -1, time.Second
		})
		pool := somePool(t, near, TTL(time.Minute))
		warm(t, pool.m)
		putAll(t, pool, "a")
		le := takesQuietly(t, poolHandle(far, pool), "a")
		held := p.Hold(isScript(wire.PoolReleaseScript, pool.m), 1)
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
		p.DropReplyTo(isScript(wire.PoolTakeScript, pool.m), 1)
		if _, err := poolHandle(far, pool).m.TryLock(t.Context()); !errors.Is(err, ErrBackend) {
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
	short := poolHandle(l, p, TTL(inside.MinTTL), NoRenew())
	putAll(t, p, "a", "b", "c", "d")
	a, b := takes(t, p, "a"), takes(t, p, "b")
	c := takesQuietly(t, short, "c")
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
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
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	poolAudit(t, p)
	redistest.Eventually(t, soon, func() bool {
		info := inspects(t, p)
		slices.Sort(info.Values)
		return slices.Equal(info.Values, want) && info.Taken == 0
	}, "%q free; %s", want, stringer(func() string { return dump(p.m) }))
}
