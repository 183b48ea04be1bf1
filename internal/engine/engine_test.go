package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func start(t *testing.T, s *redistest.Server) *Engine {
	t.Helper()
	e := New(Options{Client: s.Client(t), Prefix: "automutex", Owner: "test", Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(e.Close)
	return e
}

func request(t *testing.T) Request {
	return Request{Ref: Ref{Key: "automutex:{" + redistest.Name(t) + "}", Limit: 1}, TTL: 30 * time.Second}
}

func inLine(r Request) Request {
	r.Wait = true
	return r
}

// must takes a lock that is to be had.
func must(t *testing.T, e *Engine, r Request) *Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	le, err := e.Take(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return le
}

func release(t *testing.T, le *Lease) {
	t.Helper()
	if _, err := le.Release(context.Background(), Ending{}); err != nil {
		t.Fatal(err)
	}
}

// TestLeave: who gives up leaves nothing behind, also when the lock is granted at that moment.
func TestLeave(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e, other := start(t, s), start(t, s)
		r := request(t)
		for i := range 20 {
			le := must(t, e, r)
			ctx, cancel := context.WithCancel(context.Background())
			waits := inLine(r)
			in := make(chan struct{})
			waits.OnWait = func() { close(in) }
			done := make(chan error)
			go func() {
				le, err := other.Take(ctx, waits)
				if err == nil {
					_, err = le.Release(context.Background(), Ending{})
				}
				done <- err
			}()
			<-in
			if i%2 == 0 {
				cancel()
				release(t, le)
			} else {
				release(t, le)
				cancel()
			}
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			redistest.Eventually(t, 30*time.Second, func() bool {
				le, err := e.Take(context.Background(), r)
				if err == nil {
					release(t, le)
				}
				return err == nil
			}, "the lock stays taken")
		}
	})
}

// TestCrowdOfFreeLocks: who gets a lock at once has not waited for it, however many ask at a time.
func TestCrowdOfFreeLocks(t *testing.T) {
	t.Parallel()
	e := start(t, redistest.Mini(t))
	var wg sync.WaitGroup
	for i := range 4 * maxFirstKeys {
		r := inLine(request(t))
		r.Key = fmt.Sprintf("automutex:{%s|%d}", redistest.Name(t), i)
		r.OnWait = func() { t.Error("waits for a lock that is free") }
		redistest.Go(&wg, func() { release(t, must(t, e, r)) })
	}
	wg.Wait()
}

// TestFreeKeyBesideACrowd: a free key is had while a crowd has asked for another one, and nothing has come of it yet.
func TestFreeKeyBesideACrowd(t *testing.T) {
	e := start(t, redistest.Mini(t))
	hook, stuck := &redistest.FailHook{}, make(chan struct{})
	e.o.Client.(redis.UniversalClient).AddHook(hook)
	crowd, free := inLine(request(t)), inLine(request(t))
	crowd.Key += ":crowd"
	hook.Before(func(cmd redis.Cmder) error {
		if strings.Contains(cmd.String(), crowd.Key) {
			<-stuck
		}
		return nil
	})
	unstick := sync.OnceFunc(func() { close(stuck) })
	t.Cleanup(unstick)
	var wg sync.WaitGroup
	for range 4 * maxFirstKeys {
		redistest.Go(&wg, func() { release(t, must(t, e, crowd)) })
	}
	redistest.Eventually(t, 30*time.Second, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.waiters) == 4*maxFirstKeys
	}, "all ask")
	release(t, must(t, e, free))
	unstick()
	wg.Wait()
}

// TestOrder_behindItsID: a task waits behind an earlier one that had its ID, as behind any other. It is no earlier run of its own.
func TestOrder_behindItsID(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := start(t, s)
		r := inLine(request(t))
		r.Ordered, r.Park, r.Note = true, true, "default/same"
		var tickets []int64
		for _, nonce := range []string{"gone", "new"} {
			ticket, _, _, err := e.Stamp(t.Context(), r.Ref, r.Note, nonce, time.Hour, 0)
			redistest.Must(t, err)
			tickets = append(tickets, ticket)
		}
		r.Order = &Order{Place: Place{Nonce: "new", Ticket: tickets[1], Most: -1}}
		r.OnWait = func() {
			redistest.Must(t, e.Act(t.Context(), r.Ref, ActWithdraw, OrderItem{Nonce: "gone", Ticket: tickets[0], Note: r.Note}, 0))
		}
		release(t, must(t, e, r))
	})
}

// TestBrokenBeforeItIsHeld: a waiter whose grant is broken before it has seen it does not take the message of that grant for the lock.
func TestBrokenBeforeItIsHeld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e, r := start(t, s), request(t)
		le := must(t, e, r)
		waits := inLine(r)
		waits.OnWait = func() {
			e.mu.Lock()
			var token string
			for token = range e.waiters {
			}
			e.mu.Unlock()
			at := time.Now().Add(time.Hour).UnixMicro() // after each reply
			e.note(turn.Message{Token: token, Fence: turn.BrokenFence, ServerUS: at})
			e.note(turn.Message{Token: token, Fence: at - 1, ServerUS: at - 1})
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.waiters[token] == nil {
				t.Error("it holds what was broken")
			}
			delete(e.waiters, token)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := e.Take(ctx, waits); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		release(t, le)
	})
}
