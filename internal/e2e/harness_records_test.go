package e2e

import (
	"context"
	"slices"
	"sync"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// events collects what a guard observes.
type events struct {
	mu   sync.Mutex
	seen []automutex.Event
}

func (e *events) observe(_ context.Context, event automutex.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, event)
}

// list gives the events of these kinds so far, of all kinds when there is none.
func (e *events) list(kinds ...automutex.EventKind) []automutex.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []automutex.Event
	for _, event := range e.seen {
		if len(kinds) == 0 || slices.Contains(kinds, event.Kind) {
			found = append(found, event)
		}
	}
	return found
}

// kindsOf gives the kinds of the events of one task, in order.
func (e *events) kindsOf(id string) (kinds []automutex.EventKind) {
	for _, event := range e.list() {
		if event.TaskID == id {
			kinds = append(kinds, event.Kind)
		}
	}
	return kinds
}

// awaitEvent waits for the first event of a kind of one task.
func (r *rig) awaitEvent(kind automutex.EventKind, id string) (found automutex.Event) {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() bool {
		for _, event := range r.seen.list(kind) {
			if event.TaskID == id {
				found = event
				return true
			}
		}
		return false
	}, "event %q of task %s", kind, id)
	return found
}
