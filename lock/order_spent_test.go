package lock

import (
	"context"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// The last attempt does not begin twice, and an operator's run does begin.
func TestOrder_reservedAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a := stampTask(t, l, key, "default/a")
		a.place.Most = 0
		a.end(t, a.mustRun(t), inside.OutcomeStays) // it was killed at its only run, so asynq counts one
		a.place.Retried = 1
		if _, err := a.lock().TryLock(t.Context()); !theInsider.IsOrderSpent(err) {
			t.Fatalf("%v, want that its attempts are spent", err)
		}
		if h := headOf(t, l, key); h.State != "h" {
			t.Fatalf("%+v, want held", h)
		}
		a.end(t, a.mustRun(t), inside.OutcomeDone) // an operator's run
	})
}

// A last attempt whose task has left the order, and whose end asynq could not note, is delivered again: it does not begin
// once more. An operator's run does.
func TestOrder_spentAfterItLeft(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for name, leaves := range map[string]func(m *Lock, a orderedTask, le *Lease){
			"under Continue": func(_ *Lock, a orderedTask, le *Lease) { a.end(t, le, inside.OutcomeLeft) },
			"skipped by an operator": func(m *Lock, a orderedTask, le *Lease) {
				a.end(t, le, inside.OutcomeStays) // its worker could not say that it is held
				_, err := m.skipHead(t.Context(), a.note, a.place.Ticket)
				redistest.Must(t, err)
			},
		} {
			key := l.Mutex(t.Name() + name).Key()
			a := stampTask(t, l, key, "default/a")
			a.place.Continue = true
			leaves(l.byOrder(key), a, a.mustRun(t))
			early := a // Most is -1: more attempts are allowed
			early.place.Retried = 1
			if le, err := early.lock().TryLock(t.Context()); err == nil { // what failed before it was skipped goes on
				if name == "under Continue" {
					t.Fatalf("%s: it runs again, after it has ended", name)
				}
				early.end(t, le, inside.OutcomeLeft)
			} else if !theInsider.IsOrderSpent(err) || name != "under Continue" {
				t.Fatalf("%s: %v", name, err)
			}
			a = stampTask(t, l, key, "default/again")
			a.place.Most, a.place.Continue = 0, true
			leaves(l.byOrder(key), a, a.mustRun(t))
			for again := a; again.place.Retried < 2; { // asynq's recoverer counts one; an operator's run none
				again.place.Retried++
				if _, err := again.lock().TryLock(t.Context()); !theInsider.IsOrderSpent(err) {
					t.Fatalf("%s: %v, want that its attempts are spent", name, err)
				}
			}
			a.place.Retried = 2
			a.end(t, a.mustRun(t), inside.OutcomeLeft) // an operator's run of what is archived now
			a.place.Retried = 0
			a.end(t, a.mustRun(t), inside.OutcomeDone)
		}
	})
}

// isLookedFor stores what a look at a task that has come before found in asynq.
func (o orderedTask) isLookedFor(t testing.TB, found inside.OrderAct) {
	t.Helper()
	for name := range stored(t, o.lock()) {
		if strings.HasPrefix(name, "o:") && strings.HasSuffix(name, "|"+o.note) {
			item := inside.OrderItem{Nonce: o.place.Nonce, Ticket: o.place.Ticket, Note: o.note, State: "a", Seen: strings.Split(name, "|")[2]}
			redistest.Must(t, o.locker.byOrder(o.key).actOrder(t.Context(), found, item, 0))
		}
	}
}

// An attempt whose handler did not begin does not count as begun, and what asynq has archived runs when an operator runs it.
func TestOrder_notBegun(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a := stampTask(t, l, key, "default/a")
		a.place.Most = 0
		le := a.mustRun(t)
		le.endOrder(inside.OutcomeStays)
		redistest.Must(t, le.giveBack(t.Context())) // another of its locks was taken, which spent the attempt
		a.place.Retried = 1
		a.end(t, a.mustRun(t), inside.OutcomeStays) // its time was up; asynq archives it
		a.isLookedFor(t, inside.ActArchived)
		if h := headOf(t, l, key); h.State != "h" {
			t.Fatalf("%+v, want held", h)
		}
		a.place.Retried = 2 // asynq counted that run before an operator archived it
		a.end(t, a.mustRun(t), inside.OutcomeDone)
	})
}

// A task that waits in its worker for an earlier run of its own ends its wait once that run's end settles it: it is done, or its
// attempts are spent.
func TestOrder_settledWhileItWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for name, settled := range map[string]struct {
			outcome inside.Outcome
			is      func(error) bool
		}{
			"spent": {inside.OutcomeStays, theInsider.IsOrderSpent},
			"done":  {inside.OutcomeDone, theInsider.IsOrderDone},
		} {
			a := stampTask(t, l, l.Mutex(t.Name()+name).Key(), "default/a")
			a.place.Most = 0
			le := a.mustRun(t)
			again := a
			again.place.Retried = 1 // its time was up, so asynq counts one and delivers it while the first run goes on
			ended := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				defer cancel()
				_, err := again.lock().Lock(ctx)
				ended <- err
			}()
			whenAnswered(t, l, 1, 0, func(*waiter) {})
			a.end(t, le, settled.outcome)
			if err := <-ended; !settled.is(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// An ask that Redis executes late, when a run of its task has begun and ended, is released unused: that run counts nevertheless.
func TestOrder_lateAskBesideARunThatBegan(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		a := stampTask(t, l, l.Mutex(t.Name()).Key(), "default/a")
		a.place.Most = 0
		a.end(t, a.mustRun(t), inside.OutcomeStays)
		late := a.mustRun(t) // its caller gave up before that run, and releases it
		if _, held, err := late.release(t.Context()); err != nil || !held {
			t.Fatalf("held %v, %v", held, err)
		}
		a.place.Retried = 1
		if _, err := a.lock().TryLock(t.Context()); !theInsider.IsOrderSpent(err) {
			t.Fatalf("%v, want that its attempts are spent", err)
		}
	})
}
