package web

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// gateOpen tells whether somebody who wants the lock would find its gate open.
func gateOpen(t *testing.T, m *lock.Lock) bool {
	t.Helper()
	info, err := inner.Inspect(context.Background(), m)
	redistest.Must(t, err)
	return info.Gate.OpensIn == 0
}

// A break of all ends a hold or a cooldown as well, whether or not somebody holds the lock,
// and says so before; one of a single holder does not, and none gives back a rate.
func TestDo_breakGate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, _ := operator(t, s)
		ask := func(m *lock.Lock) string { return "/locks/do?action=break&key=" + url.QueryEscape(m.Key()) }
		free, both, rated := v.locker.Mutex("free"), v.locker.Semaphore("both", 2), v.locker.Mutex("rated", lock.Rate(1, time.Hour, 1))
		lease := v.hold(free)
		redistest.Must(t, errors.Join(inner.CloseGate(context.Background(), lease, time.Hour), lease.Unlock(context.Background())))
		asked := v.get(ask(free)).want(200, "and open its gate?", "A hold or a cooldown ends now")
		if gateOpen(t, free) {
			t.Error("asking has opened the gate")
		}
		v.confirm(asked, "").want(200, "Its gate is open.")
		if !gateOpen(t, free) {
			t.Error("the gate stays closed")
		}
		v.refuse(asked).want(409, "break failed: nothing was done")

		lease = v.hold(both)
		redistest.Must(t, v.hold(both).Cooldown(context.Background(), time.Hour))
		v.confirm(v.get(ask(both)+"&token="+url.QueryEscape(lease.Token())).want(200, "Take the lock both from 1 holder?").without("gate open"), "").want(200, "taken from 1 of 1 holder.").without("gate is open")
		if gateOpen(t, both) {
			t.Error("a break of one holder has ended the cooldown")
		}
		redistest.Must(t, errors.Join(v.page.locker.Mutex("both").Delete(context.Background())))
		v.hold(both)
		redistest.Must(t, v.hold(both).Cooldown(context.Background(), time.Hour))
		v.confirm(v.get(ask(both)).want(200, "from 1 holder, and open its gate?"), "").want(200, "taken from 1 of 1 holder. Its gate is open.")
		if !gateOpen(t, both) {
			t.Error("the cooldown goes on")
		}

		redistest.Must(t, v.hold(rated).Unlock(context.Background()))
		v.get(ask(rated)).want(409, "there is nothing to break")
	})
}

// Resuming what is not paused does nothing, and says so; what cannot be read is removed.
func TestDo_resume(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, _ := operator(t, s)
		ask := func() answer { return v.get("/locks/do?action=resume&target=report") }
		v.refuse(ask()).want(409, "resume failed: nothing was done: report is not paused")
		redistest.Must(t, v.locker.Controls().Pause(context.Background(), "report", time.Time{}, ""))
		v.confirm(ask(), "").want(200, "report is not paused any more.")
		redistest.Must(t, s.Client(t).HSet(context.Background(), v.prefix+":{control}", "report", `{"v":9}`).Err())
		v.confirm(ask(), "").want(200, "The entry of report, which could not be read and was not in force, is removed.")
		v.refuse(ask()).want(409, "nothing was done: report is not paused")
	})
}
