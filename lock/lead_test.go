package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
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

// errStopped is the cause with which the context of a candidate ends.
var errStopped = fmt.Errorf("stopped: %w", context.Canceled)

// runFor calls Lead on a goroutine that ends with the test at the latest.
func runFor(t *testing.T, l *lock.Locker, name string, options ...lock.Option) *candidate {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	cancel := func() { stop(errStopped) }
	c := &candidate{cancel: cancel, terms: make(chan context.Context, 10), finish: make(chan error),
		done: make(chan error, 1)}
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

// leads tests who leads, and that all processes say so.
func leads(t *testing.T, name, owner string, lockers ...*lock.Locker) {
	t.Helper()
	for _, l := range lockers {
		if leader, err := l.Leader(t.Context(), name); err != nil || leader.Owner != owner {
			t.Errorf("the leader is %+v, %v; want %q", leader, err, owner)
		}
	}
}

// leadersOf is the leader's lock of that name, as operators know it.
func leadersOf(l *lock.Locker, name string) *lock.Lock {
	return insider.ByKey(l, l.Mutex(name).Key()+engine.LeaderKey)
}

func TestLead_oneAtATime(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		a := lockerOn(t, s, func(o *lock.Options) { o.Owner = "a" })
		b := lockerOn(t, s, func(o *lock.Options) { o.Owner = "b" })
		leads(t, name, "", a, b)
		first := runFor(t, a, name)
		term := come(t, first.terms, "the first term")
		leads(t, name, "a", a, b)
		if le, ok := lock.FromContext(term); !ok || !le.Held() {
			t.Error("the leader's context has no lease")
		}
		second := runFor(t, b, name)
		waiting(t, leadersOf(b, name), 1)
		if len(second.terms) != 0 {
			t.Fatal("two lead at once")
		}

		failure := errors.New("failure")
		first.finish <- failure
		if err := come(t, first.done, "the end of Lead"); !errors.Is(err, failure) {
			t.Errorf("Lead returned %v, want f's error", err)
		}
		come(t, second.terms, "the successor's term")
		leads(t, name, "b", a, b)
		second.finish <- nil
		if err := come(t, second.done, "the end of Lead"); err != nil {
			t.Errorf("Lead returned %v, want nil as f did", err)
		}
		leads(t, name, "", a, b)
		if leader, err := a.Leader(t.Context(), ""); err == nil {
			t.Errorf("without a name %+v leads", leader)
		}
	})
}

func TestLead_campaignsAgainAfterALoss(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s)
		name := redistest.Name(t)
		m := leadersOf(l, name)
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

// A campaign ends with its context and with its Locker, while it waits in line and in an outage.
func TestLead_campaignEnds(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, away := range []bool{false, true} {
			for _, ends := range []error{errStopped, lock.ErrClosed, nil} {
				t.Run(fmt.Sprintf("away %t, %v", away, ends), func(t *testing.T) {
					t.Parallel()
					rdb, hook, log := s.Client(t), &redistest.FailHook{}, &redistest.Log{}
					rdb.AddHook(hook)
					l := newLocker(t, rdb, func(o *lock.Options) { o.Logger = log.Logger() })
					name := redistest.Name(t)
					held := runFor(t, lockerOn(t, s), name)
					come(t, held.terms, "the term of another one")
					if away {
						hook.Before(func(cmd redis.Cmder) error {
							if strings.HasPrefix(cmd.Name(), "eval") || cmd.Name() == "set" {
								return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
							}
							return nil
						})
					}
					c := runFor(t, l, name)
					if away {
						const said = "a candidate for leadership cannot ask Redis; it tries again"
						eventually(t, func() bool { return strings.Count(log.String(), said) > 1 }, "two log lines of the outage")
					} else {
						waiting(t, leadersOf(l, name), 1)
					}
					switch {
					case errors.Is(ends, errStopped):
						c.cancel()
					case errors.Is(ends, lock.ErrClosed):
						redistest.Must(t, l.Close())
					default:
						held.finish <- nil
						hook.Before(nil)
						come(t, c.terms, "the term after the outage")
						c.finish <- nil
					}
					if err := come(t, c.done, "the end of Lead"); !errors.Is(err, ends) || errors.Is(err, lock.ErrBackend) {
						t.Errorf("Lead returned %v, want %v", err, ends)
					}
					hook.Before(nil)
				})
			}
		}
	})
}

func TestLead_refuses(t *testing.T) {
	t.Parallel()
	l := lockerOn(t, redistest.Mini(t))
	never := func(context.Context) error { t.Error("f was called"); return nil }
	for want, err := range map[string]error{
		"the name is empty": l.Lead(t.Context(), "", never), "at least 100ms": l.Lead(t.Context(), "x", never,
			lock.TTL(time.Millisecond)),
		"the function is nil": l.Lead(t.Context(), "x", nil),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// No order addresses a leader: with a limit of 3 on the name, and in a pause, one candidate follows when an operator
// breaks the leader's lock by its key, and the mutex of that name is another lock.
func TestLead_noOrderAddressesIt(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name, prefix := redistest.Name(t), ownPrefix(t)
		operator := lockerOn(t, s, prefix)
		setLimit(t, operator, name, 3)
		leader := runFor(t, lockerOn(t, s, prefix), name)
		come(t, leader.terms, "the first term")
		one, other := runFor(t, lockerOn(t, s, prefix), name), runFor(t, lockerOn(t, s, prefix), name)
		m := leadersOf(operator, name)
		waiting(t, m, 2)
		if n, err := operator.Mutex(name).BreakAll(t.Context()); n != 0 || err != nil {
			t.Errorf("BreakAll of the mutex of that name: %d, %v", n, err)
		}
		pause(t, operator, name, "")
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatalf("BreakAll: %d, %v", n, err)
		}
		wantHeld(t, m, 1) // the line is served at once
		eventually(t, func() bool { return len(one.terms)+len(other.terms) > 0 }, "the next term")
		if wantHeld(t, m, 1); len(one.terms)+len(other.terms) > 1 {
			t.Error("two lead at once")
		}
		for info, err := range insider.List(t.Context(), operator) {
			if redistest.Must(t, err); info.Key != m.Key() {
				t.Errorf("listed: %+v", info)
			}
		}
	})
}
