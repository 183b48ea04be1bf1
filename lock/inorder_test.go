package lock_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// stampLife is that of stamps in these tests: no look is due unless a test moves the clock.
const stampLife = 10 * time.Second

// queue is an ordered key, as producers and workers see it.
type queue struct {
	l   *lock.Locker
	s   *redistest.Server
	key string
}

func queueOf(t testing.TB, s *redistest.Server, options ...func(*lock.Options)) queue {
	t.Helper()
	l := newLocker(t, s.Client(t), options...)
	return queue{l, s, l.Mutex(redistest.Name(t)).Key()}
}

// queueByClock is a queue on a Redis whose clock only pass moves on.
func queueByClock(t testing.TB) (q queue, pass func(time.Duration)) {
	s := redistest.StartMini(t)
	now := time.Now()
	s.SetTime(t, now)
	return queueOf(t, s), func(d time.Duration) { now = now.Add(d); s.SetTime(t, now); s.Mini().FastForward(d) }
}

func (q queue) lock() *lock.Lock { return insider.ByKey(q.l, q.key) }

// task is a task of an ordered key, as its worker sees it.
type task struct {
	queue
	note  string
	place inside.Place
}

// stamp gives a task its place.
func (q queue) stamp(t testing.TB, note string) task {
	t.Helper()
	nonce := "n" + strings.ReplaceAll(note, "/", "-")
	ticket, _, _, err := insider.Stamp(t.Context(), q.lock(), note, nonce, stampLife, 0)
	if err != nil || ticket <= 0 {
		t.Fatalf("stamp %s: %d, %v", note, ticket, err)
	}
	return task{q, note, inside.Place{Nonce: nonce, Ticket: ticket, Most: -1}}
}

func (q queue) stamps(t testing.TB, notes ...string) (tasks []task) {
	t.Helper()
	for _, note := range notes {
		tasks = append(tasks, q.stamp(t, "default/"+note))
	}
	return tasks
}

func (q queue) head(t testing.TB) inside.Head {
	t.Helper()
	h, err := insider.Head(t.Context(), q.lock())
	redistest.Must(t, err)
	return h
}

// isNext wants note to be the head of n tasks; an empty note: that nothing is left.
func (q queue) isNext(t testing.TB, note string, n int) {
	t.Helper()
	if h := q.head(t); h.Note != note || h.Queued != n || (h.State == "") != (note == "") {
		t.Fatalf("the head is %+v, want %q of %d", h, note, n)
	}
}

// due are the tasks that are to be looked for now: a stamp for a full key names them.
func (q queue) due(t testing.TB) []inside.OrderItem {
	t.Helper()
	ticket, _, look, err := insider.Stamp(t.Context(), q.lock(), "default/one too many", "too-many", stampLife, 1)
	if err != nil || ticket != 0 {
		t.Fatalf("a stamp for a full key: %d, %v", ticket, err)
	}
	return look
}

func (q queue) act(t testing.TB, act inside.OrderAct, item inside.OrderItem) {
	t.Helper()
	redistest.Must(t, insiders.ActOrder(t.Context(), q.lock(), act, item, 0))
}

// item is the task as its producer names it.
func (o task) item() inside.OrderItem {
	return inside.OrderItem{Nonce: o.place.Nonce, Ticket: o.place.Ticket, Note: o.note}
}

// one is a handle of the task's lock, for one arrival.
func (o task) one(options ...lock.Option) *lock.Lock {
	return insiders.At(o.l.Mutex("ordered", options...), "ordered", o.key, 1, o.note, insider.InOrder(o.place))
}

func (o task) runs(t testing.TB) *lock.Lease {
	t.Helper()
	le, err := o.one().TryLock(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", o.note, err)
	}
	return le
}

func (o task) ends(t testing.TB, le *lock.Lease, outcome inside.Outcome) {
	t.Helper()
	insider.EndOrder(le, outcome)
	if err := le.Unlock(t.Context()); err != nil {
		t.Fatalf("%s: Unlock: %v", o.note, err)
	}
}

// run is an attempt, from its arrival to its end.
func (o task) run(t testing.TB, outcome inside.Outcome) {
	t.Helper()
	o.ends(t, o.runs(t), outcome)
}

// retried is the task in a later attempt.
func (o task) retried(n int) task {
	o.place.Retried = n
	return o
}

func (o task) refused(t testing.TB, is func(error) bool) {
	t.Helper()
	if le, err := o.one().TryLock(t.Context()); le != nil || !is(err) {
		t.Fatalf("%s: %v, %v", o.note, le, err)
	}
}

// Whoever arrives first, the lowest stamp runs first; what is done does not run again.
func TestOrder_lowestStampFirst(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		tasks := q.stamps(t, "a", "b", "c")
		if busy := mustPark(t, tasks[2].one()); busy.Note != "default/a" || busy.Holder != "" || busy.Place != 2 || busy.Reason != inside.ReasonBehind {
			t.Fatalf("%+v, want behind a at place 2", busy)
		}
		mustPark(t, tasks[1].one())
		for i, o := range tasks {
			q.isNext(t, o.note, 3-i)
			le := o.runs(t)
			if h := q.head(t); h.Note != o.note || !h.Runs {
				t.Fatalf("the head is %+v, want %s at work", h, o.note)
			}
			o.ends(t, le, inside.OutcomeDone)
		}
		q.isNext(t, "", 0)
		for _, o := range tasks {
			o.refused(t, insiders.IsOrderDone) // a redelivery
		}
	})
}

// What becomes of a task and of the next one, by how the attempt of the first one ended.
func TestOrder_outcomes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for outcome, want := range map[inside.Outcome]struct {
			next   string
			queued int
			held   bool
			again  func(error) bool // nil: it runs when it comes again
		}{
			inside.OutcomeStays: {next: "default/a", queued: 2},
			inside.OutcomeHeld:  {next: "default/a", queued: 2, held: true},
			inside.OutcomeDone:  {next: "default/b", queued: 1, again: insiders.IsOrderDone},
			inside.OutcomeLeft:  {next: "default/b", queued: 1},
		} {
			q := queueOf(t, s)
			tasks := q.stamps(t, "a", "b")
			tasks[0].run(t, outcome)
			q.isNext(t, want.next, want.queued)
			if h := q.head(t); h.Held() != want.held {
				t.Errorf("outcome %d: %+v, want held %v", outcome, h, want.held)
			}
			if want.next == "default/a" {
				mustPark(t, tasks[1].one())
			} else {
				tasks[1].run(t, inside.OutcomeDone)
			}
			if want.again != nil {
				tasks[0].refused(t, want.again)
				continue
			}
			tasks[0].run(t, inside.OutcomeDone)
		}
	})
}

// Nobody waits in a worker for a head that has failed, nor goes on waiting when it fails. Behind one that was not seen
// yet a task waits.
func TestOrder_parksBehindAHeadThatIsAway(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		tasks := queueOf(t, s).stamps(t, "a", "b", "c")
		began := make(chan struct{})
		w, _ := waitsOrParks(t, tasks[1].one(insiders.OnWait(func() { close(began) })))
		come(t, began, "a wait behind a task that was not seen")
		tasks[0].run(t, inside.OutcomeStays)
		c, _ := waitsOrParks(t, tasks[2].one(insiders.OnWait(func() { t.Error("waits for a head that has failed") })))
		if err := c.failed(t); !isParked(err) || wantBusy(t, err).Reason != inside.ReasonFailed || wantBusy(t, err).Note != "default/a" {
			t.Fatalf("%+v, want parked behind a, which failed", err)
		}
		if err := w.failed(t); !isParked(err) || wantBusy(t, err).Note != "default/a" {
			t.Fatalf("who waited already: %+v, want parked behind a", err)
		}
	})
}

// An attempt of which the handler did not begin does not count, though it was the last one.
func TestOrder_unbegun(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a := queueOf(t, s).stamp(t, "default/a")
		a.place.Most = 0
		le := a.runs(t)
		insider.EndOrder(le, inside.OutcomeStays)
		a.ends(t, le, inside.OutcomeUnbegun)
		a.retried(1).run(t, inside.OutcomeDone)
	})
}

// A task that waits in its worker for an earlier run of its own ends its wait with the first ask after that run's end has settled it.
func TestOrder_settledWhileItWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for outcome, is := range map[inside.Outcome]func(error) bool{
			inside.OutcomeStays: insiders.IsOrderSpent, inside.OutcomeDone: insiders.IsOrderDone,
		} {
			rdb, hook := s.Client(t), &redistest.FailHook{}
			l := newLocker(t, rdb)
			a := queue{l, s, l.Mutex(redistest.Name(t)).Key()}.stamp(t, "default/a")
			a.place.Most = 0
			le := a.runs(t)
			began := make(chan struct{})
			w := lockBeside(t, a.retried(1).one(insiders.OnWait(func() { close(began) })))
			come(t, began, "a wait")
			var refusals atomic.Int64
			hook.After(func(cmd redis.Cmder) error {
				if c, ok := cmd.(*redis.Cmd); ok {
					if reply, _ := c.Slice(); len(reply) == 1 {
						refusals.Add(1)
					}
				}
				return nil
			})
			rdb.AddHook(hook)
			a.ends(t, le, outcome)
			if err := w.failed(t); !is(err) || refusals.Load() != 1 {
				t.Errorf("outcome %d: %v, after %d asks", outcome, err, refusals.Load())
			}
		}
	})
}

// Each script may be executed twice, as go-redis does when a reply is lost.
func TestOrder_eachCommandTwice(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		rdb.AddHook(redistest.Resend(func(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }))
		l := newLocker(t, rdb)
		q := queue{l, s, l.Mutex(redistest.Name(t)).Key()}
		run := func(o task, outcome inside.Outcome) {
			t.Helper()
			le := o.runs(t)
			insider.EndOrder(le, outcome)
			if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) {
				t.Fatalf("%s: %v", o.note, err)
			}
		}
		tasks := q.stamps(t, "a", "b", "c")
		a, b, c := tasks[0], tasks[1], tasks[2]
		q.isNext(t, a.note, 3)
		mustPark(t, c.one())
		mustPark(t, b.one())
		run(a, inside.OutcomeStays)
		mustPark(t, b.one())
		run(a.retried(1), inside.OutcomeDone)
		a.refused(t, insiders.IsOrderDone)
		b.place.Most = 0
		run(b, inside.OutcomeStays) // killed in its only run
		b = b.retried(1)
		b.refused(t, insiders.IsOrderSpent)
		if h := q.head(t); h.Note != b.note || !h.Held() {
			t.Fatalf("%+v, want b held", h)
		}
		run(b, inside.OutcomeLeft) // an operator's run
		q.act(t, inside.ActConfirm, b.item())
		q.isNext(t, c.note, 1) // a late confirm brings nothing back
		if _, err := insider.SkipHead(t.Context(), q.lock(), b.note, 0); !insider.IsNotHead(err) {
			t.Errorf("a skip of one that has left: %v", err)
		}
		redistest.Must(t, second(insider.SkipHead(t.Context(), q.lock(), c.note, 0)))
		q.act(t, inside.ActConfirm, c.item())
		q.isNext(t, "", 0)
	})
}

// What cannot be avoided, by its number in docs/guarantees.md. Each is as bad as it says there, and no worse.
func TestOrder_unavoidable(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		// 4: a retry that comes early runs.
		tasks := queueOf(t, s).stamps(t, "a", "b")
		tasks[0].run(t, inside.OutcomeStays)
		mustPark(t, tasks[1].one())
		tasks[0].run(t, inside.OutcomeDone)
		tasks[1].run(t, inside.OutcomeDone)
		// 6: a task that left runs late.
		tasks = queueOf(t, s).stamps(t, "a", "b")
		tasks[0].run(t, inside.OutcomeLeft)
		tasks[1].run(t, inside.OutcomeDone)
		tasks[0].run(t, inside.OutcomeDone)
		// 8: a lost lease lets two run. The late release of the first does nothing to the run after it.
		q := queueOf(t, s)
		tasks = q.stamps(t, "a", "b")
		first := tasks[0].runs(t)
		if n, err := q.lock().BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatalf("BreakAll: %d, %v", n, err)
		}
		again := tasks[0].runs(t)
		insider.EndOrder(first, inside.OutcomeHeld)
		if err := first.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) {
			t.Error(err)
		}
		if h := q.head(t); h.Held() || !h.Runs {
			t.Fatalf("%+v, want at work", h)
		}
		tasks[0].ends(t, again, inside.OutcomeDone)
		tasks[1].run(t, inside.OutcomeDone)
		// 9: a task without a stamp comes after those that are there, and runs again.
		plain := task{q, "default/plain", inside.Place{Nonce: "~plain", Most: -1}}
		c := q.stamp(t, "default/c")
		mustPark(t, plain.one())
		c.run(t, inside.OutcomeDone)
		plain.run(t, inside.OutcomeDone)
		plain.run(t, inside.OutcomeDone)
		q.isNext(t, "", 0)
	})
	// 1: a redelivery after the mark has ended runs.
	q, pass := queueByClock(t)
	a := q.stamp(t, "default/a")
	a.run(t, inside.OutcomeDone)
	a.refused(t, insiders.IsOrderDone)
	pass(6 * time.Minute)
	a.run(t, inside.OutcomeDone)
	// 3: archived and deleted before a look counts as deleted.
	q, pass = queueByClock(t)
	tasks := q.stamps(t, "a", "b")
	tasks[0].run(t, inside.OutcomeStays)
	pass(6 * time.Second)
	q.act(t, inside.ActGone, q.due(t)[0])
	tasks[1].run(t, inside.OutcomeDone)
	// 5: an Enqueue that failed and lands late runs next.
	q, pass = queueByClock(t)
	tasks = q.stamps(t, "ghost", "b")
	pass(stampLife + time.Second)
	q.act(t, inside.ActGone, q.due(t)[0])
	tasks[1].run(t, inside.OutcomeDone)
	tasks[0].run(t, inside.OutcomeDone)
}
