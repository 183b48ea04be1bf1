package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestRule01_AtMostNHolders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3)
		var leases []*Lease
		for range 3 {
			leases = append(leases, mustTry(t, m))
		}
		mustBeBusy(t, m)
		if n := band(t, m, "h:"); n != 3 {
			t.Fatalf("%d holders are stored, want 3; %s", n, dump(m))
		}

		// A set, not a count: what is released twice frees one slot.
		mustUnlock(t, leases[0])
		if err := leases[0].Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("second Unlock: %v, want ErrNotHeld", err)
		}
		if _, held, err := leases[0].release(t.Context()); held || err != nil {
			t.Errorf("a release sent twice: held %v, %v", held, err)
		}
		mustTry(t, m)
		mustBeBusy(t, m)
	})
}

func TestRule01_LoweringNTakesEffectAsHoldersLeave(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		three, one := l.Semaphore(name, 3), l.Semaphore(name, 1)
		var leases []*Lease
		for range 3 {
			leases = append(leases, mustTry(t, three))
		}
		w := inLine(t, one, 1)
		for _, le := range leases[:2] {
			if free, err := le.lock.locker.Mutex(name).releaseAs(t, le); free != 0 || err != nil {
				t.Fatalf("Release with N lowered to 1: %d free, %v; want 0", free, err)
			}
			if !w.pending() {
				t.Fatalf("a waiter with N = 1 got the lock beside another holder")
			}
			mustBeBusy(t, one)
		}
		mustUnlock(t, leases[2])
		mustUnlock(t, w.got(t))
	})
}

// releaseAs releases le as a caller with m's limit does.
func (m *Lock) releaseAs(t *testing.T, le *Lease) (int, error) {
	le.lock = m
	return le.Release(t.Context())
}

func TestRule01_RaisingNFillsTheNewSlotsAtTheNextAsk(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		one, three := l.Mutex(name), l.Semaphore(name, 3)
		mustTry(t, one)
		first, second, third := inLine(t, one, 1), inLine(t, one, 2), inLine(t, one, 3)
		// The asker sees three slots: the two new ones go to the line, not to it.
		mustBeBusy(t, three)
		if n := band(t, one, "h:"); n != 3 {
			t.Fatalf("%d holders after N was raised to 3, want 3; %s", n, dump(one))
		}
		first.got(t)
		second.got(t)
		if !third.pending() {
			t.Fatal("the third in line has the lock as well")
		}
	})
}

func TestRule01_RaisingNFillsTheNewSlotsAtTheNextRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		one, two := l.Mutex(name), l.Semaphore(name, 2)
		held := mustTry(t, one)
		first, second := inLine(t, one, 1), inLine(t, one, 2)
		if free, err := two.releaseAs(t, held); free != 0 || err != nil {
			t.Fatalf("Release: %d free, %v", free, err)
		}
		first.got(t)
		second.got(t)
	})
}

// The reply to the ask is lost after it ran; go-redis sends it again.
func TestRule03_ResentAskIsOurs(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		for name, take := range map[string]func(*Lock) (*Lease, error){
			"TryLock": func(m *Lock) (*Lease, error) { return m.TryLock(t.Context()) },
			"Lock":    func(m *Lock) (*Lease, error) { return m.Lock(t.Context()) },
		} {
			// Lockers each: one that met a contended key may take another for contended, too.
			near, far, p := through(t, s)
			m := far.Mutex(redistest.Name(t))
			warm(t, m)
			p.DropReplyTo(isTake(m), 1)
			before := p.Count("EVALSHA") + p.Count("SET")
			le, err := take(m)
			if err != nil {
				t.Fatalf("%s with its first reply lost: %v, want the lock; %s", name, err, dump(m))
			}
			want := 2
			if m.locker.strings {
				want = 3 // the SET twice, and the ask that finds that it is ours
			}
			if n := p.Count("EVALSHA") + p.Count("SET") - before; n != want {
				t.Fatalf("%s sent %d commands, want %d", name, n, want)
			}
			if _, ok := holds(t, le); !ok {
				t.Fatalf("%s: not stored as holder; %s", name, dump(m))
			}
			mustBeBusy(t, handle(near, m))
			mustUnlock(t, le)
			free(t, handle(near, m), soon)
		}
	})
}

// An ask knows its own token as a holder, whoever else has a slot with an earlier
// deadline: callers may differ in N.
func TestRule03_ResentAskIsOursBesideOtherHolders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		for _, n := range []int{1, 2, 4} {
			ours := l.Semaphore(name, n, TTL(time.Minute)).newLease()
			first := mustAsk(t, ours.lock, ours, 0)
			others := l.Semaphore(name, 4, TTL(10*time.Second))
			var beside []*Lease
			for range 3 {
				beside = append(beside, others.newLease())
				if a := mustAsk(t, others, beside[len(beside)-1], 0); !a.yours {
					t.Fatalf("a slot of four is refused; %s", dump(others))
				}
			}
			again := mustAsk(t, ours.lock, ours, entryLifetime)
			if !first.yours || !again.yours || again.fence <= first.fence {
				t.Errorf("N = %d: two asks of one token are answered %+v and %+v, want yours both times; %s", n, first, again, dump(others))
			}
			for _, le := range append(beside, ours) {
				if _, held, err := le.release(t.Context()); !held || err != nil {
					t.Fatal(held, err)
				}
			}
		}
	})
}

// A release finds the slots of holders that have died, and gives them to the
// line as well.
func TestReleaseGrantsWhatHasRunOut(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	l := newLocker(t, s.Client(t))
	now := time.Now()
	s.SetTime(t, now)
	m := l.Semaphore(redistest.Name(t), 3, TTL(time.Minute))
	dead := handle(l, m, TTL(time.Second))
	lives := m.newLease()
	for _, le := range []*Lease{lives, dead.newLease(), dead.newLease()} {
		mustAsk(t, le.lock, le, 0)
	}
	var line []*Lease
	for range 4 {
		le := m.newLease()
		mustAsk(t, m, le, entryLifetime)
		line = append(line, le)
	}
	s.SetTime(t, now.Add(2*time.Second))
	if free, held, err := lives.release(t.Context()); free != 0 || !held || err != nil {
		t.Fatal(free, held, err)
	}
	for i, le := range line {
		if _, ok := holds(t, le); ok != (i < 3) {
			t.Errorf("the one in place %d is granted a slot: %t; %s", i, ok, dump(m))
		}
	}
}

// The same for a busy lock: the asker is in line once, and busy is busy.
func TestRule03_ResentAskStandsInLineOnce(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, m)
		p.DropReplyTo(isScript(askScript, m), 2)
		mustBeBusy(t, handle(far, m))
		w := inLine(t, handle(far, m), 1)
		if n := band(t, m, "e:"); n != 1 {
			t.Fatalf("%d entries in line, want 1; %s", n, dump(m))
		}
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
		free(t, m, soon)
	})
}

// The client gives up after the ask ran: whether it did is not known, so it is
// released.
func TestRule03_UnknownOutcomeIsReleased(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
		m := near.Mutex(redistest.Name(t))
		warm(t, m)
		p.DropReplyTo(isTake(m), 1)
		_, err := handle(far, m).TryLock(t.Context())
		if !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) {
			t.Fatalf("TryLock with its reply lost: %v, want ErrBackend", err)
		}
		free(t, m, soon)
	})
}

// The ask is still under way when the client gives up and the first release
// goes out; it takes the lock later, and the second release frees it.
func TestRule03_UnknownOutcomeIsReleasedAgainLater(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	near, far, p := through(t, s, func(o *redis.UniversalOptions) {
		o.MaxRetries, o.ReadTimeout = -1, time.Second
	})
	m := near.Mutex(redistest.Name(t), TTL(time.Minute))
	warm(t, m)
	held := p.Hold(isTake(m), 1)
	if _, err := handle(far, m).TryLock(t.Context()); !errors.Is(err, ErrBackend) {
		t.Fatalf("TryLock without an answer: %v, want ErrBackend", err)
	}
	redistest.Eventually(t, soon, func() bool { return p.Count("EVALSHA") == 1 }, "the first release")
	held.Release()
	redistest.Eventually(t, soon, func() bool { return band(t, m, "h:") == 1 }, "the late ask taking the lock")
	free(t, m, soon)
}

// The first write of an ask runs and its reply is lost; what go-redis reports in
// the end is that it could not dial. That does not mean that nothing ran.
func TestRule03_UnknownOutcomeBehindADialErrorIsReleased(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	dial := newSwitchedDialer()
	near, far, p := through(t, s, func(o *redis.UniversalOptions) {
		o.Dialer, o.MaxRetries = dial.dial, 1
		redistest.DialOnce(o)
	})
	m := near.Mutex(redistest.Name(t), TTL(time.Minute))
	warm(t, m)
	ask := isTake(m)
	p.DropReplyTo(func(command []string) bool {
		if !ask(command) {
			return false
		}
		dial.refuse.Store(true)
		return true
	}, 1)
	if _, err := handle(far, m).TryLock(t.Context()); !errors.Is(err, ErrBackend) {
		t.Fatalf("TryLock: %v, want ErrBackend", err)
	}
	dial.refuse.Store(false)
	free(t, m, soon)
}

// Ask and join are one script: when the busy answer is there, so is the entry.
func TestRule04_AskAndJoinAreOneScript(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		warm(t, m)
		holder, waiter := m.newLease(), m.newLease()
		if a := mustAsk(t, m, holder, entryLifetime); !a.yours {
			t.Fatalf("the first ask is answered %+v", a)
		}
		k.reset()
		if a := mustAsk(t, m, waiter, entryLifetime); a.yours || a.place != 0 {
			t.Fatalf("the second ask is answered %+v", a)
		}
		if _, ok := stored(t, m)["e:"+waiter.body]; !ok || k.count(askScript) != 1 {
			t.Fatalf("after one ask (%d calls) the asker is not in line; %s", k.count(askScript), dump(m))
		}
	})
}

// Lock joins with its first ask, not only with a later one.
func TestRule04_LockJoinsWithItsFirstAsk(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		warm(t, m)
		mustTry(t, m)
		k := newTap(rdb)
		inLine(t, m, 1)
		k.mu.Lock()
		defer k.mu.Unlock()
		if first := k.first["ask"]; len(first) != 3 || first[2] != entryLifetime.Milliseconds() {
			t.Errorf("the first ask of Lock is %v, want one that stays for %s", first, entryLifetime)
		}
	})
}

// Release and grant are one script: when the release is answered, the waiter is
// the holder, though its own process has not stirred.
func TestRule04_ReleaseAndGrantAreOneScript(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		holder, waiter := m.newLease(), m.newLease()
		mustAsk(t, m, holder, entryLifetime)
		mustAsk(t, m, waiter, entryLifetime)
		if free, held, err := holder.release(t.Context()); !held || free != 0 || err != nil {
			t.Fatalf("release: held %v, %d free, %v", held, free, err)
		}
		if _, ok := holds(t, waiter); !ok || band(t, m, "e:") != 0 || band(t, m, "d:") != 0 {
			t.Fatalf("the release did not grant; %s", dump(m))
		}
		audit(t, m)
	})
}

// mustAsk runs one ask and nothing else: what is behind it does not stir. lifetime is
// that of its line entry; 0: it does not join the line.
func mustAsk(t testing.TB, m *Lock, le *Lease, lifetime time.Duration) answer {
	t.Helper()
	if lifetime == 0 {
		a, err := m.ask(t.Context(), le, modeTry)
		if err != nil {
			t.Fatal(err)
		}
		audit(t, m)
		return a
	}
	a := mustJoin(t, m, le, lifetime)
	audit(t, m)
	return a
}

// mustJoin joins the line of m with an entry that lives for lifetime.
func mustJoin(t testing.TB, m *Lock, le *Lease, lifetime time.Duration) answer {
	t.Helper()
	s, args := m.kind.ask(le, modeJoin)
	args[2] = lifetime.Milliseconds()
	reply, err := m.locker.conn.Run(t.Context(), s, m.keys, args)
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.parseAnswer(reply)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestBusyErrorTellsWhoHolds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		a, b := newLocker(t, rdb, owner("alice:1")), newLocker(t, rdb)
		m := a.Mutex(redistest.Name(t), Note("task 17"), TTL(10*time.Second))
		mustTry(t, m)
		busy := mustBeBusy(t, handle(b, m))
		if busy.Name != m.name || busy.Holder != "alice:1" || busy.Note != "task 17" || busy.Waited != 0 {
			t.Errorf("busy: %+v", busy)
		}
		if busy.ExpiresIn <= 0 || busy.ExpiresIn > 10*time.Second+time.Millisecond {
			t.Errorf("busy expires in %s, want about 10s", busy.ExpiresIn)
		}
		for _, part := range []string{m.name, "alice:1"} {
			if !strings.Contains(busy.Error(), part) {
				t.Errorf("%q does not name %q", busy.Error(), part)
			}
		}
		inLine(t, handle(b, m), 1)
		if busy := mustBeBusy(t, handle(b, m)); busy.Place != 1 {
			t.Errorf("with one in line: place %d, want 1", busy.Place)
		}
	})
}

// Among several holders the one with the asker's own note is named.
func TestBusyErrorNamesTheHolderWithOurNote(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		notes := []string{"a", "b|%\n", "c"}
		for _, note := range notes {
			mustTry(t, l.Semaphore(name, 3, Note(note)))
		}
		for _, note := range notes {
			if busy := mustBeBusy(t, l.Semaphore(name, 3, Note(note))); busy.Note != note {
				t.Errorf("asked with note %q, told of %q", note, busy.Note)
			}
		}
	})
}

func TestLockWithAnEndedContext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := m.Lock(ended)
		if wantBusy(t, err); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock: %v, want it to be context.Canceled too", err)
		}
		if _, err := m.TryLock(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("TryLock: %v, want context.Canceled", err)
		}
		if err := m.Do(ended, func(context.Context) error { t.Error("Do ran its function"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("Do: %v, want context.Canceled", err)
		}
		free(t, m, soon)
	})
}

func TestLockThatRunsOutOfTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t), owner("bob")).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		const most = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), most)
		defer cancel()
		_, err := m.Lock(ctx)
		busy := wantBusy(t, err)
		if !errors.Is(err, context.DeadlineExceeded) || busy.Holder != "bob" || busy.Waited < most {
			t.Errorf("Lock: %v (%+v)", err, busy)
		}
		if n, _ := m.Waiting(t.Context()); n != 0 {
			t.Errorf("%d still in line; %s", n, dump(m))
		}
		mustUnlock(t, held)
		free(t, m, soon)
	})
}
