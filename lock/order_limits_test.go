package lock

import (
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// What cannot be avoided, by its number in docs/guarantees.md. Each is as bad as it says there, and no worse.
func TestOrder_unavoidable(t *testing.T) {
	t.Parallel()
	look := func(t *testing.T, o orderedTask, act inside.OrderAct) { // at the task as it is now
		t.Helper()
		item := inside.OrderItem{Nonce: o.place.Nonce, Ticket: o.place.Ticket, Note: o.note}
		for name := range stored(t, o.lock()) {
			if strings.HasPrefix(name, "o:"+o.place.Nonce+"|") {
				f := strings.Split(name, "|")
				item.State, item.Seen = f[1], f[2]
			}
		}
		redistest.Must(t, o.locker.byOrder(o.key).actOrder(t.Context(), act, item, 0))
	}
	for name, shows := range map[string]func(t *testing.T, s *redistest.Server, a, b orderedTask){
		"1 a redelivery after the mark has ended runs": func(t *testing.T, s *redistest.Server, a, b orderedTask) {
			a.end(t, a.mustRun(t), inside.OutcomeDone)
			b.end(t, b.mustRun(t), inside.OutcomeDone)
			s.Client(t).ZRem(t.Context(), a.key, "n:"+a.place.Nonce) // as five minutes later
			a.end(t, a.mustRun(t), inside.OutcomeDone)
		},
		"3 archived and deleted before a look counts as deleted": func(t *testing.T, _ *redistest.Server, a, b orderedTask) {
			a.end(t, a.mustRun(t), inside.OutcomeStays)
			look(t, a, inside.ActGone)
			b.end(t, b.mustRun(t), inside.OutcomeDone)
		},
		"4 a retry that comes early runs": func(t *testing.T, _ *redistest.Server, a, b orderedTask) {
			a.end(t, a.mustRun(t), inside.OutcomeStays)
			b.mustPark(t)
			a.end(t, a.mustRun(t), inside.OutcomeDone)
		},
		"5 an Enqueue that failed and lands late runs next": func(t *testing.T, _ *redistest.Server, a, b orderedTask) {
			c := stampTask(t, a.locker, a.key, "default/c")
			ghost := stampTaskFor(t, a.locker, a.key, "default/ghost", time.Millisecond)
			time.Sleep(5 * time.Millisecond) // Redis' clock passes the deadline
			look(t, ghost, inside.ActGone)
			d := stampTask(t, a.locker, a.key, "default/d")
			for _, o := range []orderedTask{a, b, c} {
				o.end(t, o.mustRun(t), inside.OutcomeDone)
			}
			ghost.end(t, ghost.mustRun(t), inside.OutcomeDone)
			d.end(t, d.mustRun(t), inside.OutcomeDone)
		},
		"6 a task that left runs late": func(t *testing.T, _ *redistest.Server, a, b orderedTask) {
			a.end(t, a.mustRun(t), inside.OutcomeLeft)
			b.end(t, b.mustRun(t), inside.OutcomeDone)
			a.end(t, a.mustRun(t), inside.OutcomeDone)
		},
		"8 a lost lease lets two run": func(t *testing.T, _ *redistest.Server, a, b orderedTask) {
			first := a.mustRun(t)
			if _, err := a.lock().BreakAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			again := a.mustRun(t)
			b.mustPark(t) // but not the next one
			a.end(t, again, inside.OutcomeDone)
			_ = first.Unlock(t.Context()) // it is lost
		},
		"9 a task without a stamp runs again": func(t *testing.T, _ *redistest.Server, a, b orderedTask) {
			plain := orderedTask{note: "default/plain", place: inside.Place{Nonce: "~plain", Most: -1}, locker: a.locker, key: a.key}
			plain.mustPark(t)
			for _, o := range []orderedTask{a, b, plain, plain} {
				o.end(t, o.mustRun(t), inside.OutcomeDone)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				l := newLocker(t, s.Client(t))
				key := l.Mutex(t.Name()).Key()
				shows(t, s, stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b"))
			})
		})
	}
}
