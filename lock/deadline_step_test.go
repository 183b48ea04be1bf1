package lock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// stepped is a Redis with a clock of its own, at the second from which steps count.
func stepped(t *testing.T) (l *Locker, step func(time.Duration)) {
	t.Helper()
	s := redistest.StartMini(t)
	start := time.Now()
	step = func(d time.Duration) { s.SetTime(t, start.Add(d)) }
	step(0)
	// In a miniredis the clock's steps do not move when keys expire.
	return asksAlways(newLocker(t, s.Client(t))), step
}

// renewed renews the lease and returns the reply. Unlike mustRenew it does not look at
// the key's TTL: in a miniredis that does not follow a step of the clock.
func renewed(t *testing.T, le *Lease, length time.Duration) int64 {
	t.Helper()
	reply, err := le.lock.locker.conn.Run(t.Context(), wire.RenewScript, le.lock.keys, []any{le.body, length.Milliseconds()})
	redistest.Must(t, err)
	code, _ := reply.(int64)
	return code
}

// busyFor asks for m and returns for how long it is taken yet.
func busyFor(t *testing.T, m *Lock) time.Duration {
	t.Helper()
	_, err := m.TryLock(t.Context())
	busy, ok := asBusy(err)
	if !ok {
		t.Fatalf("TryLock: %v, want a *BusyError; %s", err, dump(m))
	}
	return busy.ExpiresIn
}

// A holder that renews after a backward step of Redis' clock, and then dies, keeps the
// lock for 30 s, not for the length of the step.
func TestClockStep_backBeforeACrash(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	m := l.Mutex(redistest.Name(t), TTL(30*time.Second), NoRenew())
	le := mustTry(t, m)
	step(-time.Hour)
	if reply := renewed(t, le, 30*time.Second); reply != wire.RenewRenewed {
		t.Fatalf("the renewal is answered %d", reply)
	}
	if left := busyFor(t, m); left < 30*time.Second || left > 31*time.Second {
		t.Errorf("after the step the lock is taken for %s, want 30 s", left)
	}
	step(-time.Hour + 29*time.Second)
	if left := busyFor(t, m); left > 2*time.Second {
		t.Errorf("29 s later the lock is taken for %s", left)
	}
	step(-time.Hour + 31*time.Second)
	mustUnlock(t, mustTry(t, m))
}

// The same for a holder that was a string until somebody waited.
func TestForm_clockStepsBackAfterAWait(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	l.strings = true
	m := l.Mutex(redistest.Name(t), TTL(30*time.Second), NoRenew())
	le := mustTry(t, m)
	wantForm(t, m, "string")
	w := inLine(t, handle(l, m), 1)
	w.cancel()
	wantBusy(t, w.failed(t))
	wantForm(t, m, "zset")
	step(-time.Hour)
	if left := busyFor(t, m); left < 30*time.Second || left > 31*time.Second {
		t.Errorf("after the step the lock is taken for %s, want 30 s", left)
	}
	mustUnlock(t, le)
}

// The clock is an hour ahead when a cooldown of 2 s begins, and is then set right.
func TestClockStep_cooldownFromTheFuture(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	m := l.Mutex(redistest.Name(t))
	step(time.Hour)
	redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), 2*time.Second))
	step(0)
	if left := busyFor(t, m); left > 31*time.Second {
		t.Errorf("the cooldown of 2 s lasts %s", left)
	}
	step(31 * time.Second)
	mustUnlock(t, mustTry(t, m))
}

// A cooldown that is longer than 30 s lasts its length after a step.
func TestClockStep_longCooldownFromTheFuture(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	m := l.Mutex(redistest.Name(t))
	step(24 * time.Hour)
	redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), time.Hour))
	step(0)
	if left := busyFor(t, m); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the cooldown of an hour lasts %s", left)
	}
}

// A lease that was extended by an hour is stored for an hour at least, whatever the
// clock does after it, who asks, and how often it is renewed with its TTL.
func TestClockStep_extendedLeaseKeepsItsLength(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	m := l.Mutex(redistest.Name(t), TTL(5*time.Second), NoRenew())
	other := handle(newLocker(t, raw(m)), m, TTL(inside.MinTTL))
	le := mustTry(t, m)
	redistest.Must(t, le.Extend(t.Context(), time.Hour))
	for _, d := range []time.Duration{-time.Minute, -time.Hour, -25 * time.Hour, -26 * time.Hour} {
		step(d)
		if left := busyFor(t, other); left < time.Hour || left > 2*time.Hour+time.Minute {
			t.Errorf("with a step of %s: taken for %s, want one to two hours", d, left)
		}
		if reply := renewed(t, le, 5*time.Second); reply != wire.RenewRenewed {
			t.Fatalf("the renewal is answered %d", reply)
		}
	}
	// A renewal moves the end again: the mark of the hour stays.
	step(48 * time.Hour)
	if reply := renewed(t, le, 5*time.Second); reply != wire.RenewLost {
		t.Errorf("a renewal two days after the end is answered %d", reply)
	}
}

// A forward step makes a renewal of 5 s move the end of a lease that was extended by an
// hour. After the step back its holder believes in that hour still.
func TestClockStep_markOfALengthStays(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	m := l.Mutex(redistest.Name(t), TTL(5*time.Second), NoRenew())
	le := mustTry(t, m)
	redistest.Must(t, le.Extend(t.Context(), time.Hour))
	step(time.Hour - time.Second)
	if reply := renewed(t, le, 5*time.Second); reply != wire.RenewRenewed {
		t.Fatalf("the renewal is answered %d", reply)
	}
	step(0)
	if left := busyFor(t, m); left < time.Hour {
		t.Errorf("taken for %s, and its holder believes in it for an hour", left)
	}
	step(-time.Hour)
	if left := busyFor(t, m); left < time.Hour {
		t.Errorf("after another step back: taken for %s, and its holder believes in it for an hour", left)
	}
}

// Two processes with different TTLs share a semaphore. Each of their leases keeps what
// its own holder may believe in, and no more than twice of it or 30 s.
func TestClockStep_differentTTLs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		short := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2, TTL(10*time.Second))
		long := handle(newLocker(t, s.Client(t)), short, TTL(10*time.Minute))
		leases := map[*Lease]time.Duration{mustTry(t, short): 30 * time.Second, mustTry(t, long): 20 * time.Minute}
		for le := range leases { // as if the clock had been a day ahead
			score := stored(t, short)["h:"+le.body]
			far := redis.Z{Score: score + float64((24 * time.Hour).Milliseconds()), Member: "h:" + le.body}
			redistest.Must(t, raw(short).ZAdd(t.Context(), short.Key(), far).Err())
		}
		redistest.Must(t, raw(short).PExpire(t.Context(), short.Key(), 25*time.Hour).Err())
		now := serverNow(t, short)
		busyFor(t, handle(newLocker(t, s.Client(t)), short, TTL(inside.MinTTL)))
		after := serverNow(t, short)
		for le, most := range leases {
			deadline, ok := holds(t, le)
			if !ok || deadline.Before(now.Add(le.lock.ttl)) || deadline.After(after.Add(most+time.Second)) {
				t.Errorf("with a TTL of %s: stored %v, for %s, want at most %s; %s", le.lock.ttl, ok, deadline.Sub(now), most, dump(short))
			}
			mustUnlock(t, le)
		}
	})
}

// A Redis whose memory is full lets an end that is too far be lowered.
func TestClockStep_fullRedis(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t, "--maxmemory-policy", "noeviction")
	rdb := s.Client(t)
	m := asksAlways(newLocker(t, rdb)).Mutex(redistest.Name(t), NoRenew())
	le := mustTry(t, m)
	far := redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "h:" + le.body}
	redistest.Must(t, rdb.ZAdd(t.Context(), m.Key(), far).Err())
	tell(t, rdb, "CONFIG", "SET", "maxmemory", "1mb")
	if left := busyFor(t, m); left > 31*time.Second {
		t.Errorf("taken for %s", left)
	}
}
