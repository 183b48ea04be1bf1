package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// A lease that is extended beyond what its token says becomes a sorted set, which knows how
// long it may last; others do not cut it short.
func TestForm_extendedBeyondTheToken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Minute), NoRenew())
		other := handle(newLocker(t, s.Client(t)), m, TTL(inside.MinTTL))
		le := mustTry(t, m)
		for _, step := range []struct {
			length time.Duration
			form   string
		}{{time.Minute, "string"}, {10 * time.Minute, "zset"}, {time.Second, "zset"}} {
			redistest.Must(t, le.Extend(t.Context(), step.length))
			wantForm(t, m, step.form)
			if busy := mustBeBusy(t, other); busy.ExpiresIn < step.length-soon || busy.ExpiresIn > 10*time.Minute+time.Second {
				t.Errorf("extended by %s it ends in %s", step.length, busy.ExpiresIn)
			}
		}
		mustUnlock(t, le)
		free(t, m, soon)
	})
}

// A Redis that stands still between two commands of the script that widens a lock does not
// make the holder's deadline come sooner.
func TestForm_slowWideningKeepsTheDeadline(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Minute), NoRenew())
	le := mustTry(t, m)
	_, before, ok := storedString(t, m)
	if !ok {
		t.Fatal("no string")
	}
	const read = "local left = redis.call('PTTL', lock)"
	slow := strings.Replace(wire.AskScript.Source, read, "for _ = 1, 2e7 do end "+read, 1)
	if slow == wire.AskScript.Source {
		t.Fatalf("%s is not in the script", read)
	}
	waiter := m.newLease()
	redistest.Must(t, raw(m).Eval(t.Context(), slow, m.keys, waiter.body, 61_000, 1000).Err())
	wantForm(t, m, "zset")
	// What is read of a string may be a millisecond more than is so.
	if after, ok := holds(t, le); !ok || after.Before(before.Add(-time.Millisecond)) {
		t.Errorf("the deadline was %s, and is %s earlier", before, before.Sub(after))
	}
}

// Redis' clock steps back: the key of a string would last longer by the step. Whoever
// meets it brings its end back, to the longest that its lease can last.
func TestForm_clockStepsBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, meet := range map[string]func(*Lock) time.Duration{
			"tries": func(m *Lock) time.Duration { return mustBeBusy(t, m).ExpiresIn },
			"waits": func(m *Lock) time.Duration {
				inLine(t, m, 1)
				return mustBeBusy(t, m).ExpiresIn
			},
		} {
			for ttl, most := range map[time.Duration]time.Duration{10 * time.Second: 30 * time.Second, 30 * time.Second: 30 * time.Second, 100 * time.Second: 2 * time.Minute} {
				m := newLocker(t, s.Client(t)).Mutex(fmt.Sprint(redistest.Name(t), name, ttl), TTL(ttl), NoRenew())
				le := m.newLease()
				if ok, err := m.takeString(t.Context(), le); !ok || err != nil {
					t.Fatal(ok, err)
				}
				raw(m).PExpire(t.Context(), m.Key(), time.Hour) // as a step by almost that leaves it
				other := handle(newLocker(t, s.Client(t)), m, TTL(time.Minute))
				if left := meet(other); left > most+2*time.Second || left < most-soon {
					t.Errorf("%s: of a lease of %s are left %s, want %s", name, ttl, left, most)
				}
				if left := raw(m).PTTL(t.Context(), m.Key()).Val(); left > most+5*time.Second {
					t.Errorf("%s: the key of a lease of %s lasts %s", name, ttl, left)
				}
			}
		}
	})
}

// A string that is no lock's is left alone, and told of.
func TestForm_foreignString(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Note("note"))
		for value, life := range map[string]time.Duration{
			"some text": time.Minute,
		} {
			redistest.Must(t, raw(m).Set(t.Context(), m.Key(), value, life).Err())
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			for what, call := range map[string]func() error{
				"TryLock":    func() error { return second(m.TryLock(ctx)) },
				"Lock":       func() error { return second(m.Lock(ctx)) },
				"LockOrPark": func() error { return second(m.lockOrPark(ctx, closedYield)) },
				"Inspect":    func() error { return second(m.inspectAll(ctx)) },
				"BreakAll":   func() error { return second(m.BreakAll(ctx)) },
			} {
				if err := call(); !errors.Is(err, ErrBackend) || !exchange.WrongType(err) {
					t.Errorf("%s with %q there: %v, want WRONGTYPE", what, value, err)
				}
			}
			cancel()
			if got := raw(m).Get(t.Context(), m.Key()).Val(); got != value {
				t.Errorf("%q became %q", value, got)
			}
		}
	})
}

// A command that Redis refuses while a lock is widened leaves the holder its lock, for as
// long as it had it.
func TestForm_refusedWhileItIsWidened(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"mget", "pttl", "pexpire", "del", "zadd", "zadd without set", "zrangebyscore", "exists", "time"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			admin := s.Client(t)
			m := newLocker(t, admin).Mutex(redistest.Name(t), TTL(time.Minute), Note("holder"))
			command, without, _ := strings.Cut(command, " without ")
			rights := []any{"-" + command}
			if without != "" {
				rights = append(rights, "-"+without)
			}
			other := handle(newLocker(t, denied(t, s, admin, rights...)), m, Note("other"))
			le := mustTry(t, m)
			for range 3 {
				_, err := other.lockOrPark(t.Context(), closedYield)
				wantDenied(t, "LockOrPark", err, strings.ToUpper(command))
				if _, ok := holds(t, le); !ok {
					t.Fatalf("the holder has lost its lock; %s", dump(m))
				}
				if left := raw(m).PTTL(t.Context(), m.Key()).Val(); left > time.Minute+time.Second+time.Millisecond || left < time.Minute-soon {
					t.Errorf("the key lasts %s", left)
				}
			}
			mustUnlock(t, le)
		})
	}
}

// A Redis whose memory is full lets a string be widened, waited for, renewed and released.
func TestForm_fullRedis(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t, "--maxmemory-policy", "noeviction")
	rdb := s.Client(t)
	m := newLocker(t, rdb).Mutex(redistest.Name(t), TTL(time.Minute))
	warm(t, m)
	le := mustTry(t, m)
	tell(t, rdb, "CONFIG", "SET", "maxmemory", "1mb")
	if err := second(newLocker(t, rdb).Mutex(redistest.Name(t)).TryLock(t.Context())); !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) {
		t.Errorf("TryLock of another lock: %v, want ErrBackend", err)
	}
	if err := le.Extend(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	w := inLine(t, handle(newLocker(t, rdb), m), 1)
	mustUnlock(t, le)
	mustUnlock(t, w.got(t))
}

// Without the right to SET each lock is a sorted set, and one line of the log says so.
func TestForm_withoutTheRightToSet(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	admin := s.Client(t)
	log := &redistest.Log{}
	l := newLocker(t, denied(t, s, admin, "-set"), logTo(log))
	for range 3 {
		m := l.Mutex(redistest.Name(t))
		le := mustTry(t, m)
		if kind, err := admin.Type(t.Context(), m.Key()).Result(); kind != "zset" || err != nil {
			t.Errorf("stored as %s, %v", kind, err)
		}
		mustUnlock(t, le)
	}
	if n := strings.Count(log.String(), "command=SET "); n != 1 {
		t.Errorf("SET was named %d times:\n%s", n, log.String())
	}
}

// A refresh of a waiter whose lock was taken away finds a string in its place: it widens
// that, and waits on.
func TestForm_waiterMeetsAnotherString(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		mustTry(t, m)
		w := inLine(t, handle(newLocker(t, s.Client(t)), m), 1)
		thief := handle(newLocker(t, s.Client(t)), m, TTL(time.Minute))
		le := thief.newLease()
		// In one transaction, or the waiter might take the lock between the two.
		if _, err := raw(m).TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Del(t.Context(), m.Key())
			p.Set(t.Context(), m.Key(), &le.asks, time.Minute)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		waiting(t, m, 1)
		if !w.pending() {
			t.Errorf("the waiter did not wait; %s", dump(m))
		}
		if _, held, err := le.release(t.Context()); !held || err != nil {
			t.Fatal(held, err)
		}
		mustUnlock(t, w.got(t))
	})
}
