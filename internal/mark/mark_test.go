package mark

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is a mark whose calls have to succeed.
type rig struct {
	Mark
	t   *testing.T
	rdb redis.UniversalClient
}

func start(t *testing.T, s *redistest.Server) rig {
	rdb, l := s.Client(t), life.New()
	t.Cleanup(func() { l.Close(func() {}) })
	conn := redisx.New(rdb, redisx.Options{Prefix: "automutex", Log: slog.New(slog.DiscardHandler), Closing: l.Closing.Done()})
	return rig{Of(l, conn, "automutex:{"+redistest.Name(t)+"}"), t, rdb}
}

func (r rig) take(holder, instead string) Standing {
	r.t.Helper()
	got, err := r.Take(r.t.Context(), holder, instead, time.Minute)
	redistest.Must(r.t, err)
	return got
}

// is checks whose mark stands, and its phase; "" that none does.
func (r rig) is(holder string, phase Phase) {
	r.t.Helper()
	got := r.take("looks", "")
	if holder == "" {
		holder, phase = "looks", Enqueuing
	}
	if got.Holder != holder || got.Phase != phase {
		r.t.Errorf("the mark is %s's, %s; want %s's, %s", got.Holder, got.Phase, holder, phase)
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

func (r rig) keep(want bool, holder string, length time.Duration) {
	r.t.Helper()
	r.must(want, func(ctx context.Context, holder string) (bool, error) { return r.Keep(ctx, holder, length) }, holder)
}

func (r rig) pass(want bool, holder, next string, stale bool) {
	r.t.Helper()
	r.must(want, func(ctx context.Context, holder string) (bool, error) { return r.PassOn(ctx, holder, next, stale) }, holder)
}

func (r rig) expires(about time.Duration) {
	r.t.Helper()
	if ttl := r.rdb.PTTL(r.t.Context(), r.Key()).Val(); ttl <= about/2 || ttl > about+2*time.Second {
		r.t.Errorf("it expires in %s, want %s", ttl, about)
	}
}

// One of many who take the mark at once gets it; the others are told who.
func TestTake_one(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		var wg sync.WaitGroup
		got := make([]Standing, 8)
		for i := range got {
			redistest.Go(&wg, func() { got[i], _ = r.Take(t.Context(), string(rune('a'+i)), "", time.Minute) })
		}
		wg.Wait()
		own := 0
		for i, standing := range got {
			if standing.Holder == "" || standing.Holder != got[0].Holder || standing.Phase != Enqueuing {
				t.Errorf("taker %d is told %+v, the first one %+v", i, standing, got[0])
			}
			if standing.Holder == string(rune('a'+i)) {
				own++
			}
		}
		if own != 1 {
			t.Errorf("%d have the mark", own)
		}
	})
}

func TestMark_life(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		r.must(false, r.Drop, "a") // nothing was taken
		r.keep(false, "a", time.Minute)
		r.take("a", "")
		if again := r.take("a", ""); again.Holder != "a" {
			t.Errorf("a mark taken twice is %+v", again)
		}
		r.must(false, r.Drop, "b") // it is another's
		r.pass(false, "b", "c", false)
		r.take("b", "x")
		r.is("a", Enqueuing)
		redistest.Eventually(t, redistest.Patience, func() bool { return r.take("b", "").Age >= 20*time.Millisecond }, "an age")
		r.keep(true, "a", time.Hour)
		r.expires(time.Hour)
		r.pass(true, "a", "b", false)
		r.pass(true, "a", "b", false) // as if resent
		if got := r.take("c", ""); got.Holder != "b" || got.Phase != Enqueued || got.Age < 20*time.Millisecond {
			t.Errorf("after it was passed on: %+v", got)
		}
		r.take("c", "b") // a new one
		r.is("c", Enqueuing)
		r.expires(time.Minute)
		for range 2 { // it shortens the mark, and never prolongs it
			_, err := r.Start(t.Context(), "c", Ended, false, 30*time.Second)
			redistest.Must(t, err)
			r.start(true, "c", Ended, false)
			r.expires(30 * time.Second)
		}
		r.is("c", Enqueuing)
		r.must(true, r.Drop, "c")
		r.must(false, r.Drop, "c")
		// The stored deadline ends it, whether or not Redis has removed the key.
		redistest.Must(t, r.rdb.Set(t.Context(), r.Key(), "1000 2000 begun - a", 0).Err())
		r.keep(false, "a", time.Minute)
		r.must(false, r.Drop, "a")
		r.is("", "")
	})
}

func TestMark_badInput(t *testing.T) {
	r, ctx := start(t, redistest.Mini(t)), t.Context()
	second := func(_ any, err error) error { return err }
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for name, err := range map[string]error{
		"no holder":     second(r.Take(ctx, "", "", time.Minute)),
		"no length":     second(r.Take(ctx, "a", "", 0)),
		"too long":      second(r.Take(ctx, "a", "", inside.MaxTTL+1)),
		"no next":       second(r.PassOn(ctx, "a", "", false)),
		"below zero":    second(r.Keep(ctx, "a", -1)),
		"kept longer":   second(r.Keep(ctx, "a", inside.MaxTTL+1)),
		"context ended": second(r.Take(ended, "a", "", time.Minute)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if r.rdb.Exists(ctx, r.Key()).Val() != 0 {
		t.Error("something was taken")
	}
}

// The start of a handler and the passing on of a mark exclude each other: what comes first counts, also when it is sent again.
func TestStart_orPassedOn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, ends := range []bool{true, false} {
			r := start(t, s)
			const first, second, third, other = "q/k:n.1.0", "q/k:n.1.1", "q/k:n.1.2", "q/k:n.2.0"
			r.start(true, first, Begun, ends) // no mark stands
			r.take(first, "")
			for range 2 {
				r.start(true, first, Waiting, ends)
				r.start(true, first, Begun, ends)
			}
			r.pass(false, first, second, true)
			if ends {
				r.is("", "")
			} else {
				r.is(first, Begun)
			}
			r.start(true, first, Waiting, ends) // its next attempt
			if !ends {
				r.is(first, Begun)
			}
			r.start(true, first, Begun, ends)
			_, _ = r.Drop(t.Context(), first)

			r.take(first, "")
			r.start(true, first, Waiting, ends)
			for range 2 {
				r.pass(true, first, second, true)
				r.pass(true, first, second, true)
				r.start(false, first, Waiting, ends)
				r.start(false, first, Begun, ends)
			}
			r.is(second, Enqueued)
			r.start(true, second, Begun, ends)
			r.start(ends, third, Begun, ends) // it was not accepted before another one began

			// The mark knows the stale task until that has ended, also in the hands of the next.
			r.take(other, second)
			r.start(false, first, Begun, ends)
			r.start(true, second, Begun, ends)
			r.start(true, other, Begun, ends)
			r.is(other, Begun)
			r.start(false, first, Ended, ends)
			if ends {
				r.is("", "")
			} else {
				r.is(other, Begun)
			}
			_, _ = r.Drop(t.Context(), other)

			// A task whose producer died before it passed the mark on takes it over when it begins.
			r.take("q/k:n.1.9", "")
			r.start(true, "q/k:n.1.10", Waiting, ends)
			r.start(true, "q/k:n.1.10", Begun, ends)
			r.start(false, "q/k:n.1.9", Begun, ends)
			r.pass(true, "q/k:n.1.9", "q/k:n.1.10", false) // the mark is where it was to go
			r.rdb.Del(t.Context(), r.Key())
		}
	})
}
