package unique

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
)

// Config is what [New] makes a [Client] from. New reads it once: do not change it, or the slices in it, afterwards.
type Config struct {
	// Prefix starts every Redis key. It must be the same as in automutex.Config of the workers' Guard, and has the same
	// bounds. Empty means "automutex".
	Prefix string

	// HashKeys is the secret that keeps payload values out of keys, and here also out of the IDs of tasks. It must be the
	// same as in automutex.Config of the workers' Guard. Empty means that these are readable.
	HashKeys string

	// Decode returns the payload that rules read, for tasks whose payload is an envelope. It must be the same as
	// automutex.Config.Decode of the workers' Guard. The goroutine that enqueues a task calls Decode, once, if the task's
	// rule has On or Key; so many goroutines may call it at once. If Decode returns automutex.NoLock, the task is enqueued
	// each time. After any other error nothing is enqueued, and the caller gets the error. nil means that rules read the
	// payload as it is.
	Decode func(*asynq.Task) ([]byte, error)

	// Wait is how long a call waits for another producer that is enqueuing the task which blocks the key. When it is over,
	// the call fails with [ErrEnqueueUnderWay]. 0 means [DefaultWait], 5 seconds. Replace and Postpone wait a second of it
	// at most for a worker that has just got the task, and then return a [DuplicateError]. [NoWait], for callers that must
	// not wait, such as HTTP handlers, means no time at all. The context of a call bounds its wait, too.
	Wait time.Duration

	// Rules declare which tasks are enqueued once. A task that no rule matches is enqueued as by asynq.Client.
	Rules []Rule
}

// NoWait as [Config].Wait means that calls do not wait for other producers.
const NoWait time.Duration = -1

// Rule declares which tasks are enqueued once: the task type, the payload fields that make the key, for how long, and
// what happens to a duplicate. Only Task is required. Task, On, OnHeaders, Key, Optional, Payload and Scope are as in
// automutex.Rule; with equal values both make equal keys.
//
// Without On, OnHeaders and Key there is one key for the whole Scope.
type Rule struct {
	// Task is a task type, or a prefix of task types, as in automutex.Rule. There is one rule for each Task.
	Task string

	// Queue is the queue of the tasks. Empty means "default". IDs in asynq are unique in their queue only, so the same key
	// in two queues would be two keys. Enqueue refuses an option asynq.Queue with another queue. It cannot see such an
	// option in the task itself, and overrides it.
	Queue string

	// On lists the payload fields that the key is made from, as automutex.Fields takes them.
	On []string

	// OnHeaders lists the task headers that the key is made from, after the fields of On.
	OnHeaders []string

	// Key computes the parts of the key when On and OnHeaders are not enough. Set one or the other.
	Key automutex.KeyFunc

	// Optional has a task be enqueued each time, as if the rule did not exist, if a field of On or a header of OnHeaders
	// is missing, null or empty. Without it EnqueueContext returns an [*automutex.KeyError]. It needs On or OnHeaders.
	Optional bool

	// Payload is a value of the Go type that the payload is decoded into. With it, New refuses a path in On for which the
	// type has no JSON field.
	Payload any

	// Scope is the first part of the key. Rules with the same Scope share their keys, and must have the same Queue, Until,
	// Duplicate, MaxPostpone and KeepArchived. Empty means the task's own type.
	Scope string

	// Until is how long a task blocks its key for the next one. The zero value is [UntilDone].
	Until Until

	// Duplicate is what happens to a task whose key is blocked. The zero value is [Reject].
	Duplicate Duplicate

	// MaxPostpone bounds [Postpone]: a task is due at the latest this long after the call that first put it off, so that
	// it runs although the calls go on: from then on it keeps its place in the queue, and calls find it as if it had
	// begun. It may run later: by up to a second, since asynq keeps whole seconds, and by a DelayedTaskCheckInterval. 0
	// means ten times the delay of Postpone. Less than that delay is refused, and so is a MaxPostpone without Postpone.
	MaxPostpone time.Duration

	// KeepArchived means that archived and completed tasks block their key until they are deleted or expire. Duplicates of
	// them are rejected, whatever Duplicate is. false means that they do not block the key: under [UntilDone] such a task
	// is deleted when the next one comes and needs its ID, so New refuses that beside a rule with InOrder and HoldKey.
	// Under [For] they always block the key until the time is over. Under [UntilStart] only a task whose handler never
	// began can block the key, archived or not; one that a Guard archived, for five minutes.
	KeepArchived bool
}

// rule is a Rule with its defaults filled in.
type rule struct {
	Rule
	index int
}

func (r *rule) where() string { return fmt.Sprintf("rule %q (Rules[%d])", r.Task, r.index) }

// hasClaim reports whether the tasks of the rule have a claim. Without one, the ID of the task is made from the key,
// and asynq refuses a second task.
func (r *rule) hasClaim() bool { return r.Until.kind != decide.UntilDone || r.Duplicate.supersedes() }

// kind is what a Guard writes in the claims of the rule's tasks.
func (r *rule) kind() claims.Kind {
	kinds := map[decide.Until][2]claims.Kind{
		decide.UntilDone: {"", claims.DoneNew}, decide.UntilStart: {claims.Start, claims.StartNew},
		decide.ForTime: {claims.Window, claims.WindowNew},
	}
	switch pair := kinds[r.Until.kind]; {
	case !r.Duplicate.supersedes():
		return pair[0]
	case r.Until.kind == decide.UntilDone && r.KeepArchived:
		return claims.KeptNew
	default:
		return pair[1]
	}
}

// fitsOrder returns the mistake in a rule for tasks that an automutex.Client runs in order. holdsKey says that an
// archived task holds the key.
func (r *rule) fitsOrder(holdsKey bool) error {
	switch {
	case r.Duplicate.supersedes():
		return fmt.Errorf("unique: %w", r.mistakef("Duplicate", "is %s, which enqueues tasks that start later, and the "+
			"client's rule for them has InOrder, where no task can; use Reject or Join, or drop InOrder", r.Duplicate))
	case holdsKey && !r.hasClaim() && !r.KeepArchived:
		return fmt.Errorf("unique: %w", r.mistakef("KeepArchived", "is false, so the next Enqueue would delete the "+
			"archived task that the client's rule holds the key for; set KeepArchived, or OnArchive to Continue in that rule"))
	}
	return nil
}

// claimLength is how long a claim of the rule lasts if nobody ends it.
func (r *rule) claimLength() time.Duration {
	switch {
	case r.Until.kind == decide.ForTime:
		return r.Until.window
	case r.KeepArchived:
		return keptLife
	}
	return claimLife
}

// scope is that of the tasks whose type is the rule's Task.
func (r *rule) scope() string { return cmp.Or(r.Scope, r.Task) }

// compile checks the rules and fills in defaults. What makes keys is checked by automutex.NewKeyMaker; see keyRules.
func compile(declared []Rule) (rules []*rule, problems []*automutex.FieldError) {
	tasks, scopes := map[string]*rule{}, map[string]*rule{}
	for i, d := range declared {
		r := &rule{Rule: d, index: i}
		r.On, r.OnHeaders = slices.Clone(d.On), slices.Clone(d.OnHeaders)
		problems = append(problems, r.check()...)
		r.Queue = cmp.Or(r.Queue, "default")
		if r.Duplicate.kind == decide.Postpone {
			r.MaxPostpone = min(cmp.Or(r.MaxPostpone, 10*min(r.Duplicate.delay, inside.MaxTTL/10)), inside.MaxTTL/2)
		}
		rules = append(rules, r)

		if first := tasks[r.Task]; first != nil {
			problems = append(problems, r.mistakef("Task", "is that of Rules[%d] too; a task is enqueued once by one rule: "+
				"leave one out", first.index))
			continue
		}
		tasks[r.Task] = r
		if first := scopes[r.scope()]; first != nil {
			problems = append(problems, differences(first, r)...)
			continue
		}
		scopes[r.scope()] = r
	}
	return rules, problems
}

func (r *rule) mistakef(field, format string, args ...any) *automutex.FieldError {
	return &automutex.FieldError{Rule: r.index, RuleName: r.Task, Field: field, Element: -1,
		Err: fmt.Errorf(format, args...)}
}

// check returns the mistakes in the rule by itself, as declared.
func (r *rule) check() (problems []*automutex.FieldError) {
	wrong := func(field, format string, args ...any) {
		problems = append(problems, r.mistakef(field, format, args...))
	}
	if r.Queue != "" && strings.TrimSpace(r.Queue) == "" {
		wrong("Queue", "%q is blank; name a queue, or leave it empty for %q", r.Queue, "default")
	}
	outside := func(d time.Duration) bool { return d < time.Millisecond || d > inside.MaxTTL }
	const within = "; give it at least 1ms and at most %s; Go counts a bare number in nanoseconds"
	if w := r.Until.window; r.Until.kind == decide.ForTime && outside(w) {
		wrong("Until", "For(%s) is no window"+within, w, inside.MaxTTL)
	}
	if d := r.Duplicate.delay; r.Duplicate.kind == decide.Postpone && outside(d) {
		wrong("Duplicate", "Postpone(%s) is no delay"+within, d, inside.MaxTTL)
	}
	switch {
	case r.MaxPostpone == 0:
	case r.Duplicate.kind != decide.Postpone:
		wrong("MaxPostpone", "%s has no meaning with Duplicate %s; leave it out, or use Postpone", r.MaxPostpone, r.Duplicate)
	case r.MaxPostpone < r.Duplicate.delay:
		wrong("MaxPostpone", "%s is less than the delay of Postpone(%s): raise it, or leave it out for ten times the "+
			"delay%s", r.MaxPostpone, r.Duplicate.delay, printable.MeantUnit(r.MaxPostpone))
	case r.MaxPostpone > inside.MaxTTL/2:
		wrong("MaxPostpone", "%s is too long: at most %s", r.MaxPostpone, inside.MaxTTL/2)
	}
	return problems
}

// differences returns what two rules with one scope do not agree on: the tasks of one would not see those of the other.
func differences(first, r *rule) (problems []*automutex.FieldError) {
	differ := func(field string, a, b any) {
		if a != b {
			problems = append(problems, r.mistakef(field, "is %v, but %s has %v for the same scope %q; one scope has one %s",
				b, first.where(), a, r.scope(), field))
		}
	}
	differ("Queue", first.Queue, r.Queue)
	differ("Until", first.Until, r.Until)
	differ("Duplicate", first.Duplicate, r.Duplicate)
	differ("MaxPostpone", first.MaxPostpone, r.MaxPostpone)
	differ("KeepArchived", first.KeepArchived, r.KeepArchived)
	return problems
}

// keyRules returns the rules as automutex.NewKeyMaker takes them. The keys are made here as a Guard makes them in the
// worker, so that equal rules make equal keys.
func keyRules(rules []*rule) []automutex.Rule {
	guarded := make([]automutex.Rule, len(rules))
	for i, r := range rules {
		guarded[i] = automutex.Rule{Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Key: r.Key, Optional: r.Optional,
			Payload: r.Payload, Scope: r.Scope}
	}
	return guarded
}

// checkOptions refuses the options that a rule decides on.
func (r *rule) checkOptions(opts []asynq.Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("unique: %s: an option is nil; leave it out", r.where())
		}
		switch opt.Type() {
		case asynq.TaskIDOpt:
			return fmt.Errorf("unique: %s: %s: the rule makes the ID; leave the option out", r.where(), opt)
		case asynq.UniqueOpt:
			return fmt.Errorf("unique: %s: %s: the rule says what is a duplicate; leave the option out", r.where(), opt)
		case asynq.QueueOpt:
			if opt.Value() != any(r.Queue) {
				return fmt.Errorf("unique: %s: %s: the tasks of the rule go to the queue %q; leave the option out, or set "+
					"Rule.Queue to %q", r.where(), opt, r.Queue, opt.Value())
			}
		default:
		}
	}
	return nil
}

// Until says how long a task blocks its key for the next one. The zero value is [UntilDone]. Values can be compared
// with ==.
type Until struct {
	kind   decide.Until
	window time.Duration
}

// The values of Until that take no argument. Do not assign to them.
var (
	// UntilDone: from enqueue until the task is done, archived or deleted. So a key has at most one live task. A handler
	// that enqueues its own successor needs UntilStart: under UntilDone the running task blocks its successor. UntilDone
	// is the zero value.
	UntilDone = Until{kind: decide.UntilDone}

	// UntilStart: from enqueue until the task's handler first begins. So one task may run while at most one waits, and
	// what changed before Enqueue is seen by a run that begins after it. The worker's automutex.Guard ends the block. It
	// needs a rule with an equal Task, Scope and On, so that the task holds the lock then; without that rule it warns. Do
	// not give that rule the policy automutex.Skip: a skipped task is one that other producers rely on.
	UntilStart = Until{kind: decide.UntilStart}
)

// For returns an Until of the fixed time d from the enqueue. In that time a key has at most one task, even if that task
// ends. After d the next task is accepted, even if the first still waits. d is at least a millisecond and at most ten
// years; [New] refuses others.
func For(d time.Duration) Until { return Until{kind: decide.ForTime, window: d} }

// String returns "until done", "until start" or "for 10m0s".
func (u Until) String() string {
	switch u.kind {
	case decide.UntilDone:
		return "until done"
	case decide.UntilStart:
		return "until start"
	case decide.ForTime:
		return "for " + u.window.String()
	}
	return fmt.Sprintf("until %d", u.kind)
}

// Duplicate says what happens to a task whose key another task blocks. The zero value is [Reject]. Values can be
// compared with ==.
type Duplicate struct {
	kind  decide.Duplicate
	delay time.Duration
}

// The values of Duplicate that take no argument. Do not assign to them.
var (
	// Reject returns a [*DuplicateError], which Is asynq.ErrDuplicateTask. It is the zero value.
	Reject = Duplicate{kind: decide.Reject}

	// Join returns the asynq.TaskInfo of the existing task, as if it had just been enqueued. A task that has ended and
	// still blocks the key ([For], KeepArchived) is rejected.
	Join = Duplicate{kind: decide.Join}

	// Replace lets the newest payload win while the handler of the existing task has not begun. The task keeps the time at
	// which it is due. Once that handler has begun, Replace is Reject, except under [UntilStart], where the new task is
	// enqueued.
	//
	// The existing task is deleted, and a new task with options of its own takes its place. One that waits in a worker for
	// its lock is dropped there. The place of a pending task in its queue is lost: the new one goes to the end of the
	// queue. So a task that is replaced faster than the queue is worked off does not run; Postpone has a bound. The
	// workers need the Middleware of a Guard, which writes that a handler begins.
	Replace = Duplicate{kind: decide.Replace}
)

// Postpone returns a Duplicate that debounces: the task runs d after the last call, with the payload of the last call.
// However many calls there are, the task runs after [Rule].MaxPostpone at the latest. The first call is put off by d
// too. The options asynq.ProcessIn and asynq.ProcessAt have no effect. The task never runs before d is over; since
// asynq keeps whole seconds, it is due up to a second later. If the existing task has begun, or is due and past
// MaxPostpone, Postpone is Reject under [UntilDone] and [For], and begins a new wait under [UntilStart]. d is at least
// a millisecond; [New] refuses others.
func Postpone(d time.Duration) Duplicate { return Duplicate{kind: decide.Postpone, delay: d} }

// String returns "reject", "join", "replace" or "postpone by 5s".
func (d Duplicate) String() string {
	switch d.kind {
	case decide.Reject:
		return "reject"
	case decide.Join:
		return "join"
	case decide.Replace:
		return "replace"
	case decide.Postpone:
		return "postpone by " + d.delay.String()
	}
	return fmt.Sprintf("duplicate %d", d.kind)
}

// supersedes tells whether a new task may take the place of one that waits.
func (d Duplicate) supersedes() bool { return d.kind == decide.Replace || d.kind == decide.Postpone }
