package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// candidate is a call of Lead that runs beside the test.
type candidate struct {
	cancel context.CancelFunc
	terms  chan context.Context // one for each term, when f begins
	finish chan error           // what f returns next, unless its context ends before
	done   chan error           // what Lead returned
}

// runFor calls Lead on a goroutine that ends with the test at the latest.
func runFor(t *testing.T, l *lock.Locker, name string, options ...lock.Option) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &candidate{cancel: cancel, terms: make(chan context.Context, 10), finish: make(chan error), done: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.done <- l.Lead(ctx, name, func(term context.Context) error {
			c.terms <- term
			select {
			case err := <-c.finish:
				return err
			case <-term.Done():
				return context.Cause(term)
			}
		}, options...)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return c
}

func TestLead_oneAtATime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		first := runFor(t, a, name)
		term := come(t, first.terms, "the first term")
		if le, ok := lock.FromContext(term); !ok || !le.Held() {
			t.Error("the leader's context has no lease")
		}
		second := runFor(t, b, name)
		waiting(t, b.Mutex(name), 1)
		if len(second.terms) != 0 {
			t.Fatal("two lead at once")
		}

		failure := errors.New("failure")
		first.finish <- failure
		if err := come(t, first.done, "the end of Lead"); !errors.Is(err, failure) {
			t.Errorf("Lead returned %v, want f's error", err)
		}
		come(t, second.terms, "the successor's term")
		second.finish <- nil
		if err := come(t, second.done, "the end of Lead"); err != nil {
			t.Errorf("Lead returned %v, want nil as f did", err)
		}
		free(t, a.Mutex(name))
	})
}

func TestLead_campaignsAgainAfterALoss(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		m := l.Mutex(name)
		leader := runFor(t, l, name)
		term := come(t, leader.terms, "the first term")
		redistest.Must(t, m.Delete(t.Context()))
		ends(t, term, lock.ErrLost)
		again := come(t, leader.terms, "the second term")
		if again.Err() != nil {
			t.Error("the second term has ended already")
		}
		leader.cancel()
		if err := come(t, leader.done, "the end of Lead"); !errors.Is(err, context.Canceled) {
			t.Errorf("Lead returned %v, want what f returned at the end of its context", err)
		}
		free(t, m)
	})
}

func TestLead_contextEndsDuringTheCampaign(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		m := l.Mutex(name)
		held := mustTry(t, m)
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- l.Lead(ctx, name, func(context.Context) error { t.Error("f was called"); return nil })
		}()
		waiting(t, m, 1)
		cancel(stop)
		if err := come(t, done, "the end of Lead"); !errors.Is(err, stop) {
			t.Errorf("Lead returned %v, want the cause of its context", err)
		}
		mustUnlock(t, held)
		free(t, m)
	})
}

// A candidate outlives an outage, and says so in the log. In the pause before it asks again it obeys its context, and
// Close.
func TestLead_redisAway(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, l *lock.Locker, leader *candidate, back func()){
		"comes back": func(t *testing.T, _ *lock.Locker, leader *candidate, back func()) {
			back()
			come(t, leader.terms, "the term after the outage")
		},
		"context ends": func(t *testing.T, _ *lock.Locker, leader *candidate, _ func()) {
			leader.cancel()
			if err := come(t, leader.done, "the end of Lead"); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrBackend) {
				t.Errorf("Lead returned %v, want the cause of its context", err)
			}
		},
		"Locker is closed": func(t *testing.T, l *lock.Locker, leader *candidate, _ func()) {
			redistest.Must(t, l.Close())
			if err := come(t, leader.done, "the end of Lead"); !errors.Is(err, lock.ErrClosed) {
				t.Errorf("Lead returned %v, want ErrClosed", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Mini(t).Client(t)
			hook, log := &redistest.FailHook{}, &redistest.Log{}
			hook.Before(func(cmd redis.Cmder) error {
				if strings.HasPrefix(cmd.Name(), "eval") || cmd.Name() == "set" {
					return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
				}
				return nil
			})
			rdb.AddHook(hook)
			l := newLocker(t, rdb, logTo(log))
			leader := runFor(t, l, redistest.Name(t))
			redistest.Eventually(t, soon, func() bool {
				return strings.Count(log.String(), "a candidate for leadership cannot ask Redis; it tries again") == 3
			}, "three log lines of the outage")
			began := time.Now() // a pause of 2 s or more
			end(t, l, leader, func() { hook.Before(nil) })
			if took := time.Since(began); name != "comes back" && took > 1500*time.Millisecond {
				t.Errorf("Lead returned after %s: it waited for the end of the pause", took)
			}
		})
	}
}

func TestLead_closedLocker(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	l := newLocker(t, s.Client(t))
	name := redistest.Name(t)
	m := l.Mutex(name)
	mustTry(t, m)
	waiter := runFor(t, l, name)
	waiting(t, m, 1)
	redistest.Must(t, l.Close())
	if err := come(t, waiter.done, "the end of Lead"); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("Lead returned %v, want ErrClosed", err)
	}
}

func TestLead_badDefinition(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	never := func(context.Context) error { t.Error("f was called"); return nil }
	if err := l.Lead(t.Context(), "", never); err == nil {
		t.Error("an empty name is accepted")
	}
	if err := l.Lead(t.Context(), redistest.Name(t), never, lock.TTL(time.Millisecond)); err == nil {
		t.Error("a TTL below MinTTL is accepted")
	}
	if err := l.Lead(t.Context(), redistest.Name(t), nil); err == nil || !strings.Contains(err.Error(), "the function is nil") {
		t.Errorf("without a function: %v", err)
	}
}

// A panic of f reaches the caller, and the next candidate leads at once.
func TestLead_panicReleases(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		func() {
			defer func() {
				if recover() != "from f" {
					t.Error("the panic was changed")
				}
			}()
			_ = l.Lead(t.Context(), name, func(context.Context) error { panic("from f") })
		}()
		free(t, l.Mutex(name))
	})
}

// Lead ignores a control's limit, also when an operator breaks the leader's lock by its key:
// one candidate follows, and not as many as the limit says.
func TestLead_oneAfterABreakWithALimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, prefix := redistest.Name(t), ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix)
		redistest.Must(t, operator.Controls().SetLimit(t.Context(), name, 3, ""))
		var candidates []*candidate
		for i := range 3 {
			c := runFor(t, newLocker(t, s.Client(t), prefix), name)
			candidates = append(candidates, c)
			if i == 0 {
				come(t, c.terms, "the first term")
			}
		}
		waiting(t, operator.Mutex(name), 2)
		if n, err := insider.ByKey(operator, operator.Mutex(name).Key()).BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatalf("BreakAll: %d, %v", n, err)
		}
		// The line is served at once: within time.Second a second leader would have begun.
		var leaders []context.Context
		for end := time.Now().Add(time.Second); time.Now().Before(end) || len(leaders) == 0; time.Sleep(10 * time.Millisecond) {
			for _, c := range candidates {
				select {
				case term := <-c.terms:
					leaders = append(leaders, term)
				default:
				}
			}
			lead := 0
			for _, term := range leaders {
				if term.Err() == nil {
					lead++
				}
			}
			if lead > 1 {
				t.Fatalf("%d lead at once", lead)
			}
		}
	})
}
