package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/printable"
)

// Sentinels for errors.Is.
var (
	// ErrBusy: the lock is held by others, or others are in line before us.
	ErrBusy = errors.New("lock: busy")
	// ErrNotHeld: the lease was no longer ours when it was to be released or
	// extended: released before, or its deadline had passed.
	ErrNotHeld = errors.New("lock: not held")
	// ErrLost is the cause with which the context of [Lease.Bind] and
	// [Lock.Do] ends when the lease ended before it was released.
	ErrLost = errors.New("lock: lease lost")
	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("lock: locker closed")
	// ErrBackend: Redis could not be asked, or answered with an error; whether
	// the lock is free is not known. The cause is wrapped beside it.
	ErrBackend = errors.New("lock: backend error")
	// ErrNotReplicated: fewer replicas than [Options.MinReplicas] acknowledged the
	// lease in time (a second at most); one that was to be acquired was given
	// back. It Is ErrBackend.
	ErrNotReplicated = fmt.Errorf("%w: not on enough replicas", ErrBackend)
)

// What a busy lock waits for, as [BusyError].Reason says it.
const (
	// ReasonHeld: others hold every slot, or are in line before.
	ReasonHeld = "held by"
	// ReasonRate: the lock has had as many starts as its [Rate] allows.
	ReasonRate = "rate"
	// ReasonHold: a handler put the key on hold for a time.
	ReasonHold = "hold"
	// ReasonCooldown: the last holder left a cooldown; see [Lease.Cooldown].
	ReasonCooldown = "cooldown"
)

// BusyError says who stands in the way. It unwraps to [ErrBusy] and, where a
// context ended the wait, to that context's error.
type BusyError struct {
	// Name is the lock's name as given to Mutex or Semaphore.
	Name string
	// Reason says what the lock waits for: [ReasonHeld], or, while its gate is closed,
	// [ReasonRate], [ReasonHold] or [ReasonCooldown].
	Reason string
	// Holder is the owner label of one holder ([Options].Owner); empty when
	// nobody holds the lock at the moment (the line goes first, or the gate is closed).
	Holder string
	// Note is that holder's note.
	Note string
	// ExpiresIn is the time until the gate opens where Reason is not [ReasonHeld], else
	// that to the first deadline among the holders, 0 when there is none. Holders renew
	// and release, so this is a hint.
	ExpiresIn time.Duration
	// Waited is how long the caller stood in line.
	Waited time.Duration
	// Place is the number of waiters before the caller when it was last told.
	Place int
	// Pause is the order of an operator where Reason is [ReasonPaused]; ExpiresIn is the
	// time to its end then, 0 when it lasts until resumed.
	Pause *Control
	// Parked is true when the lock's note keeps a place in line without the
	// caller; see insider.LockOrPark.
	Parked bool
	// TakenFor and InLine are known when the call parked, and 0 otherwise: how long
	// ago the lock was last taken, by Redis' clock (0 while it is paused), and how long the note has kept its
	// place in line. A holder that has worked for a minute is not done in a second.
	TakenFor, InLine time.Duration

	cause error
}

// Error implements error.
func (e *BusyError) Error() string {
	var b strings.Builder
	is := "is busy"
	if e.Reason == "" && e.cause != nil {
		is = "was not taken" // Redis did not say that it is busy
	}
	fmt.Fprintf(&b, "lock: %q %s", printable.Short(e.Name), is)
	if e.Holder != "" {
		fmt.Fprintf(&b, ", held by %s", printable.Short(e.Holder))
	}
	switch {
	case e.Pause != nil:
		fmt.Fprintf(&b, ": %s", e.Pause.text())
	case gateTexts[e.Reason] != "":
		fmt.Fprintf(&b, ": %s for %s", gateTexts[e.Reason], e.ExpiresIn.Round(time.Millisecond))
	case e.ExpiresIn > 0:
		fmt.Fprintf(&b, " until its deadline in %s unless renewed", e.ExpiresIn.Round(time.Millisecond))
	}
	if e.Parked {
		fmt.Fprintf(&b, "; parked at place %d", e.Place)
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, "; gave up after %s in line", e.Waited.Round(time.Millisecond))
	}
	if e.cause != nil {
		fmt.Fprintf(&b, ": %v", e.cause)
	}
	return b.String()
}

// gateTexts says for each reason why nobody gets the lock.
var gateTexts = map[string]string{
	ReasonRate:     "its rate allows no start",
	ReasonHold:     "on hold",
	ReasonCooldown: "cooling down",
}

// Unwrap gives ErrBusy and what ended the wait.
func (e *BusyError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrBusy}
	}
	return []error{ErrBusy, e.cause}
}

// backendError wraps what Redis or the client answered.
func backendError(op, key string, err error) error {
	return fmt.Errorf("%w: %s %q: %w", ErrBackend, op, key, err)
}

// transient reports whether asking again may help: the network, or a server that
// is loading, failing over, moving slots or busy. Anything else that Redis
// says (a missing permission, a wrong type) will be said again.
func transient(err error) bool {
	var said redis.Error
	if !errors.As(err, &said) {
		return !errors.Is(err, redis.ErrClosed)
	}
	return slices.ContainsFunc([]string{
		"LOADING", "READONLY", "TRYAGAIN", "BUSY", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN",
		"NOREPLICAS", "OOM", "MISCONF", "max number of clients",
	}, func(code string) bool { return exchange.HasCode(said, code) }) ||
		// A script, in a slot that moves. Each version of Redis begins this text in another way.
		strings.Contains(said.Error(), "attempted to access a non local key in a cluster node")
}

// timedOut reports whether a read gave up for want of data.
func timedOut(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout() && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled)
}
