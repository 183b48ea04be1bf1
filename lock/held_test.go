package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A holder that was away past its deadline finds a successor and leaves it alone.
func TestRule02_LateReleaseLeavesTheSuccessorAlone(t *testing.T) {
	each(t, leavesTheSuccessorAlone)
}

func leavesTheSuccessorAlone(t *testing.T, s *redistest.Server) {
	a, b := twoProcesses(t, s)
	name := redistest.Name(t)
	late := mustTry(t, a.Mutex(name, lock.TTL(engine.MinTTL), lock.NoRenew()))
	m := b.Mutex(name, lock.TTL(time.Minute))
	successor := lockBeside(t, m).got(t)
	behind := inLine(t, m, 1)
	for what, call := range map[string]func() error{
		"Unlock":   func() error { return late.Unlock(t.Context()) },
		"Extend":   func() error { return late.Extend(t.Context(), time.Hour) },
		"Cooldown": func() error { return late.Cooldown(t.Context(), time.Hour) },
	} {
		wantErr(t, call(), lock.ErrNotHeld, "late %s", what)
	}
	d, ok := left(t, m, successor)
	if !ok || d > 2*time.Minute || !behind.pending() {
		t.Errorf("the successor holds for %s, %v; the one behind waits: %v", d, ok, behind.pending())
	}
	wantHeld(t, m, 1)
	mustUnlock(t, successor)
	mustUnlock(t, behind.got(t))
	free(t, m)
}

// What ended by its deadline, was deleted, or was released before, is not held any more, and its release says so, also
// by a server that has forgotten its scripts.
func TestUnlockAfterTheDeadline(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		for _, n := range []int{1, 2} {
			for what, options := range map[string][]lock.Option{"deadline": {lock.TTL(engine.MinTTL), lock.NoRenew()},
				"deleted": nil, "released": nil, "broken": nil} {
				m := l.Semaphore(redistest.Name(t), n, options...)
				le := mustTry(t, m)
				switch what {
				case "deadline":
					ends(t, le.Bind(t.Context()), lock.ErrLost)
				case "deleted":
					redistest.Must(t, m.Delete(t.Context()))
				case "released":
					mustUnlock(t, le)
				case "broken":
					redistest.Must(t, second(m.Break(t.Context(), le.Token())))
				}
				wantErr(t, le.Unlock(t.Context()), lock.ErrNotHeld, "%d slots, %s: Unlock", n, what)
				if err := le.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || le.Held() {
					t.Errorf("%d slots, %s: Extend: %v, want ErrNotHeld; held %v", n, what, err, le.Held())
				}
				free(t, m)
			}
		}
	})
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	m := newLocker(t, rdb).Mutex("forgotten")
	le := mustTry(t, m)
	redistest.Must(t, rdb.Del(t.Context(), m.Key()).Err())
	redistest.Must(t, rdb.ScriptFlush(t.Context()).Err())
	wantErr(t, le.Unlock(t.Context()), lock.ErrNotHeld, "by a forgotten script")
}

// Of several Unlocks at once, one is told that it was the one.
func TestDoubleUnlock(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		le := mustTry(t, mutexOn(t, s))
		var wg sync.WaitGroup
		var won atomic.Int32
		for range 8 {
			redistest.Go(&wg, func() {
				if err := le.Unlock(t.Context()); err == nil {
					won.Add(1)
				} else {
					wantErr(t, err, lock.ErrNotHeld, "Unlock")
				}
			})
		}
		if wg.Wait(); won.Load() != 1 {
			t.Errorf("%d of 8 Unlocks were it", won.Load())
		}
	})
}

// Release, Extend and Cooldown run when the context of the work has ended.
func TestLease_onAnEndedContext(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		m := mutexOn(t, s)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		le := mustTry(t, m)
		redistest.Must(t, le.Extend(ended, time.Minute))
		redistest.Must(t, le.Unlock(ended))
		free(t, m)
		redistest.Must(t, mustTry(t, m).Cooldown(ended, time.Minute))
		if busy := mustBeBusy(t, m); busy.Reason != lock.ReasonCooldown {
			t.Errorf("%+v, want a cooldown", busy)
		}
	})
}

// The reply to a command is lost after it ran, and go-redis sends it again: a take is a take, who is in line is there
// once, a release is a success, and the successor that is there already stays. A cooldown is there.
func TestRule03_ResentReleaseIsSuccess(t *testing.T) {
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		_, far, p := through(t, s, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
		m := far.Mutex(redistest.Name(t))
		takesAndUnlocks(t, m) // shows how the server deletes
		le := mustTry(t, m)
		p.DropReplyTo(touches(m), 1)
		if err := le.Unlock(t.Context()); err != nil { // the script that comes next finds nothing
			t.Errorf("Unlock by two commands: %v", err)
		}
		near, far, p := through(t, s)
		for _, n := range []int{1, 2} {
			name := redistest.Name(t)
			m := far.Semaphore(name, n)
			takesAndUnlocks(t, m)
			for lost := 1; lost <= 3; lost++ {
				p.DropReplyTo(touches(m), lost)
				le := mustTry(t, m)
				wantHeld(t, m, 1)
				p.DropReplyTo(touches(m), lost)
				if err := le.Unlock(t.Context()); err != nil {
					t.Errorf("Unlock with %d replies lost: %v", lost, err)
				}
				free(t, m)
			}
			var held []*lock.Lease
			for range n {
				held = append(held, mustTry(t, m))
			}
			p.DropReplyTo(touches(m), 2)
			mustBeBusy(t, m)
			w := inLine(t, m, 1)
			p.DropReplyTo(touches(m), 1)
			mustUnlock(t, held[0])
			next := w.got(t)
			if _, ok := left(t, near.Semaphore(name, n), next); !ok {
				t.Error("the successor is gone")
			}
			for _, le := range append(held[1:], next) {
				mustUnlock(t, le)
			}
			le := mustTry(t, m)
			p.DropReplyTo(touches(m), 1)
			redistest.Must(t, le.Extend(t.Context(), time.Hour))
			p.DropReplyTo(touches(m), 1)
			redistest.Must(t, le.Cooldown(t.Context(), time.Minute))
			if busy := mustBeBusy(t, m); busy.Reason != lock.ReasonCooldown {
				t.Errorf("%+v, want a cooldown", busy)
			}
		}
	})
}

// A lease outlives its TTL, whether it was taken or granted; and one that nobody renews ends.
func TestRule08_LeasesAreRenewed(t *testing.T) { each(t, isRenewed) }

func isRenewed(t *testing.T, s *redistest.Server) {
	l, name := lockerOn(t, s), redistest.Name(t)
	m := l.Mutex(name, lock.TTL(6*time.Second))
	outlives := func(le *lock.Lease) {
		t.Helper()
		ctx, ends := le.Bind(t.Context()), le.Deadline()
		eventually(t, func() bool { return le.Deadline().After(ends) || ctx.Err() != nil }, "a renewal")
		if d, ok := left(t, m, le); !ok || ctx.Err() != nil || d < time.Until(ends) {
			t.Fatalf("it lasts %s, held %v: %v", d, ok, context.Cause(ctx))
		}
	}
	le := mustTry(t, m)
	outlives(le)
	w := inLine(t, m, 1)
	mustUnlock(t, le)
	le = w.got(t)
	outlives(le)
	mustUnlock(t, le)
	le = mustTry(t, l.Mutex(name, lock.TTL(500*time.Millisecond), lock.NoRenew()))
	if !le.Held() && time.Now().Before(le.Deadline()) {
		t.Error("not held after TryLock")
	}
	for range 2 { // bound before the end, and after
		ends(t, le.Bind(t.Context()), lock.ErrLost)
	}
	if le.Held() {
		t.Error("held past its deadline")
	}
	free(t, m)
	le = mustTry(t, l.Mutex(name, lock.TTL(10*time.Second), lock.NoRenew())) // work has a margin in which to stop
	inRedis, _ := left(t, m, le)
	if here := time.Until(le.Deadline()); here > inRedis-500*time.Millisecond {
		t.Errorf("the lease lasts %s here, and %s in Redis", here, inRedis)
	}
	mustUnlock(t, le)
}

// The renewals of many leases travel together.
func TestRenewal_travelsTogether(t *testing.T) {
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		const n = 200
		rdb := s.Client(t, func(o *redis.UniversalOptions) { o.PoolSize = 20 })
		l := newLocker(t, rdb)
		for range n {
			mustTry(t, l.Mutex(redistest.Name(t), lock.TTL(9*time.Second)))
		}
		var sent pipelines
		rdb.AddHook(&sent)
		eventually(t, func() bool { return sent.commands.Load() >= n }, "a renewal of each")
		if most := sent.pipelines.Load(); most > n/4 {
			t.Errorf("%d renewals in %d pipelines", n, most)
		}
	})
}

// pipelines is a hook that counts pipelines of scripts, and the commands in them.
type pipelines struct {
	redistest.FailHook
	pipelines, commands atomic.Int64
}

func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[len(cmds)-1].Name(), "eval") {
			p.pipelines.Add(1)
			p.commands.Add(int64(len(cmds)))
		}
		return next(ctx, cmds)
	}
}

// Errors up to the deadline: the lease is lost then, by the local clock, and not taken back when the errors end.
func TestRule09_LostAtTheLocalDeadline(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		m := newLocker(t, rdb).Mutex(redistest.Name(t), lock.TTL(2*time.Second))
		le := mustTry(t, m)
		deadline := le.Deadline()
		hook.Before(func(cmd redis.Cmder) error {
			if touching(m)(cmd) {
				return errors.New("the network is down")
			}
			return nil
		})
		ends(t, le.Bind(t.Context()), lock.ErrLost)
		if early := time.Until(deadline); early > 0 {
			t.Errorf("lost %s before the local deadline", early)
		}
		hook.Before(nil)
		next := lockBeside(t, handle(lockerOn(t, s), m, lock.TTL(time.Minute))).got(t)
		if _, ok := left(t, m, le); ok || le.Held() {
			t.Error("held again")
		}
		mustUnlock(t, next)
	})
}

// An Extend is there at once, for the key too, and no renewal that was under way shortens it.
func TestRenewal_besideExtend(t *testing.T) {
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		for _, n := range []int{1, 2} {
			name := redistest.Name(t)
			m := far.Semaphore(name, n, lock.TTL(6*time.Second))
			le := mustTry(t, m)
			held := p.Hold(touches(m), 1)
			eventually(t, func() bool { return held.Count() == 1 }, "a renewal under way")
			redistest.Must(t, le.Extend(t.Context(), 20*time.Minute))
			held.Release()
			takesAndUnlocks(t, far.Mutex(name+"2"))
			look := near.Semaphore(name, n)
			if d, ok := left(t, look, le); !ok || d < 15*time.Minute {
				t.Errorf("%d slots: it lasts %s after an Extend by 20 minutes", n, d)
			}
			for _, d := range []time.Duration{time.Hour, 1000 * time.Hour} {
				redistest.Must(t, le.Extend(t.Context(), d))
				if life := s.Client(t).PTTL(t.Context(), m.Key()).Val(); life < d-time.Minute {
					t.Errorf("extended by %s, the key lives for %s", d, life)
				}
			}
			mustUnlock(t, le)
		}
	})
}

// What nobody touches any more goes by itself.
func TestRule12_GarbageGoes(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s)
		if s.Kind() == redistest.KindMini {
			return // it never ages keys
		}
		for _, n := range []int{1, 2} {
			m := l.Semaphore(redistest.Name(t), n, lock.TTL(engine.MinTTL), lock.NoRenew())
			mustTry(t, m)
			if n == 1 {
				free(t, m)
			}
			eventually(t, func() bool { return !inUse(t, m) }, "nothing in use")
		}
	})
}

// Memory is full: an ask that Redis refuses takes nothing, and what is held can be extended, beyond the life of its
// keys, too, and released.
func TestLease_fullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	l := newLocker(t, rdb)
	fat := l.Semaphore("fat", 2)
	held := []*lock.Lease{mustTry(t, l.Mutex("held")), mustTry(t, fat), mustTry(t, fat)}
	takesAndUnlocks(t, l.Semaphore("warm", 2))
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for _, n := range []int{1, 2} {
		wantErr(t, second(l.Semaphore("new", n).TryLock(t.Context())), lock.ErrBackend, "%d slots", n)
	}
	for _, le := range held {
		redistest.Must(t, errors.Join(le.Extend(t.Context(), time.Minute), le.Extend(t.Context(), time.Hour),
			le.Unlock(t.Context())))
	}
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	free(t, l.Mutex("new"))
	takesAndUnlocks(t, l.Mutex("new"))
}
