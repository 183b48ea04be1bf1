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
		asked := v.get(ask(free)).want(200, "Open the gate of free?", "The gate opens now").without("Nobody gets it until")
		if gateOpen(t, free) {
			t.Error("asking has opened the gate")
		}
		v.confirm(asked, "").want(200, "Its gate is open.")
		if !gateOpen(t, free) {
			t.Error("the gate stays closed")
		}
		v.confirm(asked, "").want(200, "break failed: nothing was done: its gate is open already")

		lease = v.hold(both)
		redistest.Must(t, v.hold(both).Cooldown(context.Background(), time.Hour))
		v.confirm(v.get(ask(both)+"&token="+url.QueryEscape(lease.Token())).want(200, "Take the lock both from 1 holder?", "Nobody gets it until"), "").want(200, "taken from 1 of 1 holder.").without("gate is open")
		if gateOpen(t, both) {
			t.Error("a break of one holder has ended the cooldown")
		}
		redistest.Must(t, errors.Join(v.page.locker.Mutex("both").Delete(context.Background())))
		v.hold(both)
		redistest.Must(t, v.hold(both).Cooldown(context.Background(), time.Hour))
		v.confirm(v.get(ask(both)).want(200, "from 1 holder, and end its cooldown?"), "").want(200, "taken from 1 of 1 holder. Its gate is open.")
		if !gateOpen(t, both) {
			t.Error("the cooldown goes on")
		}

		redistest.Must(t, v.hold(rated).Unlock(context.Background()))
		v.get(ask(rated)).want(409, "Its rate is used up, which a break leaves as it is.")
	})
}

// A delete is for the holders that were shown: it leaves alone who came meanwhile, and says
// so. A lock with a closed gate alone can be deleted; one that is not there is not said to be.
func TestDo_deleteWhatWasShown(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, seen := operator(t, s)
		m := v.locker.Mutex("a")
		ask := "/locks/do?action=delete&key=" + url.QueryEscape(m.Key())
		v.get(ask).want(409, "Nobody holds")
		first := v.hold(m)
		asked := v.get(ask).want(200, "Delete the lock a with its line?", "When somebody else holds the lock by then")
		redistest.Must(t, first.Unlock(context.Background()))
		v.confirm(asked, "").want(200, "delete failed: nothing was done: the lock is not there any more")
		second := v.hold(m)
		v.confirm(asked, "").want(200, "delete failed: nothing was done: somebody else holds the lock now")
		for _, tokens := range [][]string{nil, {"bogus"}, {first.Token()}} {
			sent := v.post("/locks/do", url.Values{"action": {"delete"}, "key": {m.Key()}, "token": tokens}).want(303)
			v.get(sent.header.Get("Location")).want(200, "somebody else holds the lock now")
		}
		if err := second.Extend(context.Background(), lock.DefaultTTL); err != nil {
			t.Errorf("who came meanwhile lost the lock: %v", err)
		}
		if seen.last(t).Err == nil {
			t.Error("Audit is not called for an action that found nothing to do")
		}
		v.confirm(v.get(ask), "").want(200, "The lock and its line were deleted.")
		third := v.hold(m)
		redistest.Must(t, errors.Join(inner.CloseGate(context.Background(), third, time.Hour), third.Unlock(context.Background())))
		v.confirm(v.get(ask).want(200, "When somebody holds the lock by then"), "").want(200, "The lock and its line were deleted.")
		if !gateOpen(t, m) {
			t.Error("the hold is still there")
		}
	})
}

// Resuming what is not paused does nothing, and says so; what cannot be read is removed.
func TestDo_resume(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, _ := operator(t, s)
		resume := func() answer {
			return v.confirm(v.get("/locks/do?action=resume&target=report"), "")
		}
		resume().want(200, "resume failed: nothing was done: report is not paused").without("not paused any more")
		redistest.Must(t, v.locker.Controls().Pause(context.Background(), "report", time.Time{}, ""))
		resume().want(200, "report is not paused any more.")
		redistest.Must(t, s.Client(t).HSet(context.Background(), v.prefix+":{control}", "report", `{"v":9}`).Err())
		resume().want(200, "The entry of report, which could not be read and was not in force, is removed.")
		resume().want(200, "nothing was done: report is not paused")
	})
}
