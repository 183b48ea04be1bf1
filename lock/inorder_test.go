package lock_test

import (
	"context"
	"errors"
	"strings"
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

func (q queue) lock() *lock.Lock { return insider.ByOrder(q.l, q.key) }

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

// plain is a task without a stamp.
func (q queue) plain(name string) task {
	return task{q, "default/" + name, inside.Place{Nonce: "~" + name, Most: -1}}
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
	redistest.Must(t, insider.ActOrder(t.Context(), q.lock(), act, item, 0))
}

// item is the task as its producer names it.
func (o task) item() inside.OrderItem {
	return inside.OrderItem{Nonce: o.place.Nonce, Ticket: o.place.Ticket, Note: o.note}
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
			o.refused(t, insider.IsOrderDone) // a redelivery
		}
	})
}

// A stamp for a task that has one is the same stamp. A key that has as many tasks as it may gives none.
func TestOrder_stamps(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		a := q.stamp(t, "default/a")
		if again := q.stamp(t, "default/a"); again != a {
			t.Errorf("stamped again: %+v, then %+v", a, again)
		}
		b := q.stamp(t, "default/b")
		if b.place.Ticket <= a.place.Ticket {
			t.Errorf("tickets %d and %d", a.place.Ticket, b.place.Ticket)
		}
		ticket, queued, _, err := insider.Stamp(t.Context(), q.lock(), "default/c", "c", stampLife, 2)
		if ticket != 0 || queued != 2 || err != nil {
			t.Errorf("a stamp too many: %d, %d, %v", ticket, queued, err)
		}
		a.run(t, inside.OutcomeDone)
		if ticket, _, _, err = insider.Stamp(t.Context(), q.lock(), "default/c", "c", stampLife, 2); ticket == 0 || err != nil {
			t.Errorf("a stamp in place of one that is done: %d, %v", ticket, err)
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
			inside.OutcomeDone:  {next: "default/b", queued: 1, again: insider.IsOrderDone},
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
		w, _ := waitsOrParks(t, tasks[1].one(insider.OnWait(func() { close(began) })))
		come(t, began, "a wait behind a task that was not seen")
		tasks[0].run(t, inside.OutcomeStays)
		c, _ := waitsOrParks(t, tasks[2].one(insider.OnWait(func() { t.Error("waits for a head that has failed") })))
		if busy := wantBusy(t, c.failed(t)); !busy.Parked || busy.Reason != inside.ReasonFailed || busy.Note != "default/a" {
			t.Fatalf("%+v, want parked behind a, which failed", busy)
		}
		if busy := wantBusy(t, w.failed(t)); !busy.Parked || busy.Note != "default/a" {
			t.Fatalf("who waited already: %+v, want parked behind a", busy)
		}
	})
}

// A head that waits in its worker gets the lock by the release of the one before, whoever waits longer.
func TestOrder_grantsToTheHeadOnly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		q2 := queue{newLocker(t, s.Client(t)), s, q.key}
		tasks := q.stamps(t, "a", "b", "c")
		tasks[1].queue = q2
		le := tasks[0].runs(t)
		began := make(chan struct{}, 2)
		wait := func(o task) *attempt {
			w, _ := waitsOrParks(t, o.one(insider.OnWait(func() { began <- struct{}{} })))
			come(t, began, "the wait of "+o.note)
			return w
		}
		third := wait(tasks[2])
		w := wait(tasks[1])
		tasks[0].ends(t, le, inside.OutcomeDone)
		le = w.got(t)
		if h := q.head(t); h.Note != "default/b" || !h.Runs || !third.pending() {
			t.Fatalf("the third one runs beside the second: %+v", h)
		}
		tasks[1].ends(t, le, inside.OutcomeDone)
		tasks[2].ends(t, third.got(t), inside.OutcomeDone)
		q.isNext(t, "", 0)
	})
}

// The tasks that a release, and a look, call are those that are next, in their order.
func TestOrder_callsTheNext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := &callbook{fates: map[string]inside.Fate{"default/b": inside.FateComing, "default/c": inside.FateComing}}
		l := newCaller(t, s.Client(t), func(ctx context.Context, key, named string) inside.Fate {
			item, ok := insider.OrderItem(named)
			if !ok || !item.Call {
				return inside.FateUnsure // a look
			}
			return c.call(ctx, key, item.Note)
		})
		q := queue{l, s, l.Mutex(redistest.Name(t)).Key()}
		tasks := q.stamps(t, "a", "b", "c")
		le := tasks[0].runs(t)
		mustPark(t, tasks[2].one())
		mustPark(t, tasks[1].one())
		tasks[0].ends(t, le, inside.OutcomeDone)
		c.called(t, "default/b", 1)
		tasks[1].run(t, inside.OutcomeDone)
		c.called(t, "default/c", 1)
		tasks[2].run(t, inside.OutcomeDone)
		q.isNext(t, "", 0)
	})
}

// The last attempt does not begin twice, where the first time was killed, and the key is held. An operator's run begins.
func TestOrder_lastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		a := q.stamp(t, "default/a")
		a.place.Most = 0
		a.run(t, inside.OutcomeStays) // it was killed at its only run, so asynq counts one
		a = a.retried(1)
		a.refused(t, insider.IsOrderSpent)
		if h := q.head(t); !h.Held() {
			t.Fatalf("%+v, want held", h)
		}
		a.run(t, inside.OutcomeDone)

		// An attempt of which the handler did not begin does not count.
		b := q.stamp(t, "default/b")
		b.place.Most = 0
		le := b.runs(t)
		insider.EndOrder(le, inside.OutcomeStays)
		insider.EndOrder(le, inside.OutcomeUnbegun)
		redistest.Must(t, le.Unlock(t.Context()))
		b.retried(1).run(t, inside.OutcomeDone)
	})
}

// A last attempt whose task has left the order, and whose end asynq could not note, is delivered again: it does not begin
// once more. An operator's run does.
func TestOrder_lastAttemptAfterItLeft(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, leaves := range map[string]func(a task){
			"under Continue": func(a task) { a.run(t, inside.OutcomeLeft) },
			"skipped": func(a task) {
				a.run(t, inside.OutcomeStays) // its worker could not say that it is held
				redistest.Must(t, second(insider.SkipHead(t.Context(), a.lock(), a.note, a.place.Ticket)))
			},
		} {
			a := queueOf(t, s).stamp(t, "default/a")
			a.place.Most, a.place.Continue = 0, true
			leaves(a)
			for n := 1; n <= 2; n++ { // asynq's recoverer counts one; an operator's run none
				if le, err := a.retried(n).one().TryLock(t.Context()); !insider.IsOrderSpent(err) {
					t.Fatalf("%s: %v, %v; want that its attempts are spent", name, le, err)
				}
			}
			a.retried(2).run(t, inside.OutcomeLeft) // an operator's run of what is archived now
			a.run(t, inside.OutcomeDone)
		}
	})
}

// A task that waits in its worker for an earlier run of its own ends its wait once that run's end settles it.
func TestOrder_settledWhileItWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for outcome, is := range map[inside.Outcome]func(error) bool{
			inside.OutcomeStays: insider.IsOrderSpent, inside.OutcomeDone: insider.IsOrderDone,
		} {
			a := queueOf(t, s).stamp(t, "default/a")
			a.place.Most = 0
			le := a.runs(t)
			began := make(chan struct{})
			w := lockBeside(t, a.retried(1).one(insider.OnWait(func() { close(began) })))
			come(t, began, "a wait")
			a.ends(t, le, outcome)
			if err := w.failed(t); !is(err) {
				t.Errorf("outcome %d: %v", outcome, err)
			}
		}
	})
}

// The release of an attempt that has lost its lock does nothing to the next run of its task.
func TestOrder_lateRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		a := q.stamp(t, "default/a")
		b := q.stamp(t, "default/b")
		first := a.runs(t)
		if n, err := q.lock().BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatalf("BreakAll: %d, %v", n, err)
		}
		again := a.runs(t)
		mustPark(t, b.one()) // not the next one
		insider.EndOrder(first, inside.OutcomeHeld)
		if err := first.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) {
			t.Error(err)
		}
		if h := q.head(t); h.Held() || !h.Runs {
			t.Fatalf("%+v, want at work", h)
		}
		a.ends(t, again, inside.OutcomeDone)
		b.run(t, inside.OutcomeDone)
		q.isNext(t, "", 0)
	})
}

// A stamp of a producer that died is looked for when its deadline has passed, and not before; what a look finds is
// forgotten if the task has come meanwhile.
func TestOrder_looksForAStamp(t *testing.T) {
	t.Parallel()
	q, pass := queueByClock(t)
	ghost := q.stamp(t, "default/ghost")
	pass(time.Millisecond)
	b := q.stamp(t, "default/b")
	pass(stampLife - time.Second)
	if look := q.due(t); len(look) != 0 {
		t.Fatalf("%+v is looked for before its deadline", look)
	}
	q.act(t, inside.ActGone, ghost.item())
	q.isNext(t, ghost.note, 2) // its deadline has not passed
	pass(2 * time.Second)
	look := q.due(t)
	if len(look) == 0 || look[0].Nonce != ghost.place.Nonce || look[0].Note != ghost.note || look[0].Call {
		t.Fatalf("%+v, want the ghost", look)
	}
	le := ghost.runs(t)
	for _, act := range []inside.OrderAct{inside.ActGone, inside.ActArchived, inside.ActLeft, inside.ActPresent} {
		q.act(t, act, look[0])
		if h := q.head(t); h.Queued != 2 || !h.Runs || h.Held() {
			t.Fatalf("after %s by an old look: %+v", act, h)
		}
	}
	ghost.ends(t, le, inside.OutcomeDone)
	b.run(t, inside.OutcomeDone)
}

// What a look at a task that failed, and does not come, finds in asynq.
func TestOrder_looksForAFailedHead(t *testing.T) {
	t.Parallel()
	for act, want := range map[inside.OrderAct]struct {
		next string
		held bool
		due  int // looks for it within the next second
	}{
		inside.ActGone:     {next: "default/b"},
		inside.ActLeft:     {next: "default/b"},
		inside.ActArchived: {next: "default/a", held: true},
		inside.ActPresent:  {next: "default/a"},
	} {
		t.Run(string(act), func(t *testing.T) {
			t.Parallel()
			q, pass := queueByClock(t)
			tasks := q.stamps(t, "a", "b")
			tasks[0].run(t, inside.OutcomeStays)
			pass(inside.OrderLook - time.Second)
			if look := q.due(t); len(look) != 0 {
				t.Fatalf("%+v is looked for at once", look)
			}
			pass(2 * time.Second)
			look := q.due(t)
			if len(look) == 0 || look[0].Nonce != tasks[0].place.Nonce {
				t.Fatalf("%+v, want a", look)
			}
			q.act(t, act, look[0])
			if h := q.head(t); h.Note != want.next || h.Held() != want.held {
				t.Fatalf("%+v, want %s, held %v", h, want.next, want.held)
			}
			q.act(t, act, look[0]) // again
			if h := q.head(t); h.Note != want.next || h.Held() != want.held {
				t.Fatalf("after the same look again: %+v", h)
			}
		})
	}
}

// A hold outlives asynq's trimming of its archive.
func TestOrder_aHoldOutlivesItsTask(t *testing.T) {
	t.Parallel()
	q, pass := queueByClock(t)
	a := q.stamp(t, "default/a")
	a.run(t, inside.OutcomeHeld)
	pass(24 * time.Hour)
	for _, item := range append(q.due(t), a.item()) {
		q.act(t, inside.ActGone, item)
	}
	if h := q.head(t); !h.Held() {
		t.Fatalf("%+v, want held", h)
	}
}

// A head that comes back in an hour is looked for once a minute: an operator may have deleted it.
func TestOrder_looksForALateHeadEachMinute(t *testing.T) {
	t.Parallel()
	q, pass := queueByClock(t)
	q.stamp(t, "default/a").run(t, inside.OutcomeStays)
	pass(6 * time.Second)
	look := q.due(t)
	if len(look) != 1 {
		t.Fatalf("%v", look)
	}
	redistest.Must(t, insider.ActOrder(t.Context(), q.lock(), inside.ActPresent, look[0], time.Hour))
	for minute := range 3 {
		looks := 0
		for range 60 {
			pass(time.Second)
			looks += len(q.due(t))
		}
		if looks == 0 || looks > 6 { // processes check once in four seconds
			t.Errorf("it is due in %d seconds of minute %d", looks, minute)
		}
	}
}

// A stamp that was taken for a dead producer's comes back at its own ticket when its producer confirms, unless it is done.
func TestOrder_confirmedAfterItWasDropped(t *testing.T) {
	t.Parallel()
	q, pass := queueByClock(t)
	slow := q.stamp(t, "default/slow")
	pass(time.Millisecond)
	next := q.stamp(t, "default/next")
	pass(stampLife + time.Second)
	look := q.due(t)
	if len(look) == 0 || look[0].Note != slow.note {
		t.Fatalf("%+v", look)
	}
	q.act(t, inside.ActGone, look[0])
	if h := q.head(t); h.Note != next.note {
		t.Fatalf("the head is %+v, want the next one", h)
	}
	for range 2 { // a confirm may be sent twice
		q.act(t, inside.ActConfirm, slow.item())
	}
	q.isNext(t, slow.note, 2)
	mustPark(t, next.one())
	slow.run(t, inside.OutcomeDone)
	q.act(t, inside.ActConfirm, slow.item())
	q.isNext(t, next.note, 1)
}

// A task that its producer could not enqueue, or that is one of another key now, leaves, and does not run if a copy of
// its command lands later.
func TestOrder_leavesUnrun(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, act := range []inside.OrderAct{inside.ActRefused, inside.ActWithdraw} {
			q := queueOf(t, s)
			tasks := q.stamps(t, "a", "b")
			for range 2 { // it may be sent twice
				q.act(t, act, tasks[0].item())
			}
			q.isNext(t, "default/b", 1)
			if act == inside.ActRefused {
				tasks[0].refused(t, insider.IsOrderDone)
			}
			tasks[1].run(t, inside.OutcomeDone)
		}
	})
}

// A skip takes out the head, unless it runs, and no other task: not if it is sent again, and not a later task that has
// got the same ID. With an ID only, it means the head of now.
func TestOrder_skip(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		tasks := q.stamps(t, "a", "b")
		if head, err := insider.SkipHead(t.Context(), q.lock(), "default/b", tasks[1].place.Ticket); head != "default/a" || !insider.IsNotHead(err) {
			t.Errorf("a skip of another than the head: %q, %v", head, err)
		}
		le := tasks[0].runs(t)
		if _, err := insider.SkipHead(t.Context(), q.lock(), "default/a", tasks[0].place.Ticket); !insider.IsHeadRunning(err) {
			t.Errorf("a skip of a head at work: %v", err)
		}
		tasks[0].ends(t, le, inside.OutcomeHeld)
		redistest.Must(t, second(insider.SkipHead(t.Context(), q.lock(), "default/a", 0)))
		tasks[1].run(t, inside.OutcomeDone)

		const note = "default/same"
		for name, nonces := range map[string][2]string{"stamped": {"first", "second"}, "plain": {"~same", "~same"}} {
			q := queueOf(t, s)
			arrive := func(nonce string) int64 { // it joins the key's end, and fails
				o := task{q, note, inside.Place{Nonce: nonce, Most: -1}}
				if nonce[0] != '~' {
					ticket, _, _, err := insider.Stamp(t.Context(), q.lock(), note, nonce, stampLife, 0)
					redistest.Must(t, err)
					o.place.Ticket = ticket
				}
				o.run(t, inside.OutcomeStays)
				return q.head(t).Ticket
			}
			skip := func(ticket int64) (string, error) { return insider.SkipHead(t.Context(), q.lock(), note, ticket) }
			first := arrive(nonces[0])
			for range 2 {
				if _, err := skip(first); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			second := arrive(nonces[1])
			if _, err := skip(first); err != nil {
				t.Errorf("%s: the skip of the first one, again: %v", name, err)
			}
			if h := q.head(t); h.Ticket != second || first == second {
				t.Fatalf("%s: %+v, want the second one", name, h)
			}
			if head, err := skip(first - 1); !insider.IsNotHead(err) || head != note {
				t.Errorf("%s: a skip of a task that nobody has seen: %q, %v", name, head, err)
			}
			if _, err := skip(0); err != nil {
				t.Errorf("%s: a skip by the ID: %v", name, err)
			}
			q.isNext(t, "", 0)
		}
	})
}

// A task without a stamp comes after those that are there, and runs again when it is delivered again.
func TestOrder_withoutAStamp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		tasks, plain := q.stamps(t, "a"), q.plain("plain")
		mustPark(t, plain.one())
		tasks = append(tasks, plain, q.stamp(t, "default/b"))
		mustPark(t, tasks[2].one())
		for _, o := range tasks {
			o.run(t, inside.OutcomeDone)
		}
		plain.run(t, inside.OutcomeDone)
		q.isNext(t, "", 0)
	})
}

// Tasks whose key is taken by its name, without an order, keep their places.
func TestOrder_besideAPlainHolder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s)
		a := q.stamp(t, "default/a")
		le := mustTry(t, insider.ByKey(q.l, q.key))
		if busy := mustBeBusy(t, a.one()); busy.Reason != lock.ReasonHeld {
			t.Errorf("%+v, want held", busy)
		}
		began := make(chan struct{})
		w := lockBeside(t, a.one(insider.OnWait(func() { close(began) })))
		come(t, began, "a wait")
		mustUnlock(t, le)
		a.ends(t, w.got(t), inside.OutcomeDone)
		a.refused(t, insider.IsOrderDone)
	})
}

// A key that only tasks in order want is listed, with how many they are, its head, and its line.
func TestOrder_isSeen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := queueOf(t, s, ownPrefix(t))
		tasks := q.stamps(t, "a", "b", "c")
		see := func(queued int, failed, runs, held bool) inside.Info {
			t.Helper()
			var seen []inside.Info
			for info, err := range insider.List(t.Context(), q.l) {
				redistest.Must(t, err)
				seen = append(seen, info)
			}
			if len(seen) != 1 || seen[0].Queued != queued {
				t.Fatalf("%+v, want one key with %d queued", seen, queued)
			}
			if h := seen[0].Head; h.Note != "default/a" || h.Queued != 3 || h.Held() != held || h.Failed != failed || h.Runs != runs || h.Blocks() != (failed || held) {
				t.Fatalf("%+v; want failed %v, runs %v, held %v", h, failed, runs, held)
			}
			line, err := insider.Line(t.Context(), q.lock(), seen[0], 100)
			if err != nil || len(line) != queued || line[queued-1].Note != "default/c" || !line[0].Ordered || line[0].Held != held {
				t.Fatalf("line %+v, %v; want %d", line, err, queued)
			}
			if short, err := insider.Line(t.Context(), q.lock(), seen[0], 1); err != nil || len(short) != 1 || short[0].Note != line[0].Note {
				t.Fatalf("the first of the line: %+v, %v", short, err)
			}
			return seen[0]
		}
		see(3, false, false, false)
		mustPark(t, tasks[1].one())
		le := tasks[0].runs(t)
		if info := see(2, false, true, false); info.Head.MayBlock() {
			t.Errorf("a head at work blocks: %+v", info.Head)
		}
		if info := looksAt(t, tasks[2].one()); info.Place != 1 {
			t.Errorf("place %d, want 1 behind the one at work", info.Place)
		}
		tasks[0].ends(t, le, inside.OutcomeStays)
		see(3, true, false, false)
		if info := looksAt(t, tasks[2].one()); info.Place != 2 {
			t.Errorf("place %d, want 2", info.Place)
		}
		tasks[0].run(t, inside.OutcomeHeld)
		see(3, false, false, true)
		line, err := insider.Line(t.Context(), q.lock(), inside.Info{}, 100)
		if err != nil || !line[0].Held || !line[1].Parked {
			t.Errorf("%+v, %v", line, err)
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
		a.refused(t, insider.IsOrderDone)
		b.place.Most = 0
		run(b, inside.OutcomeStays) // killed in its only run
		b = b.retried(1)
		b.refused(t, insider.IsOrderSpent)
		if h := q.head(t); h.Note != b.note || !h.Held() {
			t.Fatalf("%+v, want b held", h)
		}
		run(b, inside.OutcomeLeft) // an operator's run
		q.act(t, inside.ActConfirm, b.item())
		q.isNext(t, c.note, 1) // a late confirm brings nothing back
		redistest.Must(t, second(insider.SkipHead(t.Context(), q.lock(), c.note, 0)))
		q.act(t, inside.ActConfirm, c.item())
		q.isNext(t, "", 0)
	})
}

// A key lasts 30 days after its last use, ten years while its head is held, and goes when the last task has left.
func TestOrder_keyLife(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const day = 24 * time.Hour
		q, rdb := queueOf(t, s), s.Client(t)
		lasts := func(when string, least, most time.Duration) {
			t.Helper()
			if left := rdb.PTTL(t.Context(), q.key).Val(); left < least || left > most {
				t.Errorf("%s: the key lasts %s, want %s to %s", when, left, least, most)
			}
		}
		tasks := q.stamps(t, "a", "b")
		lasts("a stamp", 30*day-time.Minute, 40*day)
		tasks[0].run(t, inside.OutcomeHeld)
		lasts("held", 3649*day, 5000*day)
		mustPark(t, tasks[1].one())
		lasts("held, and used", 3649*day, 5000*day)
		redistest.Must(t, second(insider.SkipHead(t.Context(), q.lock(), "default/a", 0)))
		lasts("skipped", 30*day-time.Minute, 5000*day)
		tasks[1].run(t, inside.OutcomeDone)
		redistest.Eventually(t, soon, func() bool {
			info, err := insider.Inspect(t.Context(), q.lock())
			return err == nil && !info.InUse()
		}, "nothing in use")
	})
}

// A right that is missing in the midst of a script loses no task and no place: when it is back, the tasks run in order.
func TestOrder_deniedCommand(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	for _, command := range []string{"pexpire", "zadd", "zrem", "zscore", "zrangebyscore", "hset", "hget", "hdel", "set", "get", "exists", "type", "time"} {
		t.Run(command, func(t *testing.T) {
			user := redistest.Name(t)
			redistest.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", user, "on", ">x", "~*", "&*", "+@all").Err())
			l := newLocker(t, s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = user, "x" }))
			q := queue{l, s, l.Mutex(redistest.Name(t)).Key()}
			denied := func(call func() error) {
				redistest.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", user, "-"+command).Err())
				for range 2 {
					_ = call()
				}
				redistest.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", user, "+"+command).Err())
			}
			var tasks []task
			for _, note := range []string{"default/a", "default/b", "default/c"} {
				denied(func() error {
					_, _, _, err := insider.Stamp(t.Context(), q.lock(), note, "n"+strings.ReplaceAll(note, "/", "-"), stampLife, 0)
					return err
				})
				tasks = append(tasks, q.stamp(t, note))
			}
			for _, late := range []int{2, 1} {
				denied(func() error { return second(insider.LockOrPark(t.Context(), tasks[late].one(), parkNow)) })
			}
			for i, o := range tasks {
				denied(func() error {
					le, err := o.one().TryLock(t.Context())
					if err == nil {
						insider.EndOrder(le, inside.OutcomeStays)
						err = le.Unlock(t.Context())
					}
					return err
				})
				for _, later := range tasks[i+1:] {
					if le, err := later.one().TryLock(t.Context()); err == nil {
						t.Fatalf("%s runs before %s: %v", later.note, o.note, le)
					}
				}
				var le *lock.Lease
				redistest.Eventually(t, soon, func() bool {
					var err error
					le, err = o.one(lock.TTL(2 * time.Second)).TryLock(t.Context())
					return err == nil
				}, "%s is the next one", o.note)
				insider.EndOrder(le, inside.OutcomeDone)
				denied(func() error { return le.Unlock(t.Context()) })
				redistest.Eventually(t, soon, func() bool { // the release is sent again in the background
					h, err := insider.Head(context.Background(), q.lock())
					if err == nil && h.Note == o.note && !h.Runs { // or it was lost, as by a crash
						if le, err := o.one().TryLock(t.Context()); err == nil {
							o.ends(t, le, inside.OutcomeDone)
						}
					}
					return err == nil && h.Note != o.note
				}, "%s has left", o.note)
			}
			q.isNext(t, "", 0)
		})
	}
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
	})
	// 1: a redelivery after the mark has ended runs.
	q, pass := queueByClock(t)
	a := q.stamp(t, "default/a")
	a.run(t, inside.OutcomeDone)
	a.refused(t, insider.IsOrderDone)
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
	// 8: a lost lease lets two run; see TestOrder_lateRelease. 9: see TestOrder_withoutAStamp.
}
