package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// Another holder's shorter TTL does not shorten the key's, and no operation
// leaves the key without one, or with one that ends before an entry.
func TestRule12_KeyOutlivesItsEntries(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		long, short := l.Semaphore(name, 2, TTL(time.Hour)), l.Semaphore(name, 2, TTL(5*time.Second))
		pttl := func() time.Duration { return raw(long).PTTL(t.Context(), long.Key()).Val() }
		check := func(when string) {
			t.Helper()
			audit(t, long)
			if left := pttl(); left < 59*time.Minute {
				t.Fatalf("%s the key lives for %s, want an hour: %s", when, left, dump(long))
			}
		}
		a := mustTry(t, long)
		check("taken,")
		b := mustTry(t, short)
		check("with a short holder beside,")
		mustBeBusy(t, short)
		check("asked for,")
		w := lockBeside(t, short)
		waiting(t, long, 1)
		check("waited for,")
		if reply := mustRenew(t, b, inside.MinTTL); reply != wire.RenewRenewed {
			t.Skip("a busy machine: the short lease has ended")
		}
		check("after a short renewal")
		mustUnlock(t, b)
		check("after a release that granted")
		redistest.Must(t, w.got(t).Cooldown(t.Context(), time.Second))
		check("with a cooldown,")
		if deadline, ok := holds(t, a); !ok || deadline.Before(serverNow(t, long).Add(59*time.Minute)) {
			t.Errorf("the long lease ends at %v", deadline)
		}
		mustUnlock(t, a)
		audit(t, long)
	})
}

// A renewal that makes a lease longer than the key makes the key live longer.
func TestRule12_ExtendExtendsTheKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(5*time.Second))
		le := mustTry(t, m)
		for _, d := range []time.Duration{10 * time.Second, time.Hour, 1000 * time.Hour} {
			redistest.Must(t, le.Extend(t.Context(), d))
			audit(t, m)
		}
		inLine(t, m, 1)
		mustUnlock(t, le)
	})
}

// What nobody touches any more goes by itself.
func TestRule12_GarbageGoes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindMini {
			t.SkipNow() // never ages keys
		}
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(inside.MinTTL), NoRenew())
		mustTry(t, m)
		free(t, m, soon)
	})
}
