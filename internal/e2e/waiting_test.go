package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A wait in line is told of when it begins and when it ends, whatever ends it.
func TestWaiting_events(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, o := range map[string]struct {
			rule automutex.Rule
			end  func(r *rig, free func())
			then []automutex.EventKind
		}{
			"granted": {automutex.Rule{Wait: time.Minute, Busy: automutex.Retry}, func(_ *rig, free func()) { free() }, []automutex.EventKind{automutex.EventAcquired, automutex.EventReleased}},
			"in vain": {automutex.Rule{Wait: 900 * time.Millisecond, Busy: automutex.Retry}, func(*rig, func()) {}, []automutex.EventKind{automutex.EventBusy, automutex.EventRetried}},
			"closed": {automutex.Rule{Wait: time.Minute, Busy: automutex.Retry}, func(r *rig, _ func()) {
				if err := r.guard.Close(context.Background()); err != nil {
					r.t.Error(err)
				}
			}, []automutex.EventKind{automutex.EventRetried}},
			"the task's context ends": {automutex.Rule{Wait: time.Minute, Busy: automutex.Retry}, func(r *rig, _ func()) {
				id := r.awaitWaiting().TaskID
				// A server that has only begun may not listen for it yet.
				redistest.Eventually(r.t, patience, func() bool {
					return r.inspector.CancelProcessing(id) == nil && len(r.seen.list(automutex.EventWaited)) > 0
				}, "the wait of %s ends with its context", id)
			}, nil},
			"the last worker is wanted": {automutex.Rule{Busy: automutex.Park}, func(r *rig, _ func()) {
				r.enqueue("another", nil)
				r.stage.next(r.t)
			}, []automutex.EventKind{automutex.EventBusy, automutex.EventParked}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, free := busyRig(t, s, o.rule, setup{workers: 2})
				id := r.enqueue("work", one)
				began := r.awaitWaiting()
				if want := (automutex.Event{
					Kind: automutex.EventWaiting, Rule: "work", Key: r.lockOf("work", "1").Key(), Task: "work", Queue: r.queue, TaskID: id,
				}); began != want {
					t.Errorf("got  %+v\nwant %+v", began, want)
				}
				o.end(r, free)
				ended := r.awaitEvent(automutex.EventWaited, id)
				if ended.Waited <= 0 || o.rule.Wait < time.Second && ended.Waited < o.rule.Wait/2 {
					t.Errorf("waited %s of %s", ended.Waited, o.rule.Wait)
				}
				if began.Kind, began.Waited = automutex.EventWaited, ended.Waited; ended != began {
					t.Errorf("got  %+v\nwant %+v", ended, began)
				}
				if name == "granted" {
					r.stage.next(t).returns(nil)
				}
				want := append([]automutex.EventKind{automutex.EventWaiting, automutex.EventWaited}, o.then...)
				var kinds []automutex.EventKind
				redistest.Eventually(t, patience, func() bool {
					kinds = r.seen.kindsOf(id)
					return len(kinds) >= len(want)
				}, "as many events as %v", want)
				r.stop()
				if kinds = r.seen.kindsOf(id); !slices.Equal(kinds, want) {
					t.Errorf("events %v, want %v", kinds, want)
				}
			})
		}
	})
}

func (r *rig) awaitWaiting() automutex.Event {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() bool { return len(r.seen.list(automutex.EventWaiting)) > 0 }, "a task in line")
	return r.seen.list(automutex.EventWaiting)[0]
}
