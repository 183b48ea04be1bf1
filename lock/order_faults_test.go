package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// Faults at single commands of ordered keys, one layer below those that the simulation puts at each command.

// A right that is missing in the midst of a script loses no task and no place, and leaves no key without a TTL: when
// the right is back, the tasks run in order.
func TestOrder_deniedCommand(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	for _, command := range []string{
		"pexpire", "pttl", "zadd", "zrem", "zscore", "zcount", "zcard", "zrangebyscore", "zrevrangebyscore", "zremrangebyscore", "exists", "type", "time",
	} {
		t.Run(command, func(t *testing.T) {
			rdb := withUser(t, s, admin, "user-"+command)
			l := newLocker(t, rdb)
			key := l.Mutex(t.Name()).Key()
			denied := func(call func() error) (err error) {
				deny(t, admin, "user-"+command, "-"+command)
				for range 2 {
					err = call()
					if left := keysWithoutTTL(t, admin); len(left) > 0 {
						t.Fatalf("without TTL: %q, after %v", left, err)
					}
				}
				deny(t, admin, "user-"+command, "+"+command)
				return err
			}
			plain := orderedTask{note: "default/plain", place: inside.Place{Nonce: "~plain", Most: -1}, locker: l, key: key}
			try := func(o orderedTask) func() error {
				return func() error {
					le, err := o.lock().lockOrPark(t.Context(), closedYield)
					if err == nil {
						le.endOrder(inside.OutcomeDone)
						err = le.Unlock(t.Context())
					}
					return err
				}
			}
			_ = denied(try(plain)) // the first use of the key
			var tasks []orderedTask
			for _, note := range []string{"default/a", "default/b", "default/c"} {
				_ = denied(func() error {
					_, _, _, err := l.byOrder(key).stamp(t.Context(), note, "n"+strings.ReplaceAll(note, "/", "-"), stampDeadline, 0)
					return err
				})
				tasks = append(tasks, stampTask(t, l, key, note))
			}
			for _, late := range []int{2, 1} {
				_ = denied(try(tasks[late]))
			}
			for i, o := range tasks {
				_ = denied(func() error {
					le, err := o.lock().TryLock(t.Context())
					if err == nil {
						le.endOrder(inside.OutcomeStays)
						err = le.Unlock(t.Context())
					}
					return err
				})
				var le *Lease
				redistest.Eventually(t, soon, func() (ok bool) {
					var err error
					le, err = o.lock().TryLock(t.Context())
					if err == nil {
						return true
					}
					if busy := new(BusyError); errors.As(err, &busy) && busy.Note == plain.note { // its place is before all others
						runs, err := plain.lock().TryLock(t.Context())
						if err == nil {
							plain.end(t, runs, inside.OutcomeDone)
						}
					}
					return false
				}, "%s is the next one; %s", o.note, dump(o.lock()))
				le.endOrder(inside.OutcomeDone)
				_ = denied(func() error { return le.Unlock(t.Context()) })
				redistest.Eventually(t, soon, func() bool { // the release is sent again in the background
					h := headOf(t, l, key)
					return i == len(tasks)-1 && h.State == "" || h.State != "" && h.Note != o.note
				}, "%s has left; %s", o.note, dump(o.lock()))
			}
		})
	}
}

// twice is a hook that sends each script twice, as go-redis does when a reply is lost. The second reply counts.
type twice struct{}

func (twice) DialHook(next redis.DialHook) redis.DialHook { return next }

func (twice) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") && err == nil {
			return next(ctx, cmd)
		}
		return err
	}
}

func (twice) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Every script may be executed twice.
func TestOrder_eachScriptTwice(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		rdb.AddHook(twice{})
		l := newLocker(t, rdb)
		key := l.Mutex(t.Name()).Key()
		end := func(o orderedTask, le *Lease, outcome inside.Outcome) {
			t.Helper()
			le.endOrder(outcome)
			if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, ErrNotHeld) {
				t.Fatalf("%s: %v", o.note, err)
			}
		}
		a, b, c := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b"), stampTask(t, l, key, "default/c")
		if h := headOf(t, l, key); h.Queued != 3 {
			t.Fatalf("%+v, want three", h)
		}
		c.mustPark(t)
		b.mustPark(t)
		end(a, a.mustRun(t), inside.OutcomeStays)
		b.mustPark(t)
		a.place.Retried = 1
		end(a, a.mustRun(t), inside.OutcomeDone)
		if _, err := a.lock().TryLock(t.Context()); !theInsider.IsOrderDone(err) {
			t.Fatalf("a redelivery: %v", err)
		}
		// b is killed in its only run.
		b.place.Most = 0
		end(b, b.mustRun(t), inside.OutcomeStays)
		b.place.Retried = 1
		if _, err := b.lock().TryLock(t.Context()); !theInsider.IsOrderSpent(err) {
			t.Fatalf("%v, want that its attempts are spent", err)
		}
		if h := headOf(t, l, key); h.Note != b.note || h.State != "h" {
			t.Fatalf("%+v, want b held", h)
		}
		end(b, b.mustRun(t), inside.OutcomeLeft) // an operator's run
		item := inside.OrderItem{State: "i", Nonce: b.place.Nonce, Ticket: b.place.Ticket, Note: b.note}
		redistest.Must(t, l.byOrder(key).actOrder(t.Context(), inside.ActConfirm, item, 0))
		if h := headOf(t, l, key); h.Note != c.note || h.Queued != 1 {
			t.Fatalf("%+v, want c: a late confirm brings nothing back", h)
		}
		if _, err := l.byOrder(key).skipHead(t.Context(), c.note, 0); err != nil {
			t.Fatal(err)
		}
		item = inside.OrderItem{State: "i", Nonce: c.place.Nonce, Ticket: c.place.Ticket, Note: c.note}
		redistest.Must(t, l.byOrder(key).actOrder(t.Context(), inside.ActConfirm, item, 0))
		if h := headOf(t, l, key); h.State != "" {
			t.Fatalf("%+v, want nothing: c was skipped", h)
		}
	})
}

// A skip that is sent again, by go-redis or by a second click, takes out no other task: not the next one, and not a
// later task that has got the same ID. It is answered as the first. With an ID only, it means the head of now.
func TestOrder_skipTwiceOfOneID(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		const note = "default/same"
		for name, nonces := range map[string][2]string{"stamped": {"first", "second"}, "plain": {"~same", "~same"}} {
			key := l.Mutex(t.Name() + name).Key()
			m := l.byOrder(key)
			arrive := func(nonce string) int64 { // it joins the key's end, and parks unless it is the head
				o := orderedTask{note: note, place: inside.Place{Nonce: nonce, Most: -1}, locker: l, key: key}
				if nonce[0] != '~' {
					ticket, _, _, err := m.stamp(t.Context(), note, nonce, stampDeadline, 0)
					redistest.Must(t, err)
					o.place.Ticket = ticket
				}
				o.end(t, o.mustRun(t), inside.OutcomeStays)
				return headOf(t, l, key).Ticket
			}
			skip := func(ticket int64) (string, error) { return m.skipHead(t.Context(), note, ticket) }
			first := arrive(nonces[0])
			for range 2 {
				if _, err := skip(first); err != nil {
					t.Fatalf("%s: %v; %s", name, err, dump(m))
				}
			}
			second := arrive(nonces[1])
			if _, err := skip(first); err != nil {
				t.Errorf("%s: the skip of the first one, again: %v", name, err)
			}
			if h := headOf(t, l, key); h.Ticket != second || first == second {
				t.Fatalf("%s: %+v, want the second one; %s", name, h, dump(m))
			}
			if head, err := skip(first - 1); !errors.Is(err, errNotHead) || head != note {
				t.Errorf("%s: a skip of a task that nobody has seen: %q, %v", name, head, err)
			}
			if _, err := skip(0); err != nil {
				t.Errorf("%s: a skip by the ID: %v", name, err)
			}
			if h := headOf(t, l, key); h.State != "" {
				t.Errorf("%s: %+v is left", name, h)
			}
		}
	})
}

// An ask that arrives minutes late takes back nothing that was said since.
func TestOrder_lateAsk(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a := stampTask(t, l, key, "default/a")
		a.place.Most = 1
		first := a
		a.place.Retried = 1
		a.end(t, a.mustRun(t), inside.OutcomeStays) // its second and last run is killed
		le := first.mustRun(t)                      // an ask of the first attempt
		first.end(t, le, inside.OutcomeStays)
		a.place.Retried = 2
		if _, err := a.lock().TryLock(t.Context()); !theInsider.IsOrderSpent(err) {
			t.Fatalf("%v, want that its attempts are spent; %s", err, dump(a.lock()))
		}
	})
}

// A key is not full of tasks that an operator has deleted.
func TestOrder_fullOfDeletedTasks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		a := stampTaskFor(t, l, key, "default/a", time.Millisecond)
		a.end(t, a.mustRun(t), inside.OutcomeStays)
		redistest.Eventually(t, soon, func() bool { // a look at it is due after 5 s
			_, _, look, err := l.byOrder(key).stamp(t.Context(), "default/b", "nb", stampDeadline, 1)
			redistest.Must(t, err)
			return len(look) == 1 && look[0].Nonce == a.place.Nonce
		}, "a is to be looked for; %s", dump(a.lock()))
	})
}

// A head that comes back in an hour is looked for once a minute: an operator may have deleted it.
func TestOrder_looksForALateHeadEachMinute(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	now := time.Now()
	s.SetTime(t, now)
	l := newLocker(t, s.Client(t))
	key := l.Mutex(t.Name()).Key()
	a := stampTask(t, l, key, "default/a")
	a.end(t, a.mustRun(t), inside.OutcomeStays)
	due := func() []inside.OrderItem {
		_, _, look, err := l.byOrder(key).stamp(t.Context(), "default/b", "nb", stampDeadline, 1)
		if err != nil {
			t.Fatal(err)
		}
		return look
	}
	s.SetTime(t, now.Add(6*time.Second))
	look := due()
	if len(look) != 1 {
		t.Fatalf("%v; %s", look, dump(a.lock()))
	}
	if err := l.byOrder(key).actOrder(t.Context(), inside.ActPresent, look[0], time.Hour); err != nil {
		t.Fatal(err)
	}
	for minute := range 3 {
		looks := 0
		for second := range 60 {
			s.SetTime(t, now.Add(time.Duration(7+minute*60+second)*time.Second))
			looks += len(due())
		}
		if looks != 5 { // processes check once in four seconds
			t.Errorf("it is due in %d seconds of minute %d, want 5", looks, minute)
		}
	}
}

// A task that was refused for its ID does not run if a copy of its command lands later.
func TestOrder_refusedAndLandsLate(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		key := l.Mutex(t.Name()).Key()
		refused, next := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b")
		item := inside.OrderItem{Nonce: refused.place.Nonce, Ticket: refused.place.Ticket, Note: refused.note}
		for range 2 { // it may be sent twice
			redistest.Must(t, l.byOrder(key).actOrder(t.Context(), inside.ActRefused, item, 0))
		}
		if _, err := refused.lock().TryLock(t.Context()); !theInsider.IsOrderDone(err) {
			t.Errorf("%v, want that it does not run", err)
		}
		next.end(t, next.mustRun(t), inside.OutcomeDone)
	})
}
