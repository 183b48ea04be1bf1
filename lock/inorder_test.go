package lock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/engine"
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
	place engine.Place
}

// stamp gives a task its place.
func (q queue) stamp(t testing.TB, note string) task {
	t.Helper()
	nonce := "n" + strings.ReplaceAll(note, "/", "-")
	ticket, _, _, err := insider.Stamp(t.Context(), q.lock(), note, nonce, stampLife, 0)
	if err != nil || ticket <= 0 {
		t.Fatalf("stamp %s: %d, %v", note, ticket, err)
	}
	return task{q, note, engine.Place{Nonce: nonce, Ticket: ticket, Most: -1}}
}

func (q queue) stamps(t testing.TB, notes ...string) (tasks []task) {
	t.Helper()
	for _, note := range notes {
		tasks = append(tasks, q.stamp(t, "default/"+note))
	}
	return tasks
}

func (q queue) head(t testing.TB) engine.Head {
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
func (q queue) due(t testing.TB) []engine.OrderItem {
	t.Helper()
	ticket, _, look, err := insider.Stamp(t.Context(), q.lock(), "default/one too many", "too-many", stampLife, 1)
	if err != nil || ticket != 0 {
		t.Fatalf("a stamp for a full key: %d, %v", ticket, err)
	}
	return look
}

func (q queue) act(t testing.TB, act engine.OrderAct, item engine.OrderItem) {
	t.Helper()
	redistest.Must(t, insider.ActOrder(t.Context(), q.lock(), act, item, 0))
}

// one is a handle of the task's lock, for one arrival.
func (o task) one(options ...lock.Option) *lock.Lock {
	return insider.At(o.l.Mutex("ordered", options...), "ordered", o.key, 1, o.note, insider.InOrder(o.place))
}

func (o task) runs(t testing.TB) *lock.Lease {
	t.Helper()
	le, err := o.one().TryLock(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", o.note, err)
	}
	return le
}

func (o task) ends(t testing.TB, le *lock.Lease, outcome engine.Outcome) {
	t.Helper()
	insider.EndOrder(le, outcome)
	if err := le.Unlock(t.Context()); err != nil {
		t.Fatalf("%s: Unlock: %v", o.note, err)
	}
}

// run is an attempt, from its arrival to its end.
func (o task) run(t testing.TB, outcome engine.Outcome) {
	t.Helper()
	o.ends(t, o.runs(t), outcome)
}

func (o task) refused(t testing.TB, is func(error) bool) {
	t.Helper()
	if le, err := o.one().TryLock(t.Context()); le != nil || !is(err) {
		t.Fatalf("%s: %v, %v", o.note, le, err)
	}
}

// What cannot be avoided, by its number in docs/guarantees.md. Each is as bad as it says there, and no worse.
func TestOrder_unavoidable(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		// 4: a retry that comes early runs.
		tasks := queueOf(t, s).stamps(t, "a", "b")
		tasks[0].run(t, engine.OutcomeStays)
		mustPark(t, tasks[1].one())
		tasks[0].run(t, engine.OutcomeDone)
		tasks[1].run(t, engine.OutcomeDone)
		// 6: a task that left runs late.
		tasks = queueOf(t, s).stamps(t, "a", "b")
		tasks[0].run(t, engine.OutcomeLeft)
		tasks[1].run(t, engine.OutcomeDone)
		tasks[0].run(t, engine.OutcomeDone)
		// 8: a lost lease lets two run. The late release of the first does nothing to the run after it.
		q := queueOf(t, s)
		tasks = q.stamps(t, "a", "b")
		first := tasks[0].runs(t)
		if n, err := q.lock().BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatalf("BreakAll: %d, %v", n, err)
		}
		again := tasks[0].runs(t)
		insider.EndOrder(first, engine.OutcomeHeld)
		if err := first.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) {
			t.Error(err)
		}
		if h := q.head(t); h.Held() || !h.Runs {
			t.Fatalf("%+v, want at work", h)
		}
		tasks[0].ends(t, again, engine.OutcomeDone)
		tasks[1].run(t, engine.OutcomeDone)
		// 9: a task without a stamp comes after those that are there, and runs again.
		plain := task{q, "default/plain", engine.Place{Nonce: "~plain", Most: -1}}
		c := q.stamp(t, "default/c")
		mustPark(t, plain.one())
		c.run(t, engine.OutcomeDone)
		plain.run(t, engine.OutcomeDone)
		plain.run(t, engine.OutcomeDone)
		q.isNext(t, "", 0)
	})
	// 1: a redelivery after the mark has ended runs.
	q, pass := queueByClock(t)
	a := q.stamp(t, "default/a")
	a.run(t, engine.OutcomeDone)
	a.refused(t, insider.IsOrderDone)
	pass(6 * time.Minute)
	a.run(t, engine.OutcomeDone)
	// 3: archived and deleted before a look counts as deleted.
	q, pass = queueByClock(t)
	tasks := q.stamps(t, "a", "b")
	tasks[0].run(t, engine.OutcomeStays)
	pass(6 * time.Second)
	q.act(t, engine.ActGone, q.due(t)[0])
	tasks[1].run(t, engine.OutcomeDone)
	// 5: an Enqueue that failed and lands late runs next.
	q, pass = queueByClock(t)
	tasks = q.stamps(t, "ghost", "b")
	pass(stampLife + time.Second)
	q.act(t, engine.ActGone, q.due(t)[0])
	tasks[1].run(t, engine.OutcomeDone)
	tasks[0].run(t, engine.OutcomeDone)
}
