package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func newLocker(t *testing.T, s *redistest.Server) *lock.Locker {
	l := lock.New(s.Client(t), lock.Options{Owner: "taker"})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func put(t *testing.T, p *pool.Pool, added int, values ...string) {
	t.Helper()
	if n, err := p.Put(t.Context(), values...); n != added || err != nil {
		t.Fatalf("Put of %d values: %d, %v; want %d", len(values), n, err, added)
	}
}

func take(t *testing.T, p *pool.Pool, want string) *pool.Lease {
	t.Helper()
	le, err := p.Take(t.Context())
	if err != nil || le.Value() != want {
		t.Fatalf("Take: %v, %v; want %q", le, err, want)
	}
	return le
}

func inspect(t *testing.T, p *pool.Pool) pool.Info {
	t.Helper()
	info, err := p.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Two values are taken, one comes back, one is gone, and who was in line gets the first.
func TestPool(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := pool.New(newLocker(t, s), redistest.Name(t), lock.Note("a note"))
		put(t, p, 2, "a|b %", "b")
		put(t, p, 0, "b", "a|b %")
		a, b := take(t, p, "a|b %"), take(t, p, "b")
		put(t, p, 1, "c")
		info := inspect(t, p)
		if info.Free != 1 || info.Taken != 2 || !slices.Equal(info.Values, []string{"c"}) || len(info.Holders) != 2 {
			t.Fatalf("Inspect: %+v", info)
		}
		if h := info.Holders[0]; h.Value != "a|b %" || h.Token != a.Token() || h.Owner != "taker" || h.Note != "a note" || h.ExpiresIn <= 0 {
			t.Errorf("the first holder: %+v", h)
		}
		if free, err := a.Release(t.Context()); free != 2 || err != nil {
			t.Errorf("Release: %d free, %v; want 2", free, err)
		}
		if err := errors.Join(b.Consume(t.Context()), take(t, p, "c").Cooldown(t.Context(), time.Hour)); err != nil {
			t.Error(err)
		}
		if err := b.Consume(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("second Consume: %v, want ErrNotHeld", err)
		}
		if info := inspect(t, p); !slices.Equal(info.Values, []string{"a|b %", "c"}) || info.Taken != 0 {
			t.Errorf("Inspect: %+v", info)
		}
		if n, err := p.Delete(t.Context()); n != 2 || err != nil {
			t.Errorf("Delete: %d, %v; want 2", n, err)
		}
		// The machine may be too busy for a reply in time.
		var le *pool.Lease
		err := lock.ErrBackend
		for wait := 50 * time.Millisecond; errors.Is(err, lock.ErrBackend) && wait < redistest.Patience; wait *= 2 {
			ended, cancel := context.WithTimeout(t.Context(), wait)
			le, err = p.Take(ended)
			cancel()
		}
		if le != nil || !errors.Is(err, lock.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Take of nothing: %v, %v", le, err)
		}
	})
}

// More values than one script call adds, in the order in which they were put.
func TestPool_manyValues(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := pool.New(newLocker(t, s), redistest.Name(t))
		values := make([]string, 1500)
		for i := range values {
			values[i] = fmt.Sprint(i)
		}
		put(t, p, len(values), values...)
		if info := inspect(t, p); info.Free != len(values) || !slices.Equal(info.Values, values[:1000]) {
			t.Errorf("%d free, in the order %q ...", info.Free, info.Values[:10])
		}
	})
}

func TestPool_definitions(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t))
	for want, p := range map[string]*pool.Pool{
		"the name is empty": pool.New(l, ""), "at least 100ms": pool.New(l, "x", lock.TTL(time.Millisecond)),
		"a pool has no Rate": pool.New(l, "x", lock.Rate(1, time.Second, 1)),
	} {
		_, err1 := p.Put(t.Context(), "v")
		_, err2 := p.Put(t.Context())
		_, err3 := p.Take(t.Context())
		_, err4 := p.Inspect(t.Context())
		_, err5 := p.Delete(t.Context())
		for i, err := range []error{err1, err2, err3, err4, err5} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, want an error with %q", i+1, err, want)
			}
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pool.New(l, "x").Put(ended, "v"); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with an ended context: %v", err)
	}
	if _, err := pool.New(l, "x").Take(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Take with an ended context: %v", err)
	}
}

func TestPool_refusesTheEmptyValue(t *testing.T) {
	t.Parallel()
	p := pool.New(newLocker(t, redistest.Mini(t)), "x")
	for _, values := range [][]string{{""}, {"a", ""}, {"", "a"}} {
		if n, err := p.Put(t.Context(), values...); n != 0 || err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("Put(%q): %d, %v", values, n, err)
		}
	}
	put(t, p, 0)
	if info := inspect(t, p); info.Free != 0 {
		t.Errorf("Inspect: %+v", info)
	}
}
