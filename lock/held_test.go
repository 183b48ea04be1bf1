package lock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A holder that was away past its deadline finds a successor and leaves it alone.
func TestRule02_LateReleaseLeavesTheSuccessorAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := twoProcesses(t, s)
		name := redistest.Name(t)
		late := mustTry(t, a.Mutex(name, lock.TTL(inside.MinTTL), lock.NoRenew()))
		m := b.Mutex(name, lock.TTL(time.Minute))
		successor := lockBeside(t, m).got(t)
		behind := inLine(t, m, 1)
		for what, call := range map[string]func() error{
			"Unlock":   func() error { return late.Unlock(t.Context()) },
			"Extend":   func() error { return late.Extend(t.Context(), time.Hour) },
			"Cooldown": func() error { return late.Cooldown(t.Context(), time.Hour) },
		} {
			if err := call(); !errors.Is(err, lock.ErrNotHeld) {
				t.Errorf("late %s: %v, want ErrNotHeld", what, err)
			}
		}
		d, ok := left(t, m, successor)
		if !ok || d > 2*time.Minute || !behind.pending() {
			t.Errorf("the successor holds for %s, %v; the one behind waits: %v", d, ok, behind.pending())
		}
		wantHeld(t, m, 1)
		mustUnlock(t, successor)
		mustUnlock(t, behind.got(t))
		free(t, m)
	})
}

// What ended by its deadline, was deleted, or was released before, is not held any more, and its release says so. A
// server that has forgotten its scripts does not make it otherwise.
func TestUnlockAfterTheDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		for _, n := range []int{1, 2} {
			for what, options := range map[string][]lock.Option{"deadline": {lock.TTL(inside.MinTTL), lock.NoRenew()}, "deleted": nil, "released": nil, "broken": nil} {
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
				if err := le.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
					t.Errorf("%d slots, %s: Unlock: %v, want ErrNotHeld", n, what, err)
				}
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
	if err := le.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("Unlock of a deleted lock by a forgotten script: %v, want ErrNotHeld", err)
	}
}

// Of several Unlocks at once, one is told that it was the one.
func TestDoubleUnlock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		le := mustTry(t, newLocker(t, s.Client(t)).Mutex(redistest.Name(t)))
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			redistest.Go(&wg, func() { errs[i] = le.Unlock(t.Context()) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, lock.ErrNotHeld) {
				t.Errorf("Unlock: %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d of 8 Unlocks succeeded, want 1", won)
		}
	})
}

// A release tells how many slots are free, and gives its slot to the line.
func TestLease_releaseTellsWhatIsFree(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3)
		a, b, c := mustTry(t, m), mustTry(t, m), mustTry(t, m)
		w := inLine(t, m, 1)
		for i, step := range []struct {
			le   *lock.Lease
			free int
		}{{a, 0}, {b, 1}, {c, 2}} {
			if n, err := step.le.Release(t.Context()); n != step.free || err != nil {
				t.Errorf("release %d: %d free, %v; want %d", i, n, err, step.free)
			}
		}
		if n, err := w.got(t).Release(t.Context()); n != 3 || err != nil {
			t.Errorf("last release: %d free, %v; want 3", n, err)
		}
	})
}

// Release, Extend and Cooldown run when the context of the work has ended.
func TestLease_onAnEndedContext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
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

// The reply to a command is lost after it ran, and go-redis sends it again: a take is a take, a release a success, and
// the successor that is there already stays. A cooldown is there.
func TestRule03_ResentReleaseIsSuccess(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
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
			w := inLine(t, near.Semaphore(name, n), 1)
			p.DropReplyTo(touches(m), 1)
			mustUnlock(t, held[0])
			next := w.got(t)
			if _, ok := left(t, m, next); !ok {
				t.Error("the successor is gone")
			}
			mustUnlock(t, next)
			for _, le := range held[1:] {
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

// Of a command nothing is heard: an error that Is ErrBackend, and the lock is free when the lease ends at the latest.
func TestLease_unheard(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s, impatient)
		for what, replies := range map[string]bool{"the reply is lost": true, "it is held up": false} {
			name := redistest.Name(t)
			m, of := near.Mutex(name, lock.TTL(2*time.Second)), far.Mutex(name, lock.TTL(2*time.Second))
			takesAndUnlocks(t, of)
			lose := func() (end func()) {
				if replies {
					p.DropReplyTo(touches(m), 1)
					return func() {}
				}
				return p.Hold(touches(m), 1).Release
			}
			end := lose()
			if le, err := of.TryLock(t.Context()); le != nil || !errors.Is(err, lock.ErrBackend) {
				t.Errorf("%s: TryLock: %v, %v; want ErrBackend", what, le, err)
			}
			end()
			le := untilTaken(t, of)
			end = lose()
			if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrBackend) {
				t.Errorf("%s: Unlock: %v, want ErrBackend", what, err)
			}
			free(t, m)
			next := mustTry(t, near.Mutex(name, lock.TTL(time.Minute)))
			end() // a copy that comes late leaves the successor alone
			takesAndUnlocks(t, far.Mutex(name+"2"))
			if _, ok := left(t, m, next); !ok {
				t.Errorf("%s: the successor is gone", what)
			}
			mustUnlock(t, next)
		}
	})
}

// Redis runs the command that takes the lock and replies with an error. The caller holds nothing, and neither does Redis soon.
func TestLease_takeThatRepliesWithAnError(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int{1, 2} {
			rdb := s.Client(t)
			m := newLocker(t, rdb).Semaphore(redistest.Name(t), n, lock.TTL(2*time.Second))
			takesAndUnlocks(t, m)
			hook := redistest.NewNthFault(1, redistest.CommandFault{Name: "x", Err: redistest.ReplyError("ERR x"), Sent: true}, touching(m))
			rdb.AddHook(hook)
			if le, err := m.TryLock(t.Context()); le != nil || !errors.Is(err, lock.ErrBackend) || hook.Failed() == "" {
				t.Errorf("%d slots: %v, %v; want ErrBackend", n, le, err)
			}
			free(t, m)
		}
	})
}

// A lease outlives its TTL, whether it was taken or granted; and one that nobody renews ends.
func TestRule08_LeasesAreRenewed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l, name := newLocker(t, rdb), redistest.Name(t)
		m := l.Mutex(name, lock.TTL(2*time.Second))
		le := mustTry(t, m)
		ctx := le.Bind(t.Context())
		passes(t, rdb, clockOf(t, rdb).Add(2500*time.Millisecond))
		if _, ok := left(t, m, le); !ok || ctx.Err() != nil {
			t.Fatalf("lost: %v", context.Cause(ctx))
		}
		w := inLine(t, m, 1)
		mustUnlock(t, le)
		le = w.got(t)
		ctx = le.Bind(t.Context())
		passes(t, rdb, clockOf(t, rdb).Add(3500*time.Millisecond)) // more than a grant lasts
		if _, ok := left(t, m, le); !ok || ctx.Err() != nil {
			t.Fatalf("a granted lease is lost: %v", context.Cause(ctx))
		}
		mustUnlock(t, le)
		le = mustTry(t, l.Mutex(name, lock.TTL(500*time.Millisecond), lock.NoRenew()))
		if !le.Held() {
			t.Error("not held after TryLock")
		}
		ends(t, le.Bind(t.Context()), lock.ErrLost)
		if le.Held() {
			t.Error("held past its deadline")
		}
		free(t, m)
	})
}

// Work that cannot renew its lease ends before the lease does in Redis.
func TestRenewal_workHasAMarginToStop(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), lock.TTL(10*time.Second), lock.NoRenew())
		le := mustTry(t, m)
		inRedis, _ := left(t, m, le)
		if here := time.Until(le.Deadline()); here > inRedis-500*time.Millisecond {
			t.Errorf("the lease lasts %s here, and %s in Redis", here, inRedis)
		}
		mustUnlock(t, le)
	})
}

// The renewals of many leases travel together.
func TestRenewal_travelsTogether(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		const n = 200
		s = calmServer(t, s)
		rdb := s.Client(t, func(o *redis.UniversalOptions) { o.PoolSize = 20 })
		l := newLocker(t, rdb)
		var locks []*lock.Lock
		for range n {
			locks = append(locks, l.Mutex(redistest.Name(t), lock.TTL(3*time.Second)))
			mustTry(t, locks[len(locks)-1])
		}
		var seen pipelines
		rdb.AddHook(&seen)
		redistest.Eventually(t, soon, func() bool { return seen.commands() >= n }, "a renewal of each")
		if most := seen.sent(); most > n/4 {
			t.Errorf("%d renewals in %d pipelines", n, most)
		}
		for _, m := range locks {
			wantHeld(t, m, 1)
		}
	})
}

// pipelines is a hook that counts pipelines of more than one command.
type pipelines struct {
	mu    sync.Mutex
	sizes []int
}

func (*pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[len(cmds)-1].Name(), "eval") {
			p.mu.Lock()
			p.sizes = append(p.sizes, len(cmds))
			p.mu.Unlock()
		}
		return next(ctx, cmds)
	}
}

func (p *pipelines) sent() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.sizes) }

func (p *pipelines) commands() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, size := range p.sizes {
		n += size
	}
	return n
}

// Whatever is transient is tried again, and does no harm before the deadline.
func TestRenewal_outlivesTransientErrors(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		l := newLocker(t, rdb)
		failing := map[any]error{}
		var mu sync.Mutex
		failed := map[any]int{} // by key
		type held struct {
			text string
			m    *lock.Lock
			le   *lock.Lease
			ctx  context.Context
		}
		var all []held
		for _, text := range []string{
			"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.", "TRYAGAIN Multiple keys request during rehashing of slot",
			"BUSY Redis is busy running a script.", "MOVED 1 127.0.0.1:1", "CLUSTERDOWN The cluster is down", "ERR something", "EOF",
		} {
			m := l.Mutex(redistest.Name(t), lock.TTL(4*time.Second))
			le := mustTry(t, m)
			all = append(all, held{text, m, le, le.Bind(t.Context())})
			if failing[m.Key()] = error(redistest.ReplyError(text)); text == "EOF" {
				failing[m.Key()] = io.EOF
			}
		}
		hook.Before(func(cmd redis.Cmder) error {
			mu.Lock()
			defer mu.Unlock()
			for _, arg := range cmd.Args() {
				if err := failing[arg]; err != nil && failed[arg] < 2 {
					failed[arg]++
					return err
				}
			}
			return nil
		})
		passes(t, rdb, clockOf(t, rdb).Add(4500*time.Millisecond))
		hook.Before(nil)
		for _, h := range all {
			if _, ok := left(t, h.m, h.le); !ok || h.ctx.Err() != nil || failed[h.m.Key()] < 2 {
				t.Errorf("after %q, and %d failures: lost: %v", h.text, failed[h.m.Key()], context.Cause(h.ctx))
				continue
			}
			mustUnlock(t, h.le)
		}
	})
}

// The server forgets the scripts over and over, and the network goes and comes back.
func TestRenewal_outlivesFlushesAndCuts(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	_, far, p := through(t, s)
	rdb := s.Client(t)
	type held struct {
		le  *lock.Lease
		ctx context.Context
	}
	var all []held
	for range 10 {
		m := far.Mutex(redistest.Name(t), lock.TTL(6*time.Second))
		le := mustTry(t, m)
		all = append(all, held{le, le.Bind(t.Context())})
		lockBeside(t, m)
	}
	p.Refuse(true)
	p.Cut()
	began := clockOf(t, rdb)
	redistest.Eventually(t, soon, func() bool {
		redistest.Must(t, rdb.ScriptFlush(t.Context()).Err())
		since := clockOf(t, rdb).Sub(began)
		if since > 2*time.Second {
			p.Refuse(false)
		}
		return since > 6500*time.Millisecond
	}, "more than a TTL")
	for i, h := range all {
		if h.ctx.Err() != nil || !h.le.Held() {
			t.Errorf("lease %d ended: %v", i, context.Cause(h.ctx))
		}
	}
}

// Errors up to the deadline: the lease is lost then, by the local clock, and not taken back when the errors end.
func TestRule09_LostAtTheLocalDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
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
		next := lockBeside(t, handle(newLocker(t, s.Client(t)), m, lock.TTL(time.Minute))).got(t)
		if _, ok := left(t, m, le); ok || le.Held() {
			t.Error("held again")
		}
		mustUnlock(t, next)
	})
}

// The lock was deleted, or lost by a failover: the next renewal says so.
func TestRenewal_findsTheLeaseGone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		for _, n := range []int{1, 2} {
			m := newLocker(t, rdb).Semaphore(redistest.Name(t), n, lock.TTL(9*time.Second))
			le := mustTry(t, m)
			ctx := le.Bind(t.Context())
			redistest.Must(t, rdb.Del(t.Context(), m.Key()).Err())
			if n > 1 { // whatever else there is of it
				redistest.Must(t, m.Delete(t.Context()))
			}
			ends(t, ctx, lock.ErrLost)
			free(t, m)
		}
	})
}

// An Extend is there at once, for the key too, and no renewal that was under way shortens it.
func TestRenewal_besideExtend(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		for _, n := range []int{1, 2} {
			name := redistest.Name(t)
			m := far.Semaphore(name, n, lock.TTL(2*time.Second))
			le := mustTry(t, m)
			held := p.Hold(touches(m), 1)
			redistest.Eventually(t, soon, func() bool { return held.Count() == 1 }, "a renewal under way")
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

// Another holder's shorter TTL does not shorten the key's life.
func TestRule12_KeyOutlivesItsEntries(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l, name := newLocker(t, rdb), redistest.Name(t)
		long, short := l.Semaphore(name, 2, lock.TTL(time.Hour)), l.Semaphore(name, 2, lock.TTL(5*time.Second))
		check := func(when string) {
			t.Helper()
			if life := rdb.PTTL(t.Context(), long.Key()).Val(); life < 59*time.Minute {
				t.Fatalf("%s the key lives for %s, want an hour", when, life)
			}
		}
		a := mustTry(t, long)
		b := mustTry(t, short)
		check("with a short holder beside")
		mustBeBusy(t, short)
		w := inLine(t, short, 1)
		check("waited for")
		mustUnlock(t, b)
		check("after a release that granted")
		redistest.Must(t, w.got(t).Cooldown(t.Context(), time.Second))
		check("with a cooldown")
		if d, ok := left(t, long, a); !ok || d < 59*time.Minute {
			t.Errorf("the long lease lasts %s", d)
		}
	})
}

// What nobody touches any more goes by itself.
func TestRule12_GarbageGoes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		if s.Kind() != redistest.KindMini { // it never ages keys
			for _, n := range []int{1, 2} {
				m := l.Semaphore(redistest.Name(t), n, lock.TTL(inside.MinTTL), lock.NoRenew())
				mustTry(t, m)
				if n == 1 {
					free(t, m)
				}
				redistest.Eventually(t, soon, func() bool { return !inUse(t, m) }, "nothing in use")
			}
		}
	})
}

// Redis hangs, or the connection of the first renewal does, shortly after a grant, for longer than a granted lease lasts.
func TestRenewal_ofAGrantOutlivesAStall(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, hangs := range []string{"Redis", "a connection"} {
		t.Run(hangs, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t)
			near, far, p := through(t, s)
			name := redistest.Name(t)
			m := far.Mutex(name)
			first := mustTry(t, near.Mutex(name))
			w := inLine(t, m, 1)
			mustUnlock(t, first)
			le := w.got(t)
			ctx := le.Bind(t.Context())
			if hangs == "Redis" {
				redistest.Eventually(t, soon, func() bool { return time.Until(le.Deadline()) > 6*time.Second }, "the first renewal")
				s.Pause(t)
				stopped := time.Now()
				redistest.Eventually(t, soon, func() bool { return time.Since(stopped) >= 4*time.Second }, "the stall")
				s.Resume(t)
			} else {
				hung := p.Hold(touches(m), 1)
				redistest.Eventually(t, soon, func() bool { return time.Until(le.Deadline()) > 6*time.Second || ctx.Err() != nil }, "a renewal")
				hung.Release()
			}
			if !le.Held() || ctx.Err() != nil {
				t.Fatalf("lost: %v", context.Cause(ctx))
			}
			mustUnlock(t, le)
		})
	}
}

// refusals are ways to keep a client that works out: Redis answers the set-up of each new connection with an error.
var refusals = map[string]func(t *testing.T, admin redis.UniversalClient, user string){
	"user deleted": func(t *testing.T, admin redis.UniversalClient, user string) { tell(t, admin, "ACL", "DELUSER", user) },
	"user switched off": func(t *testing.T, admin redis.UniversalClient, user string) {
		tell(t, admin, "ACL", "SETUSER", user, "off")
		tell(t, admin, "CLIENT", "KILL", "USER", user)
	},
	"other password": func(t *testing.T, admin redis.UniversalClient, user string) {
		tell(t, admin, "ACL", "SETUSER", user, "resetpass", ">other")
		tell(t, admin, "CLIENT", "KILL", "USER", user)
	},
}

// A renewal that never reached Redis, since the server refused the set-up of the connection, renews nothing: the lease
// is lost at its deadline, and only then there is another holder. If the rights come back in time it is not.
func TestRefusedSetUp_leaseIsLost(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		for _, replicas := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, MinReplicas %d", name, replicas), func(t *testing.T) {
				t.Parallel()
				s := redistest.StartReal(t)
				if replicas > 0 {
					redistest.StartReplica(t, s)
				}
				admin := s.Client(t)
				first := newLocker(t, withUser(t, s, admin, "first"), minReplicas(replicas)).Mutex("x", lock.TTL(2*time.Second))
				other := handle(newLocker(t, withUser(t, s, admin, "second"), minReplicas(replicas)), first, lock.TTL(time.Minute))
				le := mustTry(t, first)
				bound := le.Bind(t.Context())
				refuse(t, admin, "first")
				next := lockBeside(t, other).got(t)
				if le.Held() || !next.Held() {
					t.Errorf("held by the first: %v, by the second: %v", le.Held(), next.Held())
				}
				ends(t, bound, lock.ErrLost)
				mustUnlock(t, next)
			})
		}
	}
	s := redistest.StartReal(t)
	admin := s.Client(t)
	le := mustTry(t, newLocker(t, withUser(t, s, admin, "back")).Mutex("y", lock.TTL(6*time.Second)))
	before := le.Deadline()
	refusals["user switched off"](t, admin, "back")
	redistest.Eventually(t, soon, func() bool { return time.Until(before) < 3*time.Second }, "a renewal that is due")
	tell(t, admin, "ACL", "SETUSER", "back", "on")
	redistest.Eventually(t, soon, func() bool { return time.Now().After(before.Add(time.Second)) }, "more time than the lease had")
	if !le.Held() {
		t.Error("the lease was lost although its owner was let in again in time")
	}
}

// Memory is full: an ask that Redis refuses takes nothing.
func TestLease_fullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	l := newLocker(t, rdb)
	held := mustTry(t, l.Mutex("held"))
	takesAndUnlocks(t, l.Semaphore("warm", 2))
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for _, n := range []int{1, 2} {
		if _, err := l.Semaphore("new", n).TryLock(t.Context()); !errors.Is(err, lock.ErrBackend) {
			t.Errorf("%d slots: %v, want ErrBackend", n, err)
		}
	}
	mustUnlock(t, held)
	redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	free(t, l.Mutex("new"))
	takesAndUnlocks(t, l.Mutex("new"))
}

// go-redis sends a release again that a demoted master refused. The refused copy did not release the lock, so Unlock of a
// lock that was lost meanwhile says so.
func TestLease_redirected(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartCluster(t, 0)
	l, replicated := newLocker(t, s.Client(t)), newLocker(t, s.Client(t), minReplicas(1))
	m := l.Mutex(redistest.Name(t), lock.TTL(time.Minute))
	notReplicated := func() {
		t.Helper()
		if _, err := handle(replicated, m).TryLock(t.Context()); !errors.Is(err, lock.ErrNotReplicated) {
			t.Errorf("with MinReplicas: %v, want ErrNotReplicated", err)
		}
	}
	s.MoveSlot(t, m.Key(), func() {
		notReplicated()
		takesAndUnlocks(t, m)
	})
	notReplicated()
}
