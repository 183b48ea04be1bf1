package simulate

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// What follows is about tasks that run in the order of their Enqueue calls.

// ordered draws a type of tasks in order, its tasks, and what meets them: producers whose commands fail, as
// those of a producer that dies do, and operators.
func (d *drawer) ordered(length time.Duration) {
	s := d.aside("in order")
	if !s.chance(0.35) {
		return
	}
	s.p.Rules = append(s.p.Rules, rulePlan{
		Task: "ordered", InOrder: true, On: pick(s, []string{"a"}, []string{"a"}, []string{"a", "b"}, nil), TTL: s.ttl(), Policy: "park",
		OnArchive: pick(s, "hold", "continue"), MaxQueued: pick(s, 0, 0, 0, 0, 2, 5),
	})
	if s.chance(0.15) { // and a wide limit, which others share
		shared := s.scopes[0]
		s.p.Rules[len(s.p.Rules)-1].Scope = "ordered"
		wide := rulePlan{Task: "ordered", Scope: shared.Scope, Limit: shared.Limit, TTL: shared.TTL, On: []string{"b"}, Policy: "park"}
		for _, r := range s.p.Rules {
			if r.scope() == wide.Scope {
				wide.Limit, wide.LimitOf, wide.Starts, wide.Per, wide.Burst = r.Limit, r.LimitOf, r.Starts, r.Per, r.Burst // all rules of a scope have the same
			}
		}
		s.p.Rules = append(s.p.Rules, wide)
	}
	from, entities := len(s.p.Tasks), 1+s.IntN(3)
	burst := time.Duration(-1)
	for range 4 + s.IntN(25) {
		t := taskPlan{
			Task: "ordered", A: s.IntN(entities), B: s.IntN(2), MaxRetry: pick(s, 0, 1, 3, 10, 25), Keep: s.chance(0.3),
			At: s.span(0, int(length/time.Millisecond)), Plain: s.chance(0.08),
		}
		if burst >= 0 && s.chance(0.7) {
			t.At = burst + s.span(0, 30) // one after the other
		}
		burst = t.At
		if s.chance(0.3) {
			t.Timeout = time.Duration(5+s.IntN(30)) * time.Second
		}
		for range 1 + s.weighted(4, 2, 1) {
			t.Steps = append(t.Steps, s.step())
		}
		s.p.Tasks = append(s.p.Tasks, t)
	}
	if s.chance(0.4) {
		for range 1 + s.IntN(3) {
			f := faultPlan{Kind: pick(s, refused, replyLost, swallowed, late, noPerm, cut, hung, misconf, apart, frozen), Proc: -1,
				Client: pick(s, "lock", "asynq"), Nth: 1 + s.IntN(40), For: s.span(4000, 20_000)}
			s.p.Faults = append(s.p.Faults, f)
		}
	}
	if s.chance(0.4) {
		for range 1 + s.IntN(4) {
			s.p.Ops = append(s.p.Ops, opPlan{
				At: s.span(0, int(length/time.Millisecond)), Kind: pick(s, "delete", "archive", "run", "run", "skip", "skip", "lose"),
				Task: from + s.IntN(len(s.p.Tasks)-from),
			})
		}
	}
}

// orderOf is the rule that has a task in order; nil: none.
func (p *plan) orderOf(t taskPlan) *rulePlan {
	return find(p.Rules, func(r rulePlan) bool { return r.Task == t.Task && r.InOrder })
}

// isOrdered tells whether any task is in order.
func (p *plan) isOrdered() bool {
	return slices.ContainsFunc(p.Rules, func(r rulePlan) bool { return r.InOrder })
}

// onArchive is the rule's, as the Guard takes it.
func (r rulePlan) onArchive() automutex.OnArchive {
	if r.OnArchive == "continue" {
		return automutex.Continue
	}
	return automutex.HoldKey
}

// newOrdered makes the producer's client for tasks in order; nil: there are none.
func (w *world) newOrdered() *automutex.Client {
	if !w.plan.isOrdered() {
		return nil
	}
	return must(automutex.NewClient(w.producerRedis[1], w.producer, automutex.Config{
		Rules: (&process{w: w}).rules(), HashKeys: w.plan.secret(), Private: true, Logger: slog.New(slog.DiscardHandler),
	}))
}

// enqueueInOrder enqueues a task by the Client.
func (w *world) enqueueInOrder(n int, task *asynq.Task, opts []asynq.Option) {
	id := w.plan.id(n)
	w.book.named(n, id)
	info, err := w.ordered.Enqueue(task, append(opts, asynq.TaskID(id))...)
	full, failed := (*automutex.FullError)(nil), (*automutex.EnqueueError)(nil)
	switch {
	case errors.As(err, &full):
		w.book.isFull(n, full)
	case errors.As(err, &failed) && !failed.Unknown, failed == nil && errors.Is(err, asynq.ErrTaskIDConflict): // it may conflict with itself
		w.book.notEnqueued(n, err)
	default:
		w.book.enqueued(n, info, err)
	}
}

// named notes the ID of a task that is enqueued with it.
func (b *ledger) named(n int, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.books[n].id = id
}

// notEnqueued notes an error that says so.
func (b *ledger) notEnqueued(n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addf("task %d: enqueue answered: %v", n, err)
	b.seq++
	t := b.books[n]
	t.refused, t.id = b.seq, ""
	if errors.Is(err, lock.ErrBackend) {
		t.ghost = time.Now()
	}
	if b.calm && b.books[n].plan.As == 0 {
		b.violatef("enqueue: task %d: %v", n, err)
	}
}

// leftOrder tells whether a task of an ordered key may have left the order, by what is known of its end. Callers hold mu.
func (b *ledger) leftOrder(n int) bool {
	t, task := b.books[n], b.books[n].plan
	switch {
	case t.success > 0, t.late, t.ends[endDeleted] && !t.deletedInHold, t.ends[endGivenUp], t.ends[endLost]:
		return true
	case b.w.plan.orderOf(task).OnArchive != "continue":
		return false
	}
	return t.ends[endArchived] || t.ends[endByHand] || t.ends[endLate] || t.spent[1]+b.slack() > task.MaxRetry || b.w.isArchived(t.id)
}

// isArchived looks into asynq's set of archived tasks.
func (w *world) isArchived(id string) bool {
	ids, _ := w.redis.mini.ZMembers("asynq:{" + queue + "}:archived") // no such key: none
	return slices.Contains(ids, id)
}

// judgeOrder looks whether all tasks of the key have ended whose Enqueue had returned before that of r's task began. It
// knows nothing else of how the order is kept. Callers hold mu.
func (b *ledger) judgeOrder(r *run) {
	task := b.books[r.n].plan
	rule, mine := b.w.plan.orderOf(task), b.books[r.n]
	if rule == nil {
		return
	}
	b.judgeStarts(r)
	b.judgeRetry(r)
	if task.Plain || mine.ends[endLost] || b.w.forgot() {
		return
	}
	for i, t := range b.books {
		other := b.books[i].plan
		if i == r.n || !t.accepted || other.Plain || other.Task != task.Task || rule.key(other) != rule.key(task) || t.acceptAt > mine.asked {
			continue
		}
		if !b.leftOrder(i) {
			b.violatef("order: task %d begins, and task %d of %q has not ended, whose Enqueue had returned before", r.n, i, rule.key(task))
		}
	}
}

// deletes notes that an operator deletes a task that asynq has. If its archiving holds its key, which a Guard has told of, the
// deletion does not end that.
func (b *ledger) deletes(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.books[n]
	t.ends[endDeleted] = true
	t.deletedInHold = !t.blocked.IsZero() && time.Since(t.blocked) > 2*time.Second && b.locksCalm()
}

// judgeRetry looks whether a task that asked to come back later comes before that time. Callers hold mu.
func (b *ledger) judgeRetry(r *run) {
	for _, o := range slices.Backward(b.runs) {
		if o.n != r.n {
			continue
		}
		later := b.books[r.n].plan.step(o.nth).Later
		since := r.began.Sub(o.ended)
		if o.end == "later" && !o.ended.IsZero() && b.calm && b.clean && !b.books[r.n].op && since > 3*time.Second && since < later-3*time.Second {
			b.violatef("early: task %d begins %s after its handler asked to come back in %s", r.n, since, later)
		}
		return
	}
}

// judgeStarts looks whether a handler begins more often than its caller allowed, or after it was done. Callers hold mu.
func (b *ledger) judgeStarts(r *run) {
	task, t := b.books[r.n].plan, b.books[r.n]
	if task.Plain || t.op || t.ends[endLost] {
		return
	}
	spent := 0
	for _, o := range b.runs {
		// What runs when its process stops goes back to its queue, and counts for nothing, also if its
		// handler has ended and its lock is not released when the time is up.
		stopped := o.p.isStopping()
		if o.n == r.n && (stopped.IsZero() || o.ended.Before(stopped)) && (o.counted || o.ended.IsZero() && o.p.isEnded() && stopped.IsZero()) {
			spent++
		}
	}
	if spent > task.MaxRetry {
		b.violatef("starts: the handler of task %d, whose MaxRetry is %d, begins after %d of its runs have failed", r.n, task.MaxRetry, spent)
	}
	if t.success > 0 && b.locksCalm() {
		b.violatef("again: task %d begins after it was done", r.n)
	}
}

// locksCalm tells whether nothing went wrong but commands of asynq.
func (b *ledger) locksCalm() bool {
	return len(b.deaths) == 0 && !slices.ContainsFunc(b.w.plan.harms(), func(f faultPlan) bool {
		return f.Proc >= 0 && f.Client != "asynq" || f.Kind == frozen
	})
}

// Further ends of a task in order.
const (
	endGivenUp = "its place was given up by the operator"
	endLost    = "its place was lost with its key"
)

// operateInOrder does what an operator does to an ordered key, and tells whether op is such an act.
func (w *world) operateInOrder(op opPlan) bool {
	if op.Kind != "skip" && op.Kind != "lose" {
		return false
	}
	t := w.plan.Tasks[op.Task]
	rule := w.plan.orderOf(t)
	if rule == nil {
		return true
	}
	key := w.lockOf(*rule, t).Key()
	if op.Kind == "skip" {
		if id := w.book.touch(op.Task); id != "" {
			w.skip(key, queue+"/"+id)
		}
		return true
	}
	w.book.losesKey(*rule, t)
	for _, one := range w.redis.mini.Keys() {
		if one == key || op.Task%3 > 0 && strings.HasPrefix(one, key+":") { // sometimes the word alone, as a hand deletes it
			w.redis.mini.Del(one)
		}
	}
	return true
}

// skip gives up a task's place. After an error it may be given up or not.
func (w *world) skip(key, note string) {
	n := numberOf(strings.TrimPrefix(note, queue+"/"))
	before := n >= 0 && w.book.givesUp(n)
	e := *inside.At(w.skipper.locker)
	_, err := e.Skip(context.Background(), engine.Ref{Key: key, Limit: 1, Fixed: true}, note, 0)
	w.book.notef("operator: skip of %s: %v", note, err)
	if err == nil {
		blocked.WakeNext(context.Background(), e, w.skipper.inspector, key)
	}
	if n >= 0 && !before && (errors.Is(err, engine.ErrNotHead) || errors.Is(err, engine.ErrHeadRuns)) {
		w.book.mu.Lock()
		defer w.book.mu.Unlock()
		delete(w.book.books[n].ends, endGivenUp)
	}
}

// givesUp notes that a task's place may be given up, and tells whether that was so before.
func (b *ledger) givesUp(n int) (before bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before = b.books[n].ends[endGivenUp]
	b.books[n].ends[endGivenUp] = true
	return before
}

// losesKey notes that a key is lost, as in a failover, with all that is known of its order.
func (b *ledger) losesKey(rule rulePlan, t taskPlan) {
	b.breaks(rule.key(t))
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.w.plan.Tasks {
		if other.Task == t.Task && rule.key(other) == rule.key(t) && b.books[i].asked > 0 {
			b.books[i].ends[endLost] = true
		}
	}
}

// endHolds gives up the places of archived tasks, when all else is well. Every second one is run again instead.
// It tells whether there was any.
func (w *world) endHolds() (found bool) {
	if !w.plan.isOrdered() {
		return false
	}
	heads, err := blocked.Heads(context.Background(), *inside.At(w.operator.locker))
	if err != nil {
		w.book.violationf("order: the heads cannot be read: %v", err)
		return false
	}
	for _, head := range heads {
		if !head.Held() {
			continue
		}
		found = true
		id := strings.TrimPrefix(head.Note, queue+"/")
		if w.held[id]++; w.held[id] == 1 && len(w.held)%2 == 0 && w.operator.inspector.RunTask(queue, id) == nil {
			if n := numberOf(id); n >= 0 {
				w.book.touch(n)
			}
			continue
		}
		w.skip(head.Key, head.Note)
	}
	return found
}

// judgeIdleOrder looks, while tasks are left and nothing is wrong any more, whether ordered keys stand still.
func (w *world) judgeIdleOrder(left []string) {
	most := 4 * time.Minute // asynq's recoverer, a look and its delay
	if slices.ContainsFunc(w.plan.Ops, func(op opPlan) bool { return op.Kind == "lose" }) {
		most = 15 * time.Minute // nobody knows any more who is parked
	}
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	last := w.book.quietSince
	for _, r := range w.book.runs {
		if r.lives() {
			return
		}
		for _, at := range []time.Time{r.began, r.ended} {
			last = latest(last, at)
		}
	}
	for _, text := range left {
		_, id, _ := strings.Cut(text, " ")
		if n := numberOf(id); n < 0 || w.plan.orderOf(w.plan.Tasks[n]) == nil {
			return
		}
	}
	if idle := time.Since(last); idle > most && !w.forgot() {
		w.book.violatef("stands: nobody has run for %s, and these wait: %s", idle, strings.Join(left, ", "))
		w.book.quietSince = time.Now()
	}
}

// mayStay tells whether an ordered key may have a place yet for a task that has ended, if nobody is behind it who would look: it
// stays for 30 days. The task was never enqueued; an operator has ended it; the end of its wait did not reach Redis; or asynq has archived
// it, since its time was up in the last attempt that asynq allows, as a plain client's task and an operator's run have it.
// A task whose archiving the Guard knows of never holds a key for that long.
func (w *world) mayStay(key string) bool {
	lock, _, _ := strings.Cut(key, "}")
	info := lock + "}:info"
	fields, _ := w.redis.mini.HKeys(info) // no such key: none
	places, archived := 0, true
	for _, field := range fields {
		if !strings.HasPrefix(field, "o:") {
			continue
		}
		record := w.redis.mini.HGet(info, field)
		if state := record[:1]; state != "i" && state != "a" && (state != "w" || w.book.calm) {
			return false
		}
		places++
		archived = archived && w.isArchived(record[strings.LastIndex(record, "/")+1:])
	}
	return places > 0 && (archived || !w.book.calm || !w.book.clean || len(w.plan.Ops) > 0)
}

// isFull notes that a key was full, and judges whether it can have been.
func (b *ledger) isFull(n int, full *automutex.FullError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addf("task %d: enqueue answered: %v", n, full)
	b.seq++
	task := b.books[n].plan
	rule := b.w.plan.orderOf(task)
	queued := 0
	for i, t := range b.books {
		other := b.books[i].plan
		// What has ended a moment ago may count yet: its release is on its way, or was lost.
		if i != n && t.asked > 0 && (t.refused == 0 || b.mayCount(t)) && rule.key(other) == rule.key(task) && other.Task == task.Task {
			if t.success > 0 && b.calm && b.clean && !t.left.IsZero() && time.Since(t.left) > 5*time.Second {
				continue
			}
			queued++
		}
	}
	if queued < rule.MaxQueued || full.Max != rule.MaxQueued {
		b.violatef("full: task %d is told that its key is full (%d of %d), and %d tasks of it have not ended", n, full.Queued, full.Max, queued)
	}
	b.books[n].refused, b.books[n].id = b.seq, ""
}

// mayCount tells whether the stamp of a task that was not enqueued may count as one of its key: Redis may have executed it
// after its producer had given up, at the latest when the faults ended, and then it counts for ten seconds. Callers hold mu.
func (b *ledger) mayCount(t *taskBook) bool {
	since := b.quietSince
	since = latest(since, t.ghost)
	return !t.ghost.IsZero() && (b.quietSince.IsZero() || time.Since(since) < 12*time.Second)
}
