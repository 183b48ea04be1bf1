package lock_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// callWorld draws calls of this package, one after the other, on a Redis whose clock only they move on. It knows
// exactly what each call has to answer.
type callWorld struct {
	t      *testing.T
	random *rand.Rand
	s      *redistest.Server
	l      *lock.Locker
	m      *lock.Lock
	name   string
	slots  int // that the program gives
	fenced bool
	now    time.Time
	leases []*lock.Lease // all that were taken, also those that have ended

	// What the lock's state has to be.
	held             []*lock.Lease
	limit            int // in force, without a pause
	paused           bool
	closed, cooldown time.Time     // when the gate opens, for each reason
	early            time.Duration // by how much the cooldown may end earlier; see onTime
	every, spare     time.Duration
	rate             time.Time // when the rate allows the next start
	fence            int64

	done map[string]int // calls with an effect, by name
}

func newCallWorld(t *testing.T, seed uint64) *callWorld {
	w := &callWorld{t: t, random: rand.New(rand.NewPCG(seed, 0)), s: redistest.StartMini(t), now: time.UnixMicro(time.Now().UnixMicro()), done: map[string]int{}}
	w.s.SetTime(t, w.now)
	w.name, w.slots = redistest.Name(t), 1+w.random.IntN(3)
	w.limit = w.slots
	options := []lock.Option{lock.TTL(24 * time.Hour), lock.NoRenew()}
	if w.fenced = w.random.IntN(2) == 0; w.fenced {
		options = append(options, lock.Fenced())
	}
	if w.random.IntN(2) == 0 {
		burst := 1 + w.random.IntN(3)
		w.every = time.Second
		w.spare = w.every * time.Duration(burst-1)
		options = append(options, lock.Rate(1, w.every, burst))
	}
	w.l = newLocker(t, w.s.Client(t), ownPrefix(t))
	w.m = w.l.Semaphore(w.name, w.slots, options...)
	return w
}

func (w *callWorld) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.s.SetTime(w.t, w.now)
}

// duration is up to three seconds, in whole milliseconds.
func (w *callWorld) duration() time.Duration {
	return time.Duration(1+w.random.IntN(3000)) * time.Millisecond
}

// reason is why a TryLock has to be refused now; empty: it is not. until is when the gate opens, if that is the reason.
func (w *callWorld) reason() (reason string, until time.Time) {
	full := len(w.held) >= w.limit
	switch {
	case w.paused:
		return lock.ReasonPaused, time.Time{}
	case w.closed.After(w.now):
		return lock.ReasonClosed, w.closed
	case full:
		return lock.ReasonHeld, time.Time{}
	case w.cooldown.After(w.now):
		return lock.ReasonCooldown, w.cooldown
	case w.every > 0 && w.rate.After(w.now):
		return lock.ReasonRate, w.rate
	}
	return "", time.Time{}
}

// onTime tells whether a gate opens when it should, by the difference. A cooldown ends so long after the call by the clock of
// the caller, which goes on until the command is written, while that of Redis stands still here.
func (w *callWorld) onTime(reason string, difference time.Duration) bool {
	return difference.Abs() <= 2*time.Millisecond || reason == lock.ReasonCooldown && difference < 0 && -difference <= w.early+2*time.Millisecond
}

func (w *callWorld) tryLock() {
	w.t.Helper()
	want, until := w.reason()
	le, err := w.m.TryLock(w.t.Context())
	if want != "" {
		if busy := wantBusy(w.t, err); busy.Reason != want || !until.IsZero() && !w.onTime(want, busy.ExpiresIn-until.Sub(w.now)) {
			w.t.Fatalf("TryLock is refused by %q for %s, want %q until %s; %s", busy.Reason, busy.ExpiresIn, want, until.Sub(w.now), dump(w.m))
		}
		w.done["refused: "+want]++
		return
	}
	if err != nil {
		w.t.Fatalf("TryLock: %v, want the lock; %s", err, dump(w.m))
	}
	w.done["TryLock"]++
	if w.fenced {
		if fence := fenceOf(w.t, le); fence <= w.fence {
			w.t.Fatalf("fence %d after %d", fence, w.fence)
		} else {
			w.fence = fence
		}
	}
	w.leases, w.held = append(w.leases, le), append(w.held, le)
	if w.every > 0 {
		if spared := w.now.Add(-w.spare); spared.After(w.rate) {
			w.rate = spared
		}
		w.rate = w.rate.Add(w.every)
	}
}

// any is a lease, half of the time one that is held.
func (w *callWorld) any() *lock.Lease {
	from := w.leases
	if len(w.held) > 0 && w.random.IntN(2) == 0 {
		from = w.held
	}
	if len(from) == 0 {
		return nil
	}
	return from[w.random.IntN(len(from))]
}

// ended notes that a lease is held no more.
func (w *callWorld) ended(le *lock.Lease) {
	w.held = slices.DeleteFunc(w.held, func(other *lock.Lease) bool { return other == le })
}

// onLease makes one call on a lease, and reports whether the lease was held.
func (w *callWorld) onLease(name string, le *lock.Lease, call func() error) bool {
	w.t.Helper()
	isHeld := slices.Contains(w.held, le)
	if err := call(); isHeld && err != nil || !isHeld && !errors.Is(err, lock.ErrNotHeld) {
		w.t.Fatalf("%s: %v; held: %v; %s", name, err, isHeld, dump(w.m))
	}
	if isHeld {
		w.done[name]++
	}
	return isHeld
}

// step draws one call.
func (w *callWorld) step() {
	w.t.Helper()
	ctx, controls, d := w.t.Context(), w.l.Controls(), w.duration()
	w.pass(time.Microsecond) // no two commands of a real Redis come at one time
	if left := w.cooldown.Sub(w.now); left > 0 && left <= w.early+2*time.Millisecond {
		w.pass(left) // it may have ended
	}
	n := w.random.IntN(100)
	if n < 40 {
		w.tryLock()
		return
	}
	if n < 55 {
		w.pass(d)
		return
	}
	if n >= 86 {
		var err error
		switch {
		case n < 89:
			w.limit = 1 + w.random.IntN(4)
			err = controls.SetLimit(ctx, w.name, w.limit, "a test")
		case n < 91:
			w.limit = w.slots
			err = controls.ClearLimit(ctx, w.name)
		case n < 93:
			w.paused = true
			err = controls.Pause(ctx, w.name, time.Time{}, "a test")
		case n < 97:
			w.paused = false
			err = controls.Resume(ctx, w.name)
		default:
			want := len(w.held)
			if w.closed.After(w.now) || w.cooldown.After(w.now) {
				want++
			}
			broken, failed := w.m.BreakAll(ctx)
			if err = failed; broken != want {
				w.t.Fatalf("BreakAll took %d away, want %d; %s", broken, want, dump(w.m))
			}
			w.held, w.closed, w.cooldown = nil, time.Time{}, time.Time{}
		}
		redistest.Must(w.t, err)
		return
	}
	le := w.any()
	switch {
	case le == nil:
	case n < 65:
		w.onLease("Unlock", le, func() error { return le.Unlock(ctx) })
		w.ended(le)
	case n < 70:
		began := time.Now()
		if w.onLease("Cooldown", le, func() error { return le.Cooldown(ctx, d) }) && w.now.Add(d).After(w.cooldown) {
			w.cooldown, w.early = w.now.Add(d), time.Since(began)
		}
		w.ended(le)
	case n < 74:
		for _, d := range []time.Duration{d, w.duration()} { // the second one may be the shorter one
			if w.onLease("CloseGate", le, func() error { return insider.CloseGate(ctx, le, d) }) && w.now.Add(d).After(w.closed) {
				w.closed = w.now.Add(d)
			}
		}
	case n < 79:
		w.onLease("Unlock", le, func() error { return le.Unlock(ctx) })
		w.ended(le)
	case n < 82:
		w.onLease("Extend", le, func() error { return le.Extend(ctx, 24*time.Hour+d) })
	default:
		isHeld := slices.Contains(w.held, le)
		if ok, err := w.m.Break(ctx, le.Token()); ok != isHeld || err != nil {
			w.t.Fatalf("Break: %v, %v; held: %v; %s", ok, err, isHeld, dump(w.m))
		}
		w.ended(le)
	}
}

// audit holds what Redis says against what has to be.
func (w *callWorld) audit() {
	w.t.Helper()
	holders, err := w.m.Holders(w.t.Context())
	redistest.Must(w.t, err)
	tokens := make([]string, 0, len(holders))
	for _, h := range holders {
		tokens = append(tokens, h.Token)
	}
	for _, le := range w.held {
		if !slices.Contains(tokens, le.Token()) {
			w.t.Fatalf("%s does not hold the lock, but %q; %s", le.Token(), tokens, dump(w.m))
		}
	}
	if len(tokens) != len(w.held) {
		w.t.Fatalf("%q hold the lock, want %d; %s", tokens, len(w.held), dump(w.m))
	}
}

// Any calls in any order, with holders, limits, pauses, gates, cooldowns and a rate: each answers what a model says.
func TestCalls_agreeWithAModel(t *testing.T) {
	t.Parallel()
	total := map[string]int{}
	for seed := range uint64(12) {
		w := newCallWorld(t, seed)
		for range 200 {
			w.step()
			w.audit()
		}
		for name, n := range w.done {
			total[name] += n
		}
	}
	for _, name := range []string{
		"TryLock", "Unlock", "Cooldown", "CloseGate", "Extend",
		"refused: " + lock.ReasonPaused, "refused: " + lock.ReasonClosed, "refused: " + lock.ReasonHeld, "refused: " + lock.ReasonCooldown, "refused: " + lock.ReasonRate,
	} {
		if total[name] < 10 {
			t.Errorf("%q happened %d times: this test shows too little", name, total[name])
		}
	}
	t.Log(total)
}
