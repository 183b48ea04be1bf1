package automutex

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// ErrBusy is what every [*BusyError] wraps: [lock.ErrBusy].
var ErrBusy = lock.ErrBusy

// ErrClosed is in the last error of a task that came after [Guard.Close].
var ErrClosed = lock.ErrClosed

// ErrReplaced is the cause with which a handler's context ends if a newer task wants its lock (policy [Replace]).
var ErrReplaced = errors.New("automutex: replaced by a newer task")

// Why a task did not get a lock, as [BusyError].Reason says it.
const (
	ReasonHeld     = lock.ReasonHeld       // others hold the key, or are in line before the task
	ReasonRate     = lock.ReasonRate       // handlers of the key have started as often as its [Rate] allows
	ReasonClosed   = lock.ReasonClosed     // a handler has called [CloseGate]
	ReasonCooldown = lock.ReasonCooldown   // the [Rule].Cooldown of the last run is not over
	ReasonBehind   = engine.ReasonBehind   // an earlier task of an ordered key comes first, and does not run now
	ReasonArchived = engine.ReasonArchived // that task is archived and holds its key, see [HoldKey]
	ReasonPaused   = lock.ReasonPaused     // an operator has paused the key, see [Guard.Controls]
	ReasonLate     = "late"                // the task did not start in time; the key may be free
)

// BusyError says why a task did not get a lock. It is the argument of the function given to [AfterFailure], a field of
// [Event], and the last error of the task in asynq.
//
// It unwraps to [ErrBusy], is immutable and may be shared.
type BusyError struct {
	Rule       string // the name of the rule
	Key        string // the lock's key, as [Guard.Keys] returns it
	Reason     string // [ReasonHeld] or one of the other constants
	Holder     string // the owner label of one holder, see Config.Owner; empty if nobody holds the key
	HolderTask string // "queue/task-id" of that holder; empty if it is no task
	SameTask   bool   // the holder is an earlier attempt of this task that is still running
	// ExpiresIn is the time until the reason ends: the earliest deadline of a holder, a hint, since holders renew and
	// release; the opening of the gate; or the end of the pause, 0 if it has none.
	ExpiresIn time.Duration
	Waited    time.Duration // how long this task stood in line before it gave up
	Place     int           // the task's place in line when it gave up: 0 is the head, or not in line
	LateBy    time.Duration // by how much the task is late, for [ReasonLate]
	Pause     *lock.Control // the operator's order, for [ReasonPaused]

	reused bool // HolderTask is an earlier task with the ID of this one
	failed bool // ReasonBehind: the other task failed, and asynq retries it
	parked bool // its place in line is kept
}

// Error is written for an operator.
func (e *BusyError) Error() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	task, holder := printable.Short(e.HolderTask), printable.Short(e.Holder)
	say("automutex: rule %q: ", e.Rule)
	switch {
	case e.parked:
		say("%s place %d in line", blocked.ParkedOn(e.Key), e.Place+1)
	case e.Reason == ReasonLate:
		say("it did not start in time, and is late by %s: key %q", ms(e.LateBy), e.Key)
	default:
		say("key %q is busy", e.Key)
	}
	switch {
	case e.SameTask:
		say(": an earlier attempt of this task (%s) still runs on %s", task, holder)
	case e.reused:
		say(": behind an earlier task with the same ID (%s), which is gone: skip it to go on", task)
	case e.Reason == ReasonArchived:
		say(": behind task %s, which is archived: run it again or skip it to go on", task)
	case e.failed:
		say(": behind task %s, which failed and is retried", task)
	case e.Reason == ReasonBehind:
		say(": behind task %s, which comes first", task)
	case e.HolderTask != "":
		say(": held by task %s on %s", task, holder)
	case e.Holder != "":
		say(": held by %s", holder)
	}
	switch {
	case e.Pause != nil: // Control.String
		say(": %s", e.Pause)
	case engine.GateText(e.Reason) != "": // a closed gate
		say(": %s for %s", engine.GateText(e.Reason), ms(e.ExpiresIn))
	case e.failed && e.ExpiresIn <= engine.OrderLook: // it may be that nobody knows yet when
	case e.failed:
		say(" in %s", e.ExpiresIn.Round(time.Second))
	case e.Reason == ReasonBehind && e.ExpiresIn > 0:
		say(" and is to come back in %s", ms(e.ExpiresIn))
	case e.ExpiresIn > 0:
		say(" until its deadline in %s unless renewed", ms(e.ExpiresIn))
	}
	if e.Waited > 0 {
		say("; waited %s", ms(e.Waited))
	}
	// A holder may have any note, and asynq stores no error that is not UTF-8.
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// Unwrap returns ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// toBusyError turns an *engine.Busy into the Guard's error, and returns others as they are.
func (f *facts) toBusyError(t *target, err error) error {
	var busy *engine.Busy
	if !errors.As(err, &busy) {
		return err
	}
	who := busy.Who()
	e := &BusyError{
		Rule: t.rule.Name, Key: t.key, Holder: who.Owner, HolderTask: who.Note,
		Waited: busy.Waited, Place: busy.Place, parked: busy.Parked,
	}
	e.Reason, e.ExpiresIn = busy.Because()
	if e.failed = e.Reason == engine.ReasonFailed; e.failed {
		e.Reason = ReasonBehind
	}
	same := f.note != "" && who.Note == f.note && f.outer == nil
	e.reused = same && (e.Reason == ReasonBehind || e.Reason == ReasonArchived)
	e.SameTask = same && !e.reused
	if pause, left := f.guard.pause(busy.Pause); pause != nil {
		e.Reason, e.Pause, e.ExpiresIn = ReasonPaused, pause, left
	}
	return e
}

// ErrFull is what every [*FullError] wraps.
var ErrFull = errors.New("automutex: too many tasks of this key are queued")

// FullError says that [Client.EnqueueContext] did not enqueue a task, since [Rule].MaxQueued tasks of its key are not
// done.
type FullError struct {
	Key    string // the lock's key
	Queued int    // the tasks that are not done
	Max    int    // Rule.MaxQueued
}

// Error says what to do.
func (e *FullError) Error() string {
	return fmt.Sprintf("automutex: key %q is full: %d of its tasks are not done, and MaxQueued is %d; the task is not "+
		"enqueued: try again later", e.Key, e.Queued, e.Max)
}

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }

// EnqueueError says that an ordered task is not enqueued, or may be.
type EnqueueError struct {
	Rule string // the rule with InOrder
	Key  string // the lock's key
	Task string // the task, as "queue/id"
	// Unknown is true if the task may be enqueued; asynq.Inspector.GetTaskInfo tells. To enqueue it again may run it
	// twice.
	Unknown bool
	Err     error // the cause
}

// Error says which.
func (e *EnqueueError) Error() string {
	state := "is not enqueued"
	if e.Unknown {
		state = "may be enqueued or not"
	}
	return fmt.Sprintf("automutex: rule %q: task %s of key %q %s: %v", e.Rule, e.Task, e.Key, state, e.Err)
}

// Unwrap returns Err.
func (e *EnqueueError) Unwrap() error { return e.Err }

// KeyError says that no key can be made from a task. The task is archived with this text as its last error, except
// under [Allow]. A KeyFunc, [Rule].LimitOf, RateOf and Cost, and [Config].Decode may return a KeyError of their own.
type KeyError struct {
	Task  string // the type of the task
	Field string // the path in the payload, or the header, that is wrong; empty if the error concerns no single field
	Err   error  // the cause, or nil; Error shows its text only if a function of yours has set it

	source string // what Field is: "header", else a field
	reason string
	advice string
	quiet  bool // the text of Err may have payload values in it, and is not shown
	absent bool // the field is missing, null or empty
}

// Error contains no payload value, unless a KeyFunc of yours puts one into its error.
func (e *KeyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "automutex: no key for task %q", e.Task)
	if e.Field != "" {
		fmt.Fprintf(&b, ": %s %q", cmp.Or(e.source, "field"), e.Field)
	}
	switch {
	case e.reason == "":
	case e.Field == "" || strings.HasPrefix(e.reason, "the "):
		b.WriteString(": " + e.reason)
	default:
		b.WriteString(" " + e.reason)
	}
	if e.Err != nil && !e.quiet {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.advice != "" {
		b.WriteString("; " + e.advice)
	}
	return b.String()
}

// Unwrap returns Err. The error of a JSON decoder may quote the payload.
func (e *KeyError) Unwrap() error { return e.Err }

// temporaryKeyError says that a function of a rule, or Config.Decode, returned an error that is no *KeyError: KeyLater
// in decide. Its text is UTF-8, or asynq could not store it.
type temporaryKeyError struct {
	rule     string // its name
	function string // such as "the rule's LimitOf"
	err      error
}

func (e *temporaryKeyError) Error() string {
	return strings.ToValidUTF8(fmt.Sprintf("automutex: rule %q: %s failed: %v", e.rule, e.function, e.err), "\uFFFD")
}

func (e *temporaryKeyError) Unwrap() error { return e.err }

// failed is the error of the rule when a function of the user failed: a *KeyError and NoLock stay what they are.
func (c *compiledRule) failed(function string, err error) error {
	var never *KeyError
	if err == nil || errors.As(err, &never) || isNoLock(err) {
		return err
	}
	return &temporaryKeyError{rule: c.Name, function: function, err: err}
}

// FieldError is one mistake in a [Config]. The error of [New], and that of unique.New, joins one for each mistake;
// errors.As finds the first.
type FieldError struct {
	Rule     int    // the index of the rule in Config.Rules, or -1 for a field of Config itself
	RuleName string // the rule's Name, or the one that New gives it; empty for Config itself
	Field    string // the name of the Go field, such as "OnHeaders"
	Element  int    // the index in Field if Field is a list, or else -1
	Err      error  // what is wrong and what to do, without the rule and the field
}

// Error names the rule and the field.
func (e *FieldError) Error() string {
	if e.Rule < 0 {
		return fmt.Sprintf("Config.%s: %v", e.Field, e.Err)
	}
	element := ""
	if e.Element >= 0 {
		element = fmt.Sprintf("[%d]", e.Element)
	}
	return fmt.Sprintf("%s: %s%s: %v", ruleAt(e.RuleName, e.Rule), e.Field, element, e.Err)
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

func ruleAt(name string, index int) string { return fmt.Sprintf("rule %q (Rules[%d])", name, index) }

// fieldErrors collects the mistakes in a Config.
type fieldErrors struct {
	rule *compiledRule // whose fields they are now; nil: those of Config itself
	all  []error
}

func (f *fieldErrors) addf(field, format string, args ...any) {
	f.add(field, -1, fmt.Errorf(format, args...))
}

// add adds a mistake in an element of a field; -1: in the field itself. A nil err is no mistake.
func (f *fieldErrors) add(field string, element int, err error) {
	if err == nil {
		return
	}
	e := &FieldError{Rule: -1, Field: field, Element: element, Err: err}
	if f.rule != nil {
		e.Rule, e.RuleName = f.rule.index, f.rule.Name
	}
	f.all = append(f.all, fmt.Errorf("automutex: %w", e))
}

// configError is one mistake in a field of Config.
func configError(field, format string, args ...any) error {
	var mistakes fieldErrors
	mistakes.addf(field, format, args...)
	return mistakes.all[0]
}
