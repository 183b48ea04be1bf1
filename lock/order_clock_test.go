package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// Redis' clock steps back by an hour between stamps: tickets grow nevertheless, and a stamp of a dead producer, which is ahead of the
// clock now, is looked for after its deadline and not an hour later.
func TestOrder_clockStepsBack(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	now := time.Now()
	s.SetTime(t, now)
	l := newLocker(t, s.Client(t))
	key := l.Mutex(t.Name()).Key()
	a, ghost := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/ghost")
	now = now.Add(-time.Hour)
	s.SetTime(t, now)
	b := stampTask(t, l, key, "default/b")
	now = now.Add(time.Second)
	s.SetTime(t, now)
	c := stampTask(t, l, key, "default/c")
	if a.place.Ticket >= ghost.place.Ticket || ghost.place.Ticket >= b.place.Ticket || b.place.Ticket >= c.place.Ticket {
		t.Fatalf("tickets %d, %d, %d, %d", a.place.Ticket, ghost.place.Ticket, b.place.Ticket, c.place.Ticket)
	}
	c.mustPark(t)
	b.mustPark(t)
	a.end(t, a.mustRun(t), inside.OutcomeDone)
	look := func() []inside.OrderItem {
		_, _, look, err := l.byOrder(key).stamp(t.Context(), "default/d", "nd", stampDeadline, 1)
		redistest.Must(t, err)
		return look
	}
	if found := look(); len(found) != 0 {
		t.Fatalf("%+v is looked for before its deadline; %s", found, dump(a.lock()))
	}
	now = now.Add(stampDeadline - time.Second)
	s.SetTime(t, now)
	if found := look(); len(found) != 0 {
		t.Fatalf("%+v is looked for before its deadline; %s", found, dump(a.lock()))
	}
	s.SetTime(t, now.Add(2*time.Second))
	found := look()
	if len(found) != 1 || found[0].Nonce != ghost.place.Nonce {
		t.Fatalf("%+v, want the ghost; %s", found, dump(a.lock()))
	}
	redistest.Must(t, l.byOrder(key).actOrder(t.Context(), inside.ActGone, found[0], 0))
	if _, err := c.lock().TryLock(t.Context()); wantBusy(t, err).Note != b.note {
		t.Errorf("c: %v, want behind b", err)
	}
	b.end(t, b.mustRun(t), inside.OutcomeDone)
	c.end(t, c.mustRun(t), inside.OutcomeDone)
}

// An ordered key lasts 30 days after its last use, which is written once a day; ten years while its head is held; 30 days again when
// that is skipped; and five minutes after the last task.
func TestOrder_keyLife(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const day, second = 24 * time.Hour, time.Second
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		key := l.Mutex(t.Name()).Key()
		lasts := func(when string, want time.Duration) {
			t.Helper()
			if left := rdb.PTTL(t.Context(), key).Val(); left > want+2*second || left < want-time.Minute {
				t.Errorf("%s: the key lasts %s, want %s; %s", when, left, want, dump(l.byKey(key)))
			}
		}
		passes := func(d time.Duration) { // since the key was used
			t.Helper()
			redistest.Must(t, rdb.PExpire(t.Context(), key, 30*day-d).Err())
		}
		touches := map[string]func(){}
		a, b := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b")
		lasts("a stamp", 30*day)
		touches["a stamp"] = func() {
			_, _, _, err := l.byOrder(key).stamp(t.Context(), "default/c", "nc"+time.Now().String(), stampDeadline, 0)
			redistest.Must(t, err)
		}
		touches["an arrival"] = func() { b.mustPark(t) }
		touches["a run"] = func() { a.end(t, a.mustRun(t), inside.OutcomeStays) }
		touches["a look"] = func() {
			redistest.Must(t, l.byOrder(key).actOrder(t.Context(), inside.ActNone, inside.OrderItem{}, 0))
		}
		for name, touch := range touches {
			passes(23 * time.Hour)
			touch()
			lasts(name+" within a day", 30*day-23*time.Hour)
			passes(25 * time.Hour)
			touch()
			lasts(name+" after a day", 30*day)
		}
		const year = 365 * day
		a.end(t, a.mustRun(t), inside.OutcomeHeld)
		lasts("held", 10*year)
		touches["an arrival"]()
		touches["a stamp"]()
		touches["a look"]()
		lasts("held, and used", 10*year)
		if _, err := l.byOrder(key).skipHead(t.Context(), a.note, 0); err != nil {
			t.Fatal(err)
		}
		lasts("skipped", 30*day)
		b.end(t, b.mustRun(t), inside.OutcomeDone)
		for h := headOf(t, l, key); h.State != ""; h = headOf(t, l, key) {
			if _, err := l.byOrder(key).skipHead(t.Context(), h.Note, h.Ticket); err != nil {
				t.Fatal(err)
			}
		}
		lasts("the last one has left", 5*time.Minute)
	})
}

// A failover loses the last writes of an ordered key: a release, or a stamp. What was done runs at most once more, what is left
// runs in order, and a stamp that was lost comes back at its own ticket.
func TestOrder_rolledBack(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	rdb := s.Client(t)
	l := newLocker(t, rdb)
	key := l.Mutex(t.Name()).Key()
	a, b := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b")
	before, err := rdb.Dump(t.Context(), key).Result()
	redistest.Must(t, err)
	c := stampTask(t, l, key, "default/c")
	c.mustPark(t)
	a.end(t, a.mustRun(t), inside.OutcomeDone)
	redistest.Must(t, rdb.RestoreReplace(t.Context(), key, 30*24*time.Hour, before).Err())
	// a is an intent again, so it is in front, and a look finds it completed, or gone.
	if _, err := b.lock().TryLock(t.Context()); wantBusy(t, err).Note != a.note {
		t.Errorf("b: %v, want behind a", err)
	}
	d := stampTask(t, l, key, "default/d") // its ticket is higher than that which was lost
	c.mustPark(t)                          // at its own ticket
	if d.place.Ticket <= c.place.Ticket {
		t.Errorf("d has ticket %d, and c %d", d.place.Ticket, c.place.Ticket)
	}
	redistest.Must(t, l.byOrder(key).actOrder(t.Context(), inside.ActLeft, inside.OrderItem{State: "i", Nonce: a.place.Nonce, Ticket: a.place.Ticket, Note: a.note}, 0))
	for _, o := range []orderedTask{b, c, d} {
		for _, later := range []orderedTask{c, d} {
			if later.note > o.note {
				if _, err := later.lock().TryLock(t.Context()); !errors.Is(err, ErrBusy) {
					t.Errorf("%s before %s: %v", later.note, o.note, err)
				}
			}
		}
		o.end(t, o.mustRun(t), inside.OutcomeDone)
	}
}

// Who takes the lock of an ordered key by its name, and leaves it with a cooldown, does not shorten the life of the places in it.
func TestOrder_keyLifeBesideACooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		m := l.Mutex(t.Name())
		rest := func(when string, least time.Duration) {
			t.Helper()
			le, err := m.TryLock(t.Context())
			redistest.Must(t, err)
			redistest.Must(t, le.Cooldown(t.Context(), time.Millisecond))
			if left := rdb.PTTL(t.Context(), m.Key()).Val(); left < least {
				t.Errorf("%s: the key lasts %s, want at least %s; %s", when, left, least, dump(m))
			}
		}
		a := stampTask(t, l, m.Key(), "default/a")
		rest("a place", 29*24*time.Hour)
		redistest.Eventually(t, soon, func() bool {
			le, err := a.lock().TryLock(t.Context())
			if err == nil {
				a.end(t, le, inside.OutcomeDone)
			}
			return err == nil
		}, "the gate opens")
		rest("a done mark", 4*time.Minute)
	})
}

// The last task in order leaves a key on which others are parked, since a time when it was not ordered: it lasts as long as they may stay away.
func TestOrder_keyLifeBesideParkedTasks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(t.Name())
		first := mustTry(t, m)
		if _, err := m.at(m.name, m.Key(), 1, "default/parked", nil).lockOrPark(t.Context(), closedYield); !wantBusy(t, err).Parked {
			t.Fatalf("%v, want parked", err)
		}
		mustUnlock(t, first)
		a := stampTask(t, l, m.Key(), "default/a")
		redistest.Must(t, l.byOrder(m.Key()).actOrder(t.Context(), inside.ActWithdraw, inside.OrderItem{Nonce: a.place.Nonce, Ticket: a.place.Ticket, Note: a.note}, 0))
		if left := s.Client(t).PTTL(t.Context(), m.Key()).Val(); left < 29*time.Minute || left > 31*time.Minute {
			t.Errorf("the key lasts %s, want 30 minutes; %s", left, dump(m))
		}
	})
}
