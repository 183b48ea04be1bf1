package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// An ask that Redis has refused as a whole took nothing, so its token is not released, now or later.
func TestRefusedAsk_isNotReleased(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	near, far, p := through(t, s)
	mustUnlock(t, mustTry(t, far.Mutex("warm")))
	warm(t, near.Mutex("x"))
	tell(t, s.Client(t), "CONFIG", "SET", "maxmemory", "1")
	scripts := func() int { return p.Count("EVALSHA") + p.Count("EVAL") }
	before := scripts() // those of warm, of which there are more when each lock is a sorted set
	const n = 20
	for range n {
		for _, m := range []*Lock{far.Mutex(redistest.Name(t)), far.Semaphore(redistest.Name(t), 2)} {
			if _, err := m.TryLock(t.Context()); !errors.Is(err, ErrBackend) {
				t.Fatal(err)
			}
		}
	}
	if err := far.Close(); err != nil { // it waits for all releases
		t.Fatal(err)
	}
	if sent := scripts() - before; sent > 2*n+4 {
		t.Errorf("%d scripts for %d asks that were all refused", sent, 2*n)
	}
}

// A lease whose deadline has passed is lost, and no Extend brings it back.
func TestExtend_afterHeldSaidNo(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	lost := 0
	for range 20 {
		le, err := l.Mutex(redistest.Name(t), TTL(100*time.Millisecond), NoRenew()).TryLock(t.Context())
		redistest.Must(t, err)
		for le.Held() {
		}
		if err := le.Extend(t.Context(), time.Second); err == nil || le.Held() {
			t.Errorf("held again after Held had said false: %v", err)
		} else {
			lost++
		}
		_ = le.Unlock(t.Context())
	}
	if lost == 0 {
		t.Error("nothing was tried")
	}
}

// A renewal that was under way when Extend ran does not shorten the key, in either form.
func TestExtend_lateRenewalDoesNotShorten(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	near, far, p := through(t, s)
	for what, options := range map[string][]Option{"a string": nil, "a sorted set": {Fenced()}} {
		m := far.Mutex(redistest.Name(t), append(options, TTL(time.Minute))...)
		warm(t, m)
		le := mustTry(t, m)
		h := p.Hold(isScript(wire.RenewScript, m), 1)
		renewNow(far)
		redistest.Eventually(t, soon, func() bool { return h.Count() == 1 }, "a renewal under way")
		redistest.Must(t, le.Extend(t.Context(), 20*time.Minute))
		late := p.Count("EVALSHA")
		h.Release()
		redistest.Eventually(t, soon, func() bool {
			far.renewer.mu.Lock()
			defer far.renewer.mu.Unlock()
			return p.Count("EVALSHA") >= late && le.renewals == 0
		}, "the reply to it")
		if left := raw(near.Mutex(m.name)).PTTL(t.Context(), m.Key()).Val(); left < 15*time.Minute {
			t.Errorf("%s: the key lasts %s after an Extend by 20 minutes", what, left)
		}
		mustUnlock(t, le)
	}
}

// Somebody has made a lock persist. Its holder goes on, and releases it; that of one who died is free
// after the longest time that its lease can last.
func TestForm_madeToPersist(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what, options := range map[string][]Option{"string": nil, "zset": {Fenced()}} {
			l, other := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
			m := l.Mutex(redistest.Name(t)+what, options...)
			persist := func() {
				t.Helper()
				wantForm(t, m, what)
				if ok, err := raw(m).Persist(t.Context(), m.Key()).Result(); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			le := mustTry(t, m)
			persist()
			if busy := wantBusy(t, mustNotTry(t, handle(other, m))); busy.Reason != ReasonHeld {
				t.Errorf("%s: %+v", what, busy)
			}
			if err := le.Extend(t.Context(), 10*time.Second); err != nil {
				t.Errorf("%s: Extend: %v", what, err)
			}
			mustUnlock(t, le)

			le = mustTry(t, m)
			persist()
			w := inLine(t, handle(other, m), 1)
			audit(t, m)
			mustUnlock(t, le)
			mustUnlock(t, w.got(t))
			free(t, m, soon)

			m.locker.contended = newContendedKeys()
			le = mustTry(t, m)
			persist()
			if _, err := m.Holders(t.Context()); err != nil {
				t.Errorf("%s: Holders: %v", what, err)
			}
			mustUnlock(t, le)
		}
	})
}
