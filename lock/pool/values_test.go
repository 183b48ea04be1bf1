package pool_test

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

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// source makes handles of one pool.
type source struct {
	name    string
	options []lock.Option
}

func sourceOf(t *testing.T, options ...lock.Option) source { return source{redistest.Name(t), options} }

func (s source) of(l *lock.Locker, options ...lock.Option) *pool.Pool {
	return pool.New(l, s.name, slices.Concat(s.options, options)...)
}

// in is the key of the pool.
func (s source) key(l *lock.Locker) string {
	return lock.Inside(inside.Pass{}).Pool(l, s.name).Key()
}

// nothing is a Take of an empty pool.
func nothing(t *testing.T, p *pool.Pool) *lock.BusyError {
	t.Helper()
	ended, end := redistest.TimeUp(t.Context())
	defer end()
	got := make(chan error, 1)
	before := inspect(t, p).Waiting
	go func() {
		le, err := p.Take(ended)
		if err == nil {
			t.Errorf("took %q; want nothing", le.Value())
		}
		got <- err
	}()
	inLine(t, p, before+1)
	end()
	var busy *lock.BusyError
	if err := <-got; !errors.As(err, &busy) || !errors.Is(err, lock.ErrBusy) {
		t.Fatalf("%v, want a *BusyError", err)
	}
	return busy
}

func inLine(t *testing.T, p *pool.Pool, n int) {
	t.Helper()
	redistest.Eventually(t, redistest.Patience, func() bool { return inspect(t, p).Waiting == n }, "%d in line", n)
}

// taker is a Take beside the test.
type taker struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when lease and err are set
	lease  *pool.Lease
	err    error
}

func takeBeside(t *testing.T, p *pool.Pool, n int) *taker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*redistest.Patience)
	a := &taker{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lease, a.err = p.Take(ctx)
	}()
	t.Cleanup(func() { cancel(); <-a.done })
	inLine(t, p, n)
	return a
}

func (a *taker) gets(t *testing.T, value string) *pool.Lease {
	t.Helper()
	<-a.done
	if a.err != nil || a.lease.Value() != value {
		t.Fatalf("Take: %v, %v; want %q", a.lease, a.err, value)
	}
	return a.lease
}

func unlock(t *testing.T, le *pool.Lease) {
	t.Helper()
	redistest.Must(t, le.Unlock(t.Context()))
}

func consume(t *testing.T, le *pool.Lease) {
	t.Helper()
	redistest.Must(t, le.Consume(t.Context()))
}

// has wants the pool to be these free values, in any order, and so many that are taken.
func has(t *testing.T, p *pool.Pool, taken int, values ...string) {
	t.Helper()
	info := inspect(t, p)
	got := slices.Sorted(slices.Values(info.Values))
	if slices.Sort(values); info.Taken != taken || info.Free != len(values) || !slices.Equal(got, values) {
		t.Errorf("%+v; want %d taken, and %q", info, taken, values)
	}
}

// First in, first out: a value that comes back is the last. Takers are served in order, and nobody overtakes them.
func TestPool_order(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, other, src := newLocker(t, s), newLocker(t, s), sourceOf(t)
		p := src.of(l)
		put(t, p, 3, "a", "b", "c")
		unlock(t, take(t, p, "a"))
		for _, value := range []string{"b", "c", "a"} {
			consume(t, take(t, p, value))
		}
		var takers []*taker
		for i := range 6 {
			takers = append(takers, takeBeside(t, src.of([]*lock.Locker{l, other}[i%2]), i+1))
		}
		put(t, p, 2, "d", "e") // several for several
		d, e := takers[0].gets(t, "d"), takers[1].gets(t, "e")
		nothing(t, p)
		consume(t, d)
		unlock(t, e)
		third := takers[2].gets(t, "e")
		if inspect(t, p).Waiting != 3 {
			t.Error("served out of turn")
		}
		takers[3].cancel()
		<-takers[3].done
		if !errors.Is(takers[3].err, lock.ErrBusy) || !errors.Is(takers[3].err, context.Canceled) {
			t.Errorf("Take whose context ended: %v", takers[3].err)
		}
		unlock(t, third)
		consume(t, takers[4].gets(t, "e"))
		put(t, p, 1, "f")
		consume(t, takers[5].gets(t, "f"))
		if n := s.Client(t).Exists(t.Context(), src.key(l)).Val(); n != 0 {
			t.Error("all is consumed, and the key is there")
		}
	})
}

// Values, owners and notes are data, whatever their bytes.
func TestPool_anyBytes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		values := []string{
			"\x00", "a\x00b", "|", "a|b", "||", " ", " a b ", "%", "%7C", "{}", "~", "\n\r\t", "ключ", "🔑", "\xff\xfe", "-1", "1", "t:x", "v:x",
			"h:x|y.1.1|o|", "f", strings.Repeat("x", 10_000), strings.Repeat("| ", 5_000), "\u2028", "\u00a0", "=x", "+1 2 parked",
		}
		for _, note := range []string{"", "a|b", "|", "\x00|\xff", "b:|"} {
			l := lock.New(s.Client(t), lock.Options{Owner: "own|er\x00 " + note})
			t.Cleanup(func() { _ = l.Close() })
			p := pool.New(l, redistest.Name(t), lock.Note(note))
			put(t, p, len(values), values...)
			put(t, p, 0, values...)
			var leases []*pool.Lease
			for _, value := range values {
				leases = append(leases, take(t, p, value))
			}
			got := map[string]bool{}
			for _, h := range inspect(t, p).Holders {
				if got[h.Value] = true; h.Note != note || h.Owner != "own|er\x00 "+note {
					t.Errorf("holder: %+v", h)
				}
			}
			if len(got) != len(values) {
				t.Errorf("%d holders with values, want %d", len(got), len(values))
			}
			w := takeBeside(t, p, 1) // through a message as well
			unlock(t, leases[0])
			unlock(t, w.gets(t, values[0]))
			for _, le := range leases[1:] {
				unlock(t, le)
			}
			for _, value := range values {
				consume(t, take(t, p, value))
			}
		}
	})
}

// The value of a taker that died, without renewal or with its Locker, is the next one's, whom its late calls leave alone.
func TestPool_takerThatDies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, options := range map[string][]lock.Option{"NoRenew": {lock.NoRenew()}, "Close": nil} {
			a, b, src := newLocker(t, s), newLocker(t, s), sourceOf(t)
			put(t, src.of(b), 1, "v")
			dead := take(t, src.of(a, append(options, lock.TTL(time.Second))...), "v")
			w := takeBeside(t, src.of(b), 1)
			if name == "Close" {
				redistest.Must(t, a.Close())
			}
			next := w.gets(t, "v")
			if dead.Held() || !next.Held() {
				t.Errorf("%s: held by the dead one: %v, by the next: %v", name, dead.Held(), next.Held())
			}
			for what, late := range map[string]func() error{
				"Unlock": func() error { return dead.Unlock(t.Context()) }, "Consume": func() error { return dead.Consume(t.Context()) },
				"Extend": func() error { return dead.Extend(t.Context(), time.Hour) },
			} {
				if err := late(); !errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrClosed) {
					t.Errorf("%s: late %s: %v", name, what, err)
				}
			}
			info := inspect(t, src.of(b))
			if info.Free != 0 || len(info.Holders) != 1 || info.Holders[0].Token != next.Token() {
				t.Errorf("%s: after late calls: %+v", name, info)
			}
			consume(t, next)
		}
	})
}

// A lease is renewed, granted or not; Extend holds longer, Cooldown is Unlock, and what was granted without renewal lasts its TTL.
func TestPool_leases(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, src := newLocker(t, s), sourceOf(t, lock.TTL(2*time.Second))
		p, rdb := src.of(l), s.Client(t)
		put(t, p, 1, "a|b c")
		le := take(t, p, "a|b c")
		began := rdb.Time(t.Context()).Val()
		redistest.Eventually(t, redistest.Patience, func() bool { return rdb.Time(t.Context()).Val().Sub(began) > 3*time.Second }, "more than a TTL")
		if !le.Held() {
			t.Fatal("not renewed")
		}
		w := takeBeside(t, p, 1)
		unlock(t, le)
		le = w.gets(t, "a|b c")
		redistest.Must(t, le.Extend(t.Context(), time.Hour))
		if h := inspect(t, p).Holders; len(h) != 1 || h[0].ExpiresIn < 59*time.Minute {
			t.Errorf("extended by an hour: %+v", h)
		}
		redistest.Must(t, le.Cooldown(t.Context(), time.Hour))
		consume(t, take(t, p, "a|b c"))

		w = takeBeside(t, src.of(l, lock.TTL(time.Minute), lock.NoRenew()), 1)
		put(t, p, 1, "b")
		le = w.gets(t, "b")
		if h := inspect(t, p).Holders; time.Until(le.Deadline()) < 40*time.Second || len(h) != 1 || h[0].ExpiresIn < 40*time.Second {
			t.Errorf("granted for %s, stored %+v; want about a minute", time.Until(le.Deadline()), h)
		}
	})
}

// A pool and a lock of one name have nothing to do with each other, and a key that is something else is an error.
func TestPool_isNoLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, src := newLocker(t, s), sourceOf(t)
		p, m := src.of(l), l.Mutex(src.name)
		put(t, p, 1, "v")
		taken := take(t, p, "v")
		if _, err := m.TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ok, err := m.Break(t.Context(), taken.Token()); ok || err != nil {
			t.Errorf("Break of a pool's token: %v, %v", ok, err)
		}
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v", n, err)
		}
		redistest.Must(t, m.Delete(t.Context()))
		unlock(t, taken)
		le, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		if n, err := p.Delete(t.Context()); n != 1 || err != nil {
			t.Errorf("Delete: %d, %v", n, err)
		}
		redistest.Must(t, le.Unlock(t.Context()))

		redistest.Must(t, s.Client(t).LPush(t.Context(), src.key(l), "x").Err())
		if _, err := p.Put(t.Context(), "v"); !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Put on a foreign key: %v, want ErrBackend", err)
		}
		if _, err := p.Take(t.Context()); !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
			t.Errorf("Take on a foreign key: %v, want ErrBackend", err)
		}
	})
}

// Delete ends the leases of those who took the values, and waiters go on waiting.
func TestPool_delete(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b, src := newLocker(t, s), newLocker(t, s), sourceOf(t, lock.TTL(3*time.Second))
		p := src.of(a)
		put(t, p, 3, "a", "b", "c")
		la, lb := take(t, p, "a"), take(t, p, "b")
		if n, err := src.of(b).Delete(t.Context()); n != 3 || err != nil {
			t.Errorf("Delete: %d, %v; want 3", n, err)
		}
		for _, le := range []*pool.Lease{la, lb} {
			ctx := le.Bind(t.Context())
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lock.ErrLost) {
				t.Errorf("ended with %v", context.Cause(ctx))
			}
		}
		if err := la.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("Unlock after Delete: %v", err)
		}
		if err := lb.Consume(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("Consume after Delete: %v", err)
		}
		if n, err := p.Delete(t.Context()); n != 0 || err != nil {
			t.Errorf("second Delete: %d, %v", n, err)
		}
		w := takeBeside(t, src.of(b), 1)
		if _, err := p.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		put(t, p, 1, "d")
		w.gets(t, "d")
	})
}

// More values lapse at once than one call takes back: all are free at once for those who look, and each can be taken.
func TestPool_manyLapseAtOnce(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	now := time.Now()
	s.SetTime(t, now)
	l, src := newLocker(t, s), sourceOf(t, lock.TTL(time.Minute))
	p := src.of(l)
	const n = 150
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint(i)
	}
	put(t, p, n, values...)
	dead := src.of(l, lock.NoRenew())
	for _, value := range values {
		take(t, dead, value)
	}
	s.SetTime(t, now.Add(2*time.Minute))
	has(t, p, 0, values...)
	got := map[string]bool{}
	for range n {
		le, err := p.Take(t.Context())
		redistest.Must(t, err)
		got[le.Value()] = true
	}
	if len(got) != n {
		t.Errorf("took %d different values, want %d", len(got), n)
	}
	has(t, p, n)
}

// A reply is lost after a command has run; go-redis sends it again. One value is taken, given back, or consumed.
func TestPool_lostReplies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindCluster {
			t.SkipNow()
		}
		proxy := redistest.NewProxy(t, s.Addr())
		far := lock.New(proxy.Client(t), lock.Options{})
		t.Cleanup(func() { _ = far.Close() })
		src := sourceOf(t)
		p := src.of(far)
		put(t, p, 2, "a", "b")
		unlock(t, take(t, p, "a"))
		key := src.key(far)
		lost := func() {
			proxy.DropReplyTo(func(command []string) bool { return slices.Contains(command, key) }, 1)
		}
		lost()
		b := take(t, p, "b")
		has(t, p, 1, "a")
		lost()
		unlock(t, b)
		has(t, p, 0, "a", "b")
		a := take(t, p, "a")
		lost()
		consume(t, a)
		has(t, p, 0, "b")
		lost()
		if _, err := p.Put(t.Context(), "c"); err != nil {
			t.Errorf("Put with its reply lost: %v", err)
		}
		has(t, p, 0, "b", "c")
	})
}

// Of a Take, and of a Consume, nothing is heard: no value is lost, and none is held by two.
func TestPool_unheard(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindCluster {
			t.SkipNow()
		}
		proxy := redistest.NewProxy(t, s.Addr())
		far := lock.New(proxy.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 }), lock.Options{})
		t.Cleanup(func() { _ = far.Close() })
		src := sourceOf(t, lock.TTL(2*time.Second))
		p, near := src.of(far), src.of(newLocker(t, s))
		put(t, p, 1, "a")
		unlock(t, take(t, p, "a"))
		key := src.key(far)
		lost := func() {
			proxy.DropReplyTo(func(command []string) bool { return slices.Contains(command, key) }, 1)
		}
		lost()
		if le, err := p.Take(t.Context()); err == nil {
			unlock(t, le) // it asked again
		} else if !errors.Is(err, lock.ErrBackend) {
			t.Fatalf("Take with its reply lost: %v, want ErrBackend", err)
		}
		redistest.Eventually(t, redistest.Patience, func() bool { return inspect(t, near).Free == 1 }, "the value back")
		le := take(t, p, "a")
		lost()
		if err := le.Consume(t.Context()); err != nil && !errors.Is(err, lock.ErrBackend) {
			t.Fatalf("Consume with its reply lost: %v", err)
		}
		redistest.Eventually(t, redistest.Patience, func() bool { info := inspect(t, near); return info.Taken == 0 && info.Free == 0 }, "the value consumed")
	})
}

// Memory is full: what is taken can be given back and consumed all the same.
func TestPool_fullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb, l := s.Client(t), newLocker(t, s)
	p := pool.New(l, redistest.Name(t))
	put(t, p, 3, "a", "b", "c")
	unlock(t, take(t, p, "a"))
	a, b, c := take(t, p, "b"), take(t, p, "c"), take(t, p, "a")
	unlock(t, c)
	consume(t, take(t, p, "a"))
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	left := []string{"c"}
	switch _, err := p.Put(t.Context(), "e"); {
	case err == nil: // Redis refuses the first write of a script only if it needs memory
		left = append(left, "e")
	case !errors.Is(err, lock.ErrBackend):
		t.Errorf("Put with full memory: %v, want ErrBackend", err)
	}
	consume(t, a)
	unlock(t, b)
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	has(t, p, 0, left...)
}

// Three processes take, give back, consume, die and put: no value is held twice at any moment, and in the end there is
// what was put and not consumed.
func TestPool_stress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lockers, each, values, rounds = 3, 8, 20, 8
		var (
			mu    sync.Mutex
			until = map[string]time.Time{} // until when somebody may believe that the value is theirs
			there = map[string]bool{}      // put and not consumed
		)
		src := sourceOf(t)
		watch := src.of(newLocker(t, s))
		for i := range values {
			there[fmt.Sprint("first|", i)] = true
		}
		put(t, watch, values, slices.Collect(maps.Keys(there))...)
		var wg sync.WaitGroup
		for i := range lockers {
			l := newLocker(t, s)
			for j := range each {
				redistest.Go(&wg, func() {
					for round := range rounds {
						p, dies := src.of(l), rand.IntN(4) == 0
						if dies {
							p = src.of(l, lock.TTL(inside.MinTTL), lock.NoRenew())
						}
						le, err := p.Take(t.Context())
						if err != nil {
							t.Errorf("Take: %v", err)
							return
						}
						now, value := time.Now(), le.Value()
						if dies && !now.Before(le.Deadline()) {
							continue // this machine stalled: it is somebody else's by now, and rightly
						}
						mu.Lock()
						if other, ok := until[value]; ok && now.Before(other) {
							t.Errorf("%q was taken while another had it for %s more", value, other.Sub(now))
						}
						if !there[value] {
							t.Errorf("took %q, which is consumed, or never was", value)
						}
						until[value] = le.Deadline()
						gone := !dies && rand.IntN(3) == 0
						if !dies {
							delete(until, value)
						}
						if gone {
							delete(there, value) // before it is so: whoever takes it now took what is consumed
						}
						fresh := fmt.Sprintf("%d|%d|%d", i, j, round)
						there[fresh] = there[fresh] || gone
						if !gone {
							delete(there, fresh)
						}
						mu.Unlock()
						switch {
						case dies: // and is never heard of again
						case !gone:
							if err := le.Unlock(t.Context()); err != nil {
								t.Errorf("Unlock: %v", err)
							}
						default:
							if err := le.Consume(t.Context()); err != nil {
								t.Errorf("Consume: %v", err)
							}
							if n, err := p.Put(t.Context(), fresh, fresh); n != 1 || err != nil {
								t.Errorf("Put: %d, %v", n, err)
							}
						}
					}
				})
			}
		}
		wg.Wait()
		redistest.Eventually(t, redistest.Patience, func() bool { info := inspect(t, watch); return info.Taken == 0 && info.Waiting == 0 }, "all given back")
		has(t, watch, 0, slices.Collect(maps.Keys(there))...)
	})
}

// Takers come and go while the network drops what they send.
func TestPool_stressWithLostReplies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindCluster {
			t.SkipNow()
		}
		const values = 10
		proxy := redistest.NewProxy(t, s.Addr())
		far := lock.New(proxy.Client(t), lock.Options{})
		t.Cleanup(func() { _ = far.Close() })
		src := sourceOf(t, lock.TTL(5*time.Second))
		watch, key := src.of(newLocker(t, s)), src.key(far)
		for i := range values {
			put(t, watch, 1, fmt.Sprint(i))
		}
		var mu sync.Mutex
		held := map[string]*pool.Lease{}
		var wg sync.WaitGroup
		for range 6 {
			redistest.Go(&wg, func() {
				for range 15 {
					le, err := src.of(far).Take(t.Context())
					if errors.Is(err, lock.ErrBackend) {
						continue // lost more often than the client tries
					}
					if err != nil {
						t.Errorf("Take: %v", err)
						return
					}
					mu.Lock()
					if other := held[le.Value()]; other != nil && other.Held() {
						t.Errorf("%q is held twice", le.Value())
					}
					held[le.Value()] = le
					mu.Unlock()
					proxy.DropReplyTo(func(command []string) bool { return slices.Contains(command, key) }, 1)
					mu.Lock()
					delete(held, le.Value())
					mu.Unlock()
					if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrBackend) {
						t.Errorf("Unlock: %v", err)
					}
				}
			})
		}
		wg.Wait()
		proxy.Heal()
		redistest.Eventually(t, redistest.Patience, func() bool { return inspect(t, watch).Free == values }, "all values back")
	})
}
