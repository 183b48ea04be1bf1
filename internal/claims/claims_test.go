package claims

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is a claim whose calls have to succeed.
type rig struct {
	Claim
	t   *testing.T
	rdb redis.UniversalClient
}

func start(t *testing.T, s *redistest.Server) rig {
	rdb, l := s.Client(t), life.New()
	t.Cleanup(func() { <-l.End() })
	conn := redisx.New(rdb, l.Closing.Done())
	return rig{Of(l, conn, "automutex:{"+redistest.Name(t)+"}"), t, rdb}
}

func (r rig) take(holder, instead string) Standing {
	r.t.Helper()
	got, err := r.Take(r.t.Context(), holder, instead, time.Minute)
	redistest.Must(r.t, err)
	return got
}

// is checks whose claim stands, and its phase; "" that none does.
func (r rig) is(holder string, phase Phase) {
	r.t.Helper()
	got := r.take("looks", "")
	if holder == "" {
		holder, phase = "looks", Enqueuing
	}
	if got.Holder != holder || got.Phase != phase {
		r.t.Errorf("the claim is %s's, %s; want %s's, %s", got.Holder, got.Phase, holder, phase)
	}
	r.must(holder == "looks", r.Drop, "looks")
}

func (r rig) must(want bool, do func(context.Context, string) (bool, error), holder string) {
	r.t.Helper()
	if got, err := do(r.t.Context(), holder); err != nil || got != want {
		r.t.Errorf("%s: %v, %v; want %v", holder, got, err, want)
	}
}

func (r rig) start(want bool, holder string, phase Phase, ends bool) {
	r.t.Helper()
	r.must(want, func(ctx context.Context, holder string) (bool, error) {
		return r.Start(ctx, holder, phase, ends, time.Minute)
	}, holder)
}

// supersede announces newer in the place of a claim that was seen, and says whether it was.
func (r rig) supersede(want bool, newer string, old Standing) Standing {
	r.t.Helper()
	got, err := r.Supersede(r.t.Context(), newer, old)
	if is := got.Newer == newer; err != nil || is != want {
		r.t.Errorf("announced in the claim of %s, %s is %+v, %v; want %v", old.Holder, newer, got, err, want)
	}
	return got
}

// keep confirms holder's task, and says whether the claim is holder's.
func (r rig) keep(want bool, holder string, length time.Duration) {
	r.t.Helper()
	got, err := r.Keep(r.t.Context(), holder, length)
	if is := got.Holder == holder && got.Phase != Enqueuing; err != nil || is != want {
		r.t.Errorf("kept by %s, the claim is %+v, %v; want %v", holder, got, err, want)
	}
}

// expires checks the deadline, and how long Redis keeps the key: with stale tasks for longer.
func (r rig) expires(about time.Duration) {
	r.t.Helper()
	words := strings.Fields(r.rdb.Get(r.t.Context(), r.Key()).Val())
	deadline, _ := strconv.ParseInt(words[1], 10, 64)
	for _, left := range []time.Duration{time.Until(time.UnixMilli(deadline)), r.rdb.PTTL(r.t.Context(), r.Key()).Val()} {
		if left <= about/2 || left > about+2*time.Second {
			r.t.Errorf("it expires in %s, want %s", left, about)
		}
		if words[5] != "-" {
			about = max(about, Kept)
		}
	}
}

func TestClaim_life(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		r.must(false, r.Drop, "a") // nothing was taken
		r.keep(false, "a", time.Minute)
		r.take("a", "")
		if again := r.take("a", ""); again.Holder != "a" {
			t.Errorf("a claim taken twice is %+v", again)
		}
		r.must(false, r.Drop, "b") // it is another's
		r.take("b", "x")
		r.is("a", Enqueuing)
		redistest.Eventually(t, redistest.Patience, func() bool { return r.take("b", "").Age >= 20*time.Millisecond },
			"an age")
		r.keep(true, "a", time.Hour)
		r.expires(time.Hour)
		for range 2 { // as if resent
			if got := r.supersede(true, "b", Standing{Holder: "a"}); got.Holder != "a" || got.Phase != Enqueued {
				t.Errorf("before it is confirmed: %+v", got)
			}
		}
		r.keep(true, "b", 0)
		r.keep(true, "b", 0)
		r.expires(time.Hour)
		got := r.take("c", "")
		if got.Holder != "b" || got.Phase != Enqueued || got.Age < 20*time.Millisecond ||
			!slices.Equal(got.Stale, []string{"a"}) {
			t.Errorf("after it was passed on: %+v", got)
		}
		r.take("c", "b") // a new one
		r.is("c", Enqueuing)
		r.expires(time.Minute)
		for range 2 { // it shortens the claim, and never prolongs it
			_, err := r.Start(t.Context(), "c", Ended, false, 30*time.Second)
			redistest.Must(t, err)
			r.start(true, "c", Ended, false)
			r.expires(30 * time.Second)
		}
		r.is("c", Enqueuing)
		r.must(true, r.Drop, "c")
		r.must(false, r.Drop, "c")
		// The stored deadline ends it, whether or not Redis has removed the key.
		redistest.Must(t, r.rdb.Set(t.Context(), r.Key(), "1000 2000 begun - 0 - a", 0).Err())
		r.keep(false, "a", time.Minute)
		r.must(false, r.Drop, "a")
		r.is("", "")
	})
}

// A call with a context that has ended changes nothing.
func TestClaim_contextEnded(t *testing.T) {
	r := start(t, redistest.Mini(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Take(ended, "a", "", time.Minute); err == nil || r.rdb.Exists(t.Context(), r.Key()).Val() != 0 {
		t.Errorf("taken, or %v", err)
	}
}

// The start of a handler and the confirmation of a newer task exclude each other: what comes first counts, also when it
// is sent again.
func TestStart_orSuperseded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, ends := range []bool{true, false} {
			r := start(t, s)
			const first, second, third = "q/k:n.1", "q/k:n.2", "q/k:n.3"
			r.start(true, first, Begun, ends) // no claim stands
			r.take(first, "")
			for range 2 {
				r.start(true, first, Waiting, ends)
				r.start(true, first, Begun, ends)
			}
			if ends {
				r.is("", "")
			} else {
				r.is(first, Begun)
			}
			r.supersede(false, second, Standing{Holder: first})
			r.keep(false, second, 0)
			r.start(true, first, Waiting, ends) // its next attempt
			if !ends {
				r.is(first, Begun)
			}
			r.start(true, first, Begun, ends)
			r.rdb.Del(t.Context(), r.Key())

			// Announced, and the old one begins all the same: the newer one is refused, or is the next one.
			old := r.take(first, "")
			r.start(true, first, Waiting, ends)
			r.supersede(true, second, old)
			r.start(true, first, Begun, ends)
			r.keep(ends, second, 0)
			r.start(ends, second, Begun, ends)
			r.start(true, first, Begun, ends) // its next attempt
			r.rdb.Del(t.Context(), r.Key())

			// Confirmed: the old one never begins. The claim knows that until the old one has ended, also in the hands of
			// the next.
			old = r.take(first, "")
			r.start(true, first, Waiting, ends)
			r.supersede(true, second, old)
			r.keep(true, second, 0)
			for range 2 {
				r.start(false, first, Waiting, ends)
				r.start(false, first, Begun, ends)
			}
			r.is(second, Enqueued)
			r.take(third, second)
			r.must(true, r.Drop, third) // it was not enqueued
			r.start(false, first, Begun, ends)
			r.take(third, "")
			r.start(false, first, Begun, ends)
			r.start(true, second, Begun, ends)
			r.start(true, third, Begun, ends)
			r.is(third, Begun)
			r.start(false, first, Ended, ends)
			if ends {
				r.is("", "")
			} else {
				r.is(third, Begun)
			}
			r.rdb.Del(t.Context(), r.Key())
		}
	})
}

// A superseded task never begins until it has ended, however many claims have been over since.
func TestStart_supersededBefore(t *testing.T) {
	s := redistest.StartMini(t)
	r, now := start(t, s), time.Now()
	s.SetTime(t, now)
	r.supersede(true, "b", r.take("a", ""))
	r.keep(true, "b", 0)
	for _, next := range []string{"c", "d", "e"} {
		now = now.Add(time.Hour)
		s.SetTime(t, now)
		r.start(false, "a", Begun, false)
		r.take(next, "")
		r.is(next, Enqueuing)
		r.start(false, "a", Waiting, false)
	}
	s.SetTime(t, now.Add(time.Hour))
	r.start(false, "a", Ended, false)
	if r.rdb.Exists(t.Context(), r.Key()).Val() != 0 {
		t.Error("the key outlives the last task of the claim")
	}
}

// A newer task counts as enqueued when a worker has it.
func TestSupersede_ends(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		const first, second, third, fourth = "q/k:n.1", "q/k:n.2", "q/k:n.3", "q/k:n.4"
		old := r.take(first, "")
		r.start(true, first, Waiting, false)
		r.supersede(true, second, old)
		r.must(true, r.Drop, second)
		r.must(false, r.Drop, second)
		r.is(first, Waiting)

		seen := r.supersede(true, second, old)
		r.supersede(false, third, old)
		r.supersede(true, third, seen)
		r.start(false, second, Begun, false)
		r.keep(false, second, 0)
		_, err := r.Start(t.Context(), first, Ended, false, time.Second) // the claim is third's soon
		redistest.Must(t, err)
		r.expires(time.Minute)
		r.start(true, third, Waiting, false)
		r.is(third, Waiting)
		r.keep(true, third, 0)
		r.start(false, first, Begun, false)

		// Taken from under a newer task: that one is refused.
		r.supersede(true, fourth, r.take("looks", ""))
		r.take(first, third)
		r.keep(false, fourth, 0)
		r.start(false, fourth, Begun, false)
		r.is(first, Enqueuing)
	})
}
