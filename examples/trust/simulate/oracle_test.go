package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// What follows is the rest of the oracle: what is known of enqueues, and what is judged
// at the end.

// asks notes that a task is about to be enqueued.
func (b *ledger) asks(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addf("task %d is enqueued", n)
	b.books[n].asked = b.seq
}

// isNew tells whether nobody has enqueued a task yet.
func (b *ledger) isNew(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.books[n].asked == 0
}

// enqueued notes what came of it.
func (b *ledger) enqueued(n int, info *asynq.TaskInfo, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addf("task %d: enqueue answered: %v", n, err)
	t := b.books[n]
	u := b.w.plan.uniqueOf(t.plan)
	var duplicate *unique.DuplicateError
	switch {
	case errors.As(err, &duplicate) && !b.calm && u.Until == "done": // a reply may have been lost
		t.ends[endUnsure], t.ends[endNewer] = true, true // the task in the way may be this call's own
	case errors.As(err, &duplicate):
		t.refused = b.seq
		t.ends[endNewer] = true
		t.readBeside = b.isReadBeside(t)
		b.judgeRefusal(t)
		b.judgeClaim(t, u)
	case err != nil:
		t.ends[endUnsure] = true
		if b.calm {
			b.violatef("enqueue: task %d: %v", n, err)
		}
	default:
		t.id = info.ID
		t.op = t.op || b.touches[t.id] > t.asked
		t.acceptAt = b.seq
		if u != nil && !strings.Contains(string(info.Payload), fmt.Sprintf(`"n":%d,`, n)) {
			t.joined = b.seq
			t.readBeside = b.isReadBeside(t)
			t.ends[endNewer] = true
			return
		}
		t.accepted = true
		if u.supersedes() {
			b.supersede(t)
		}
	}
}

// supersede notes that older tasks of the key, which have not begun, make room. The task
// itself may have made room for one that was accepted while its own producer still
// waited for its answer.
func (b *ledger) supersede(t *taskBook) {
	for _, o := range b.alike(t) {
		if o.acceptAt > 0 && o.acceptAt < b.seq && o.starts == 0 {
			o.ends[endNewer] = true
		}
		if o.accepted && o.acceptAt > t.asked {
			t.ends[endNewer] = true
		}
	}
}

// judgeRefusal looks whether another task is in the way, as the producer was told.
func (b *ledger) judgeRefusal(t *taskBook) {
	if !slices.ContainsFunc(b.alike(t), func(o *taskBook) bool {
		return o.accepted || o.ends[endUnsure] || o.asked > 0 && o.acceptAt == 0 && o.refused == 0
	}) {
		b.violatef("refused: task %d is told to be a duplicate, and no other was enqueued for its key", t.n)
	}
}

// working are the handlers that are under way, and the attempts.
func (b *ledger) working() (left []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.attempts {
		if !a.over && !a.p.isEnded() {
			left = append(left, fmt.Sprintf("in a worker: %d", a.n))
		}
	}
	return left
}

// judgeIdle looks whether somebody still holds a key when all tasks have ended.
func (b *ledger) judgeIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w.plan.ObserverPanics != "" {
		return
	}
	for key, k := range b.keys {
		for id := range k.held {
			b.violatef("held: %s holds %q although no task is left", id, key)
		}
	}
}

// judgeEnds looks at each task's end.
func (b *ledger) judgeEnds() {
	for _, t := range b.books {
		state := "gone"
		if t.id != "" {
			info, err := b.w.operator.inspector.GetTaskInfo(queue, t.id)
			switch {
			case err == nil:
				state = info.State.String()
			case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			default:
				panic(err) // no fault hits the operator
			}
		}
		b.mu.Lock()
		t.state = state
		b.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.books {
		b.judgeEnd(t)
	}
}

// judgeEnd looks whether the handlers and the policy explain how a task ended.
func (b *ledger) judgeEnd(t *taskBook) {
	n, task, state := t.n, t.plan, t.state
	if len(t.into) > 0 {
		b.judgeGroup(t)
	}
	if u := b.w.plan.uniqueOf(task); u != nil {
		b.judgeUnique(t, u)
		return
	}
	if t.id == "" || b.w.plan.orderOf(task) != nil && !t.accepted && state == "gone" || task.Aggregated && !b.clean && b.neverCame(t) { // never enqueued, or not for certain
		return
	}
	exhausted := t.spent[1]+b.slack() > task.MaxRetry
	switch state {
	case "gone", "completed":
		if t.success == 0 && !t.late && !t.mayEnd(endSkipped, endReplaced, endDropped, endDeleted, endAggregated) {
			b.violatef("ended: task %d is %s, and nothing explains it: %d runs, %v", n, state, t.starts, t.ends)
		}
	case "archived":
		if !t.mayEnd(endArchived, endByHand, endLate) && !exhausted {
			b.violatef("archived: task %d, and nothing explains it: %d runs, at most %d attempts spent of %d, %v", n, t.starts, t.spent[1], task.MaxRetry, t.ends)
		}
	default:
		if state == "aggregating" && b.mayStayInGroup(t) {
			break
		}
		b.violatef("stuck: task %d is %s at the end", n, state)
	}
	if b.clean && t.success > 1 && !t.op && !t.again && b.w.plan.ObserverPanics == "" {
		b.violatef("twice: task %d has succeeded %d times", n, t.success)
	}
}

// judgeUnique looks at what a producer of package unique was promised.
func (b *ledger) judgeUnique(t *taskBook, u *uniquePlan) {
	if b.w.plan.isSplit() {
		return // Redis has lost claims
	}
	exhausted := b.exhausted(t) // policies spend attempts too
	unsure := b.deliversLate(t.plan) || u.supersedes() && b.supersededUnsure(t)
	if t.accepted && t.starts == 0 && len(t.ends) == 0 && !exhausted && !t.op && !unsure {
		b.violatef("lost: task %d was accepted by package unique, and never ran", t.n)
	}
	// Only in scenarios: a task that runs and fails between the look at it and its deletion is
	// superseded all the same, as package unique's documentation says.
	if b.w.plan.Name != "" && b.clean && t.accepted && t.starts > 0 && t.success == 0 && len(t.ends) == 0 && !exhausted && !t.late && !t.op {
		b.violatef("superseded: task %d was taken away after its handler had begun", t.n)
	}
	if u.Until != "start" || t.refused == 0 && t.joined == 0 || t.readBeside {
		return
	}
	for _, o := range append(b.alike(t), t) {
		// asynq may have lost it to a server that did not get it, and archived it for that.
		if o.op || o.accepted && o.starts == 0 && b.exhausted(o) || o.endsUnrun() || b.madeEndsUnrun(o) {
			return // what was in the way did not run, for a reason
		}
	}
	for _, r := range b.runs {
		if r.seq > t.asked && slices.ContainsFunc(append(b.books[r.n].members, r.n), func(m int) bool {
			return b.books[m] == t || slices.Contains(b.alike(t), b.books[m])
		}) {
			return
		}
	}
	b.violatef("update lost: task %d was told that another of its key waits, and no run of the key began after that", t.n)
}

// supersededUnsure tells whether a task may have made room for one that ran although its Enqueue had returned an error:
// "enqueued once or not at all".
func (b *ledger) supersededUnsure(t *taskBook) bool {
	return slices.ContainsFunc(b.alike(t), func(o *taskBook) bool { return o.ends[endUnsure] && o.starts > 0 && o.asked > t.asked })
}

// exhausted tells whether a task of package unique may have spent all of its attempts. One that
// only gave its payload to an earlier task, which was scheduled, has the MaxRetry of that one:
// the documentation of Replace says so. Callers hold mu.
func (b *ledger) exhausted(t *taskBook) bool {
	most := t.plan.MaxRetry
	if t.most >= 0 {
		most = min(most, t.most)
	}
	return t.spent[1]+b.slack() > most
}

// mayEnd tells whether one of these may have ended the task.
func (t *taskBook) mayEnd(hows ...string) bool {
	return slices.ContainsFunc(hows, func(how string) bool { return t.ends[how] })
}

// endsUnrun tells whether a policy, or the task's own time, may have ended the task before
// it ran.
func (t *taskBook) endsUnrun() bool {
	return t.mayEnd(endSkipped, endReplaced, endDropped, endArchived, endLate)
}

// deliversLate tells whether a command of the producers may have been executed when the
// producer had sent it again and gone on. Under UntilDone tasks that supersede each other
// take turns at two IDs, so a late deletion can hit a later task, and a late enqueue can
// bring back a task that was taken back: package unique's documentation says so.
func (b *ledger) deliversLate(t taskPlan, kinds ...faultKind) bool {
	u := b.w.plan.uniqueOf(t)
	return u != nil && u.Until == "done" && slices.ContainsFunc(b.w.plan.Faults, func(f faultPlan) bool {
		return f.Kind == frozen && slices.Contains(kinds, frozen) || f.Kind == late && f.Proc < 0 && f.Client == "asynq"
	})
}

// judgeBalance looks whether events come in pairs.
func (b *ledger) judgeBalance() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.deaths) > 0 || b.w.plan.ObserverPanics != "" {
		return
	}
	stopped := map[string]bool{}
	for _, f := range b.w.plan.Faults {
		if f.Kind == stops {
			stopped[fmt.Sprint(f.Proc)] = true // it exits while handlers run
		}
	}
	for one, n := range b.balance {
		proc, _, _ := strings.Cut(one.id, " ")
		other := map[automutex.EventKind]automutex.EventKind{
			automutex.EventAcquired: automutex.EventReleased, automutex.EventReleased: automutex.EventAcquired,
			automutex.EventWaiting: automutex.EventWaited, automutex.EventWaited: automutex.EventWaiting,
		}[one.kind]
		if m := b.balance[balanced{one.id, other}]; other != "" && m != n && !stopped[proc] {
			b.violatef("events: %s: %d %s, %d %s", one.id, n, one.kind, m, other)
		}
	}
}

// judgeKeys looks at what is left in Redis when everything has ended.
func (w *world) judgeKeys() {
	w.redis.tick()
	crashes := !w.book.calm || !w.book.clean || w.plan.ObserverPanics != ""
	look := func(when string, allowed func(key string, left time.Duration) bool) {
		for _, key := range w.redis.mini.Keys() {
			if !strings.HasPrefix(key, "automutex:") {
				continue
			}
			left := w.redis.mini.TTL(key)
			if left <= 0 {
				w.book.violationf("left: %q has no TTL", key)
			} else if !allowed(key, left) {
				w.book.violationf("left: %q %s: TTL %s, %v", key, when, left, w.members(key))
			}
		}
	}
	look("after all processes have ended", func(key string, left time.Duration) bool {
		if crashes || isHistory(key) || strings.HasSuffix(key, ":claim") || strings.HasSuffix(key, ":arrivals") || strings.HasSuffix(key, ":seen") {
			return true
		}
		for _, r := range w.plan.Rules {
			if name := w.book.nameOf(key); strings.HasPrefix(name, r.scope()) && (r.InOrder || w.plan.isGated(name)) {
				return true
			}
		}
		return slices.ContainsFunc(w.plan.Faults, func(f faultPlan) bool { return f.Kind == stops }) // handlers that an exit cut off
	})
	w.judgeHistory()
	time.Sleep(2 * time.Hour)
	w.redis.tick()
	look("two hours later", func(key string, _ time.Duration) bool {
		return strings.HasSuffix(key, ":claim") || isHistory(key) || w.mayStay(key)
	})
}

func (w *world) members(key string) []string {
	members, _ := w.redis.mini.ZMembers(key) // of another type: none
	fields, _ := w.redis.mini.HKeys(key)
	for _, field := range fields {
		members = append(members, field+" "+w.redis.mini.HGet(key, field))
	}
	return members
}
