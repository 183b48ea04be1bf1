package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

func minReplicas(n int) func(*Options) { return func(o *Options) { o.MinReplicas = n } }

// acknowledged holds a lease against what the replica knows.
func acknowledged(t *testing.T, replica redis.UniversalClient, le *Lease) {
	t.Helper()
	ms, err := replica.ZScore(t.Context(), le.lock.Key(), "h:"+le.body).Result()
	if err != nil {
		t.Fatalf("the replica does not know the lease that was handed out: %v", err)
	}
	if until := time.Until(time.UnixMilli(int64(ms))); until < time.Until(le.Deadline()) {
		t.Errorf("the replica knows it for %s, we believe in it for %s", until, time.Until(le.Deadline()))
	}
}

// Acquired on the spot and by a grant, and extended: whoever has the lease has
// it on the replica too.
func TestMinReplicas(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s).Client(t)
	m := newLocker(t, s.Client(t), minReplicas(1)).Mutex(redistest.Name(t))
	for range 20 {
		le := mustTry(t, m)
		acknowledged(t, replica, le)
		w := inLine(t, handle(newLocker(t, s.Client(t), minReplicas(1)), m), 1)
		redistest.Must(t, le.Extend(t.Context(), time.Hour))
		acknowledged(t, replica, le)
		mustUnlock(t, le)
		acknowledged(t, replica, w.got(t))
		mustUnlock(t, w.got(t))
	}
	free(t, m, soon)

	p := m.locker.Pool(redistest.Name(t))
	if _, err := p.Put(t.Context(), "value"); err != nil {
		t.Fatal(err)
	}
	le, err := p.m.TryLock(t.Context())
	redistest.Must(t, err)
	if _, err := replica.ZScore(t.Context(), p.m.Key(), "h:"+le.value+"|"+le.body).Result(); err != nil {
		t.Errorf("the replica does not know who took the value: %v", err)
	}
	if err := le.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// A replica that is frozen acknowledges nothing. Whoever wants its word is told
// so within the bound, and leaves nothing behind; who does not, is not held up.
func TestMinReplicas_frozen(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	m := newLocker(t, s.Client(t), minReplicas(1)).Mutex(redistest.Name(t))
	mustUnlock(t, mustTry(t, m)) // connected, and known to work
	replica.Pause(t)

	refused := func(err error, took time.Duration) {
		t.Helper()
		if !errors.Is(err, ErrNotReplicated) || !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) {
			t.Errorf("%v; want ErrNotReplicated", err)
		} else if !strings.Contains(err.Error(), "0 of the 1 of MinReplicas acknowledged within") {
			t.Errorf("the error does not say how many: %v", err)
		}
		if took < inside.ReplicasWithin/2 || took > inside.ReplicasWithin+exchange.Timeout {
			t.Errorf("refused after %s, the bound is %s", took, inside.ReplicasWithin)
		}
	}
	began := time.Now()
	_, err := m.TryLock(t.Context())
	refused(err, time.Since(began))
	free(t, m, soon)

	began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := m.Lock(ctx); !errors.Is(err, ErrNotReplicated) || time.Since(began) > inside.ReplicasWithin {
		t.Errorf("under a context of 300ms: %v after %s", err, time.Since(began))
	}
	free(t, m, soon)

	// By a grant: the one before it does not ask for replicas, and is not held up.
	careless := handle(newLocker(t, s.Client(t)), m)
	le := mustTry(t, careless)
	w := inLine(t, m, 1)
	mustUnlock(t, le)
	began = time.Now()
	refused(w.failed(t), time.Since(began))
	free(t, m, soon)

	replica.Resume(t)
	mustUnlock(t, mustTry(t, m))
	free(t, m, soon)
}

// A renewal that no replica has does not count: the lease ends where the last one
// that counted said, and the holder is told. When they are back in time it lasts.
func TestMinReplicas_renewals(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	l := newLocker(t, s.Client(t), minReplicas(1))
	lost := mustTry(t, l.Mutex(redistest.Name(t), TTL(time.Second)))
	kept := mustTry(t, l.Mutex(redistest.Name(t), TTL(20*time.Second)))
	bound, lasting := lost.Bind(t.Context()), kept.Bind(t.Context())
	redistest.Must(t, kept.Extend(t.Context(), 30*time.Second))
	before := kept.Deadline() // and no renewal is due for a while
	replica.Pause(t)
	end := lost.Deadline().Add(time.Second / 2) // of which one renewal may have counted yet
	if err := kept.Extend(t.Context(), time.Hour); !errors.Is(err, ErrNotReplicated) {
		t.Errorf("Extend without a replica: %v", err)
	}
	if !kept.Deadline().Equal(before) || !kept.Held() {
		t.Error("an Extend that does not count changed the deadline")
	}
	select {
	case <-bound.Done():
	case <-time.After(soon):
		t.Fatal("a lease that no replica renews was not lost")
	}
	if late := time.Since(end); late > soon/4 || !errors.Is(context.Cause(bound), ErrLost) {
		t.Errorf("lost %s late: %v", late, context.Cause(bound))
	}
	replica.Resume(t)
	// Less than what is stored, and yet something has to get to the replica.
	was, written := kept.Deadline(), stored(t, kept.lock)["f"]
	redistest.Eventually(t, soon, func() bool { return kept.Extend(t.Context(), 40*time.Second) == nil }, "an Extend that counts")
	if !kept.Deadline().After(was) || stored(t, kept.lock)["f"] == written {
		t.Errorf("extended from %s to %s, with fence %v then %v", was, kept.Deadline(), written, stored(t, kept.lock)["f"])
	}
	if lasting.Err() != nil || time.Until(kept.Deadline()) < 30*time.Second {
		t.Errorf("lost: %v; %s left", context.Cause(lasting), time.Until(kept.Deadline()))
	}
	mustUnlock(t, kept)
}

// Renewals of many leases are confirmed with one WAIT.
func TestMinReplicas_renewalsTravelTogether(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	redistest.StartReplica(t, s)
	p := redistest.NewProxy(t, s.Addr())
	l := newLocker(t, p.Client(t), minReplicas(1))
	const n = 20
	var leases []*Lease
	for range n {
		leases = append(leases, mustTry(t, l.Mutex(redistest.Name(t), NoRenew())))
	}
	if err := s.Client(t).ScriptFlush(t.Context()).Err(); err != nil { // which makes no difference
		t.Fatal(err)
	}
	waits := p.Count("WAIT")
	for _, c := range l.sendRenewals(leases) {
		if c.Err != nil || c.Reply != int64(wire.RenewRenewed) {
			t.Errorf("%v, %v", c.Reply, c.Err)
		}
	}
	if got := p.Count("WAIT") - waits; got != 1 {
		t.Errorf("%d WAITs for %d renewals", got, n)
	}
}

// The case of a failover: what was handed out is known to who is promoted, and
// stays ours; what was not, was not handed out.
func TestMinReplicas_failover(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	name := redistest.Name(t)
	le := mustTry(t, newLocker(t, s.Client(t), minReplicas(1)).Mutex(name))
	s.Kill(t)
	replica.Promote(t)
	m := newLocker(t, replica.Client(t)).Mutex(name)
	if busy := mustBeBusy(t, m); busy.ExpiresIn < time.Until(le.Deadline()) {
		t.Errorf("the one that was promoted knows it for %s, we believe for %s", busy.ExpiresIn, time.Until(le.Deadline()))
	}
}

// What cannot wait for replicas says so: a Redis that has none, a user that may
// not, a client of which nobody knows whom it asks.
func TestMinReplicas_impossible(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t), minReplicas(1)).Mutex(redistest.Name(t))
	if _, err := m.TryLock(t.Context()); !errors.Is(err, ErrNotReplicated) {
		t.Errorf("without replicas: %v", err)
	}
	free(t, m, soon)

	rdb := redistest.Real(t).Client(t)
	hook := &redistest.FailHook{}
	rdb.AddHook(hook)
	hook.Before(func(cmd redis.Cmder) error {
		if strings.EqualFold(cmd.Name(), "wait") {
			return redistest.ReplyError("NOPERM this user has no permissions to run the 'wait' command")
		}
		return nil
	})
	m = newLocker(t, rdb, minReplicas(1)).Mutex(redistest.Name(t))
	_, err := m.TryLock(t.Context())
	if !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), "WAIT, which MinReplicas needs") || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("without the right: %v", err)
	}
	free(t, m, soon)

	for n, want := range map[int]string{-1: "MinReplicas is -1", 1: "does not go with a lock.otherClient"} {
		l := New(otherClient{rdb}, Options{MinReplicas: n})
		if err := l.life.Unfit(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", n, err, want)
		}
	}
	if err := New(otherClient{rdb}, Options{}).life.Unfit(); err != nil {
		t.Error(err)
	}
}

// otherClient is a Client that is neither of go-redis'.
type otherClient struct{ Client }
