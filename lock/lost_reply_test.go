package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

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
				if a := mustAsk(t, others, beside[len(beside)-1], 0); !a.Yours {
					t.Fatalf("a slot of four is refused; %s", dump(others))
				}
			}
			again := mustAsk(t, ours.lock, ours, turn.EntryLifetime)
			if !first.Yours || !again.Yours || again.Fence <= first.Fence {
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

// The same for a busy lock: the asker is in line once, and busy is busy.
func TestRule03_ResentAskStandsInLineOnce(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, m)
		p.DropReplyTo(isScript(wire.AskScript, m), 2)
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
		o.PoolSize = 1 // or the ask is sent again on an idle connection, that of a read of the controls
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
