package lock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// stampDeadline is that of stamps in these tests: no look is due unless a test shortens it.
const stampDeadline = 10 * time.Second

// orderedTask is a task of an ordered key, as its worker sees it.
type orderedTask struct {
	note   string
	place  inside.Place
	locker *Locker
	key    string
}

// stampTask gives a task its place.
func stampTask(t testing.TB, l *Locker, key, note string) orderedTask {
	t.Helper()
	return stampTaskFor(t, l, key, note, stampDeadline)
}

func stampTaskFor(t testing.TB, l *Locker, key, note string, deadline time.Duration) orderedTask {
	t.Helper()
	nonce := "n" + strings.ReplaceAll(note, "/", "-")
	ticket, _, _, err := l.byOrder(key).stamp(t.Context(), note, nonce, deadline, 0)
	if err != nil || ticket <= 0 {
		t.Fatalf("stamp %s: %d, %v", note, ticket, err)
	}
	return orderedTask{note: note, place: inside.Place{Nonce: nonce, Ticket: ticket, Most: -1}, locker: l, key: key}
}

// lock is a handle of the task's lock, for one arrival.
func (o orderedTask) lock(options ...Option) *Lock {
	return o.locker.Mutex("ordered", options...).at("ordered", o.key, 1, o.note, []Option{inOrder(o.place)})
}

func (o orderedTask) mustRun(t testing.TB) *Lease {
	t.Helper()
	le, err := o.lock().TryLock(t.Context())
	if err != nil {
		t.Fatalf("%s: %v; %s", o.note, err, dump(o.lock()))
	}
	return le
}

func (o orderedTask) mustPark(t testing.TB) *BusyError {
	t.Helper()
	le, err := o.lock().lockOrPark(t.Context(), closedYield)
	if le != nil || err == nil {
		t.Fatalf("%s took the lock, want parked; %s", o.note, dump(o.lock()))
	}
	busy := wantBusy(t, err)
	if !busy.Parked {
		t.Fatalf("%s: %v, want parked; %s", o.note, err, dump(o.lock()))
	}
	return busy
}

func (o orderedTask) end(t testing.TB, le *Lease, outcome inside.Outcome) {
	t.Helper()
	le.endOrder(outcome)
	if err := le.Unlock(t.Context()); err != nil {
		t.Fatalf("%s: Unlock: %v; %s", o.note, err, dump(o.lock()))
	}
}

func headOf(t testing.TB, l *Locker, key string) inside.Head {
	t.Helper()
	h, err := l.byOrder(key).head(context.Background())
	redistest.Must(t, err)
	return h
}

// Whoever arrives first, the lowest stamp runs first.
func TestOrder_lowestStampFirst(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a, b, c := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b"), stampTask(t, l, key, "default/c")
		if busy := c.mustPark(t); busy.Note != a.note || busy.Holder != "" || busy.Place != 2 {
			t.Fatalf("behind %q of %q at place %d, want behind %s at place 2", busy.Note, busy.Holder, busy.Place, a.note)
		}
		b.mustPark(t)
		for _, o := range []orderedTask{a, b, c} {
			if h := headOf(t, l, key); h.Note != o.note || h.Runs {
				t.Fatalf("the head is %+v, want %s", h, o.note)
			}
			le := o.mustRun(t)
			if h := headOf(t, l, key); h.Note != o.note || !h.Runs {
				t.Fatalf("the head is %+v, want %s at work", h, o.note)
			}
			o.end(t, le, inside.OutcomeDone)
		}
		if h := headOf(t, l, key); h.State != "" {
			t.Fatalf("%+v is left; %s", h, dump(a.lock()))
		}
		// A redelivery of a task that is done.
		if _, err := a.lock().TryLock(t.Context()); !theInsider.IsOrderDone(err) {
			t.Fatalf("a redelivery: %v, want that it is done", err)
		}
		if left := s.Client(t).PTTL(t.Context(), key).Val(); left <= 0 || left > 6*time.Minute {
			t.Fatalf("the key lasts %s, want as long as the done marks", left)
		}
	})
}

var theInsider = insider{}

// A retry keeps its place and its key.
func TestOrder_retryKeepsThePlace(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a, b := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b")
		a.end(t, a.mustRun(t), inside.OutcomeStays)
		b.mustPark(t)
		a.place.Retried = 1
		a.end(t, a.mustRun(t), inside.OutcomeDone)
		b.end(t, b.mustRun(t), inside.OutcomeDone)
	})
}

// A check that calls a task notes since when the slot is free, and a later check keeps that time. So the task learns
// how long the slot was free for want of it.
func TestOrder_aCheckNotesSinceWhenTheSlotIsFree(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(redistest.Name(t)).Key()
		a, b, c := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b"), stampTask(t, l, key, "default/c")
		le := a.mustRun(t)
		b.mustPark(t)
		c.mustPark(t)
		a.end(t, le, inside.OutcomeDone) // by a Locker without a Caller: it calls nobody
		m := b.lock()
		if at := stored(t, m)["i"]; at != 0 {
			t.Fatalf("nobody is called, and the slot counts as free since %.0f; %s", at, dump(m))
		}
		runs(t, m, wire.OrderActScript, m.orderArgs(1, inside.ActNone, inside.OrderItem{}, 0))
		since := stored(t, m)["i"]
		if since == 0 {
			t.Fatalf("the check called %s and did not note since when the slot is free; %s", b.note, dump(m))
		}
		since += float64(time.Hour.Milliseconds()) // as if that check had been an hour ago
		redistest.Must(t, raw(m).ZAdd(t.Context(), key, redis.Z{Score: since, Member: "i"}).Err())
		runs(t, m, wire.OrderActScript, m.orderArgs(1, inside.ActNone, inside.OrderItem{}, 0))
		if at := stored(t, m)["i"]; at != since {
			t.Errorf("after a second check the slot counts as free since %.0f, want %.0f", at, since)
		}
		got, err := m.ask(t.Context(), m.newLease(), turn.Try)
		if err != nil || !got.Yours || got.SlotFreeFor < time.Hour || got.SlotFreeFor > time.Hour+soon {
			t.Errorf("the called task: %+v, %v; want the slot, free for an hour; %s", got, err, dump(m))
		}
		if called := runs(t, m, wire.OrderActScript, m.orderArgs(1, inside.ActNone, inside.OrderItem{}, 0)); len(called) != 1 {
			t.Errorf("while %s runs, a check calls %q, want %s", b.note, called, c.note)
		}
		if at := stored(t, m)["i"]; at != 0 {
			t.Errorf("%s has the slot, and it counts as free since %.0f; %s", b.note, at, dump(m))
		}
	})
}

// Nobody waits in a worker for a head that has failed. Behind one that was not seen yet a task waits.
func TestOrder_parksBehindAHeadThatIsAway(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a, b, c := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b"), stampTask(t, l, key, "default/c")
		waits, got := make(chan error, 1), make(chan struct{})
		go func() {
			_, err := b.lock(onWait(func() { close(got) })).lockOrPark(t.Context(), make(chan struct{}))
			waits <- err
		}()
		<-got
		a.end(t, a.mustRun(t), inside.OutcomeStays)
		_, err := c.lock(onWait(func() { t.Error("waits for a head that has failed") })).lockOrPark(t.Context(), make(chan struct{}))
		if busy := wantBusy(t, err); !busy.Parked || busy.Reason != inside.ReasonFailed || busy.Note != a.note {
			t.Fatalf("%v, want parked behind %s", busy, a.note)
		}
		if busy := wantBusy(t, <-waits); !busy.Parked || busy.Note != a.note {
			t.Fatalf("who waited already: %v, want parked behind %s", busy, a.note)
		}
	})
}

// A release names no task to look for, however old its stamp is: the key has just come free. A check does.
func TestOrder_noLookAtARelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a := stampTask(t, l, key, "default/a")
		for _, note := range []string{"default/b", "default/c"} {
			stampTaskFor(t, l, key, note, 0)
		}
		le, m := a.mustRun(t), l.byOrder(key)
		le.endOrder(inside.OutcomeDone)
		script, args := orderKind{}.release(le)
		named := func(reply any, err error) int {
			list, ok := reply.([]any)
			if err != nil || !ok {
				t.Fatalf("%v, %v; %s", reply, err, dump(a.lock()))
			}
			return len(list) - 3
		}
		if n := named(l.conn.Run(t.Context(), script, m.keys, args)); n != 0 {
			t.Errorf("the release names %d tasks", n)
		}
		inbound, _ := l.parking.WantedCalls(m.parked())
		if n := named(l.conn.Run(t.Context(), wire.OrderActScript, m.keys, m.orderArgs(inbound, inside.ActNone, inside.OrderItem{}, 0))); n != 1 {
			t.Errorf("a check names %d tasks, want the head", n)
		}
	})
}

// A head that waits in its worker gets the lock by the release of the one before, others do not.
func TestOrder_grantsToTheHeadOnly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, other := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a, b, c := stampTask(t, l, key, "default/a"), stampTask(t, other, key, "default/b"), stampTask(t, l, key, "default/c")
		le := a.mustRun(t)
		type result struct {
			le  *Lease
			err error
		}
		wait := func(o orderedTask) chan result {
			got := make(chan result, 1)
			go func() {
				le, err := o.lock().lockOrPark(t.Context(), make(chan struct{}))
				got <- result{le, err}
			}()
			redistest.Eventually(t, soon, func() bool {
				return strings.Contains(dump(o.lock()), "|w|") && strings.Contains(dump(o.lock()), o.note)
			}, "%s waits", o.note)
			return got
		}
		third := wait(c)
		second := wait(b)
		a.end(t, le, inside.OutcomeDone)
		r := <-second
		if r.err != nil {
			t.Fatal(r.err)
		}
		select {
		case <-third:
			t.Fatal("the third one runs beside the second")
		case <-time.After(50 * time.Millisecond):
		}
		b.end(t, r.le, inside.OutcomeDone)
		r = <-third
		if r.err != nil {
			t.Fatal(r.err)
		}
		c.end(t, r.le, inside.OutcomeDone)
	})
}

// A stamp that was taken for a dead producer's comes back at its own ticket when its producer confirms.
func TestOrder_confirmedAfterItWasDropped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		m := l.byOrder(key)
		slow, next := stampTaskFor(t, l, key, "default/slow", time.Millisecond), stampTask(t, l, key, "default/next")
		item := inside.OrderItem{State: "i", Nonce: slow.place.Nonce, Ticket: slow.place.Ticket, Note: slow.note}
		time.Sleep(5 * time.Millisecond) // Redis' clock passes the deadline
		redistest.Must(t, m.actOrder(t.Context(), inside.ActGone, item, 0))
		if h := headOf(t, l, key); h.Note != next.note {
			t.Fatalf("the head is %+v, want the next one", h)
		}
		for range 2 { // a confirm may be sent twice
			redistest.Must(t, m.actOrder(t.Context(), inside.ActConfirm, item, 0))
		}
		if h := headOf(t, l, key); h.Note != slow.note || h.Queued != 2 {
			t.Fatalf("the head is %+v, want the slow one", h)
		}
		next.mustPark(t)
		slow.end(t, slow.mustRun(t), inside.OutcomeDone)
		// After it is done a confirm changes nothing.
		redistest.Must(t, m.actOrder(t.Context(), inside.ActConfirm, item, 0))
		if h := headOf(t, l, key); h.Note != next.note || h.Queued != 1 {
			t.Fatalf("the head is %+v, want the next one alone", h)
		}
	})
}

// What a look has seen changes nothing if the member has changed since.
func TestOrder_aLookThatIsOld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		m := l.byOrder(key)
		fresh := stampTask(t, l, key, "default/fresh") // its deadline is not over
		item := inside.OrderItem{State: "i", Nonce: fresh.place.Nonce, Ticket: fresh.place.Ticket, Note: fresh.note}
		for _, act := range []inside.OrderAct{inside.ActGone} {
			redistest.Must(t, m.actOrder(t.Context(), act, item, 0))
			if h := headOf(t, l, key); h.Queued != 1 || h.State != "i" {
				t.Fatalf("after %s: %+v", act, h)
			}
		}
		le := fresh.mustRun(t) // it has arrived
		for _, act := range []inside.OrderAct{inside.ActGone, inside.ActArchived, inside.ActLeft, inside.ActPresent} {
			redistest.Must(t, m.actOrder(t.Context(), act, item, 0))
			if h := headOf(t, l, key); h.Queued != 1 || h.State != "a" || !h.Runs {
				t.Fatalf("after %s: %+v", act, h)
			}
		}
		fresh.end(t, le, inside.OutcomeHeld)
		// A hold outlives asynq's trimming of its archive.
		for name := range stored(t, fresh.lock()) {
			if strings.HasPrefix(name, "o:") {
				item.State, item.Seen = "h", strings.Split(name, "|")[2]
			}
		}
		redistest.Must(t, m.actOrder(t.Context(), inside.ActGone, item, 0))
		if h := headOf(t, l, key); h.State != "h" {
			t.Fatalf("%+v, want held", h)
		}
		if left := s.Client(t).PTTL(t.Context(), key).Val(); left < 365*24*time.Hour {
			t.Fatalf("the key of a held task lasts %s", left)
		}
	})
}

// The release of an attempt that is sent again, minutes later, does nothing to the next run of its task.
func TestOrder_lateRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a := stampTask(t, l, key, "default/a")
		first := a.mustRun(t)
		a.end(t, first, inside.OutcomeHeld)
		second := a.mustRun(t) // an operator runs it again
		if _, held, err := first.release(t.Context()); err != nil || held {
			t.Fatalf("held %v, %v", held, err)
		}
		if h := headOf(t, l, key); h.State != "a" || !h.Runs {
			t.Fatalf("%+v, want at work", h)
		}
		a.end(t, second, inside.OutcomeDone)
		if h := headOf(t, l, key); h.State != "" {
			t.Fatalf("%+v, want nothing", h)
		}
	})
}

// A look at a task whose run has lost the lock takes nothing from that run: if it is done, it is not run again.
func TestOrder_lookAtARunWithoutItsLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a, b := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b")
		le := a.mustRun(t)
		for name := range stored(t, a.lock()) {
			if strings.HasPrefix(name, "h:") {
				redistest.Must(t, s.Client(t).ZRem(t.Context(), key, name).Err()) // its deadline has passed
			}
		}
		a.isLookedFor(t, inside.ActPresent)
		le.endOrder(inside.OutcomeDone)
		if _, held, err := le.release(t.Context()); err != nil || held {
			t.Fatalf("held %v, %v", held, err)
		}
		if _, err := a.lock().TryLock(t.Context()); !theInsider.IsOrderDone(err) {
			t.Fatalf("a redelivery: %v, want that it is done", err)
		}
		b.end(t, b.mustRun(t), inside.OutcomeDone)
	})
}
