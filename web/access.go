package web

import (
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Access is what a request may do.
type Access int

const (
	// AccessNone refuses the request with 403.
	AccessNone Access = iota
	// AccessRead shows everything and changes no lock, claim or task. It may have the
	// doctor look, who tries the rights on keys of his own.
	AccessRead
	// AccessOperate shows everything and offers the actions.
	AccessOperate
)

// Action is what an operator did on the page.
type Action struct {
	// At is when it ended, by the clock of the page's process.
	At time.Time
	// Do is the kind of the action: "break", "delete", "sweep", "drop", "pause",
	// "resume", "limit" or "skip".
	Do string
	// Target is the Redis key of the lock or claim, or the target of a control; empty
	// for a sweep.
	Target string
	// Tokens are the holders that a break or a delete was for.
	Tokens []string
	// By is what [Options].User says of the request.
	By string
	// Why is what the operator wrote. It is not checked.
	Why string
	// Result says in a sentence what changed; empty when Err is set.
	Result string
	// Err is why the action failed. What was done until then stays done.
	Err error
	// Request is the request that asked for it. Do not keep it.
	Request *http.Request
}

// actionLog keeps the last actions of this process, oldest first.
type actionLog struct {
	mu   sync.Mutex // guards the rest; nobody does I/O under it
	kept []keptAction
}

type keptAction struct {
	id string
	Action
}

// maxActions bounds actionLog.
const maxActions = 500

// add keeps an action and gives its ID. The ID is random: nobody can guess those of others,
// and no other process of the page has the same.
func (l *actionLog) add(a Action) (id string) {
	id = rand.Text()
	l.mu.Lock()
	defer l.mu.Unlock()
	a.Request = nil
	l.kept = append(l.kept, keptAction{id, a})
	if len(l.kept) > maxActions {
		l.kept = slices.Delete(l.kept, 0, len(l.kept)-maxActions)
	}
	return id
}

// get gives the action with that ID.
func (l *actionLog) get(id string) (Action, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.kept {
		if a.id == id {
			return a.Action, true
		}
	}
	return Action{}, false
}

// about gives the actions whose target is one of those, newest first.
func (l *actionLog) about(targets ...string) (all []Action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range slices.Backward(l.kept) {
		if slices.Contains(targets, a.Target) {
			all = append(all, a.Action)
		}
	}
	return all
}
