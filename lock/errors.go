package lock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
)

// Sentinels for errors.Is.
var (
	// ErrBusy: others hold the lock or are in line before the caller, the lock's gate is closed, or an operator has paused
	// the lock. A [*BusyError] says which.
	ErrBusy = errors.New("lock: busy")
	// ErrNotHeld: the lease has ended already: by a release, by [Lock.Break] or at its deadline.
	ErrNotHeld = engine.ErrNotHeld
	// ErrNotFenced: the lease is of a lock without the option [Fenced].
	ErrNotFenced = engine.ErrNotFenced
	// ErrLost is the cause with which the context of [Lease.Bind] and [Lock.Do] ends if the lease is lost.
	ErrLost = engine.ErrLost
	// ErrClosed: the Locker was closed.
	ErrClosed = engine.ErrClosed
	// ErrBackend: Redis could not be reached, or replied with an error. It is not known whether the lock is free. The
	// error also wraps the cause.
	ErrBackend = redisx.ErrBackend
	// ErrNotReplicated: fewer replicas than [Options].MinReplicas acknowledged the lease in time (a second at most). A
	// lock that was being acquired is released. The error also Is ErrBackend.
	ErrNotReplicated = engine.ErrNotReplicated
)

// Why a lock is busy: values of [BusyError].Reason, as is [ReasonPaused]. All but ReasonHeld close the lock's gate:
// nobody gets the lock before it opens, even if slots are free.
const (
	ReasonHeld     = engine.ReasonHeld     // others hold every slot, or are in line before the caller
	ReasonRate     = engine.ReasonRate     // the lock was taken as often as its [Rate] allows
	ReasonClosed   = engine.ReasonClosed   // a task's handler has called automutex.CloseGate
	ReasonCooldown = engine.ReasonCooldown // the last holder left a cooldown; see [Lease.Cooldown]
)

// BusyError says why a lock was not acquired. It unwraps to [ErrBusy] and, if a context ended the wait, to that
// context's error.
type BusyError struct {
	Name string // the lock's name as given to Mutex or Semaphore
	// [ReasonHeld], say; empty if ctx ended before Redis replied. Package automutex has more, for its ordered keys
	Reason string
	Holder string // the owner label of one holder ([Options].Owner); empty if nobody holds the lock
	Note   string // that holder's note
	// ExpiresIn is the time until the reason ends. With [ReasonHeld] that is the earliest deadline of a holder, or 0 if
	// nobody holds the lock: only a hint, since holders renew and release. With [ReasonPaused] it is the end of the pause,
	// or 0 if the pause has no end. Otherwise it is the opening of the gate.
	ExpiresIn time.Duration
	Waited    time.Duration // how long the caller stood in line
	Place     int           // the number of waiters before the caller, by the last reply of Redis
	Pause     *Control      // the operator's order if Reason is [ReasonPaused], otherwise nil

	cause error
}

// Error names the lock, a holder and the reason, for an operator.
func (e *BusyError) Error() string {
	var b strings.Builder
	is := "is busy"
	if e.Reason == "" && e.cause != nil {
		is = "was not taken" // ctx ended before Redis replied
	}
	fmt.Fprintf(&b, "lock: %q %s", printable.Short(e.Name), is)
	if e.Holder != "" {
		fmt.Fprintf(&b, ", held by %s", printable.Short(e.Holder))
	}
	switch {
	case e.Pause != nil: // control.Control.String
		fmt.Fprintf(&b, ": %s", e.Pause)
	case engine.GateText(e.Reason) != "":
		fmt.Fprintf(&b, ": %s for %s", engine.GateText(e.Reason), e.ExpiresIn.Round(time.Millisecond))
	case e.ExpiresIn > 0:
		fmt.Fprintf(&b, " until its deadline in %s unless renewed", e.ExpiresIn.Round(time.Millisecond))
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, "; gave up after %s in line", e.Waited.Round(time.Millisecond))
	}
	if e.cause != nil {
		fmt.Fprintf(&b, ": %v", e.cause)
	}
	return b.String()
}

// Unwrap returns ErrBusy and what ended the wait.
func (e *BusyError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrBusy}
	}
	return []error{ErrBusy, e.cause}
}

// busyOr is err as callers see it: a *BusyError if the lock is busy.
func (m *Lock) busyOr(err error) error {
	b := (*engine.Busy)(nil)
	if !errors.As(err, &b) {
		return err
	}
	who := b.Who()
	e := &BusyError{Name: m.name(), Holder: who.Owner, Note: who.Note, Waited: b.Waited, Place: b.Place, cause: b.Cause}
	e.Reason, e.ExpiresIn = b.Because()
	if left, paused := m.engine().Controls().Lasts(b.Pause); paused && b.Pause != control.Unread {
		c := newControl(b.Pause.Control)
		e.Reason, e.Pause, e.ExpiresIn = ReasonPaused, &c, left
	}
	return e
}
