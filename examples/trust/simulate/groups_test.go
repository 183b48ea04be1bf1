package simulate

import (
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// What follows is about asynq's groups: a task that is enqueued with asynq.Group waits until a server's
// GroupAggregator makes one task of all tasks of its group.

// groupPlan is how servers aggregate groups.
type groupPlan struct {
	Grace    time.Duration
	MaxDelay time.Duration
	MaxSize  int
}

// groups draws groups, tasks that are in them, and the tasks that aggregators make.
func (d *drawer) groups() {
	s := d.aside("groups")
	if !s.chance(0.3) {
		return
	}
	s.p.Groups = &groupPlan{Grace: s.span(1000, 6000), MaxDelay: pick(s, 0, s.span(6000, 20_000)), MaxSize: pick(s, 0, 0, 1, 2, 5)}
	types := []string{"plain"}
	for _, r := range s.p.Rules {
		if !r.InOrder && s.p.uniqueOf(taskPlan{Task: r.Task}) == nil { // aggregators enqueue with a client of asynq's
			types = append(types, r.Task)
		}
	}
	for i := range s.p.Tasks {
		t := &s.p.Tasks[i]
		if s.p.orderOf(*t) != nil || !s.chance(0.4) {
			continue
		}
		t.Group = pick(s, "g0", "g1")
		for range 3 { // it may be aggregated again after a fault
			made := taskPlan{At: -1, Task: pick(s, types...), A: s.IntN(4), B: s.IntN(3), MaxRetry: pick(s, 0, 1, 3, 25), Keep: s.chance(0.3), Aggregated: true}
			for range 1 + s.weighted(4, 2, 1) {
				made.Steps = append(made.Steps, s.step())
			}
			s.p.Tasks = append(s.p.Tasks, made)
		}
	}
}

// aggregate is the GroupAggregator of a process.
func (p *process) aggregate(_ string, members []*asynq.Task) *asynq.Task {
	n := p.w.book.aggregates(p, members)
	if n < 0 {
		return nil // asynq does not enqueue it, and aggregates the group again
	}
	t := p.w.plan.Tasks[n]
	return asynq.NewTask(t.Task, t.body(n), append(t.options(), asynq.TaskID(p.w.plan.id(n)))...)
}

// aggregates notes that tasks are aggregated, and gives the number of the task that is made; -1: none is.
func (b *ledger) aggregates(p *process, members []*asynq.Task) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := slices.IndexFunc(b.books, func(t *taskBook) bool { return t.asked == 0 && b.books[t.n].plan.Aggregated })
	if n < 0 || p.isEnded() {
		return -1
	}
	t := b.books[n]
	for _, member := range members {
		t.members = append(t.members, number(member))
	}
	b.addf("process %d makes task %d of %v", p.n, n, t.members)
	t.id, t.asked, t.acceptAt = b.w.plan.id(n), b.seq, b.seq
	for _, m := range t.members {
		o := b.books[m]
		o.into, o.aggregated, o.ends[endAggregated] = append(o.into, n), time.Now(), true
		if o.refused > 0 && !b.deliversLate(b.books[m].plan, frozen) {
			b.violatef("refused: task %d is aggregated although its producer was told that nothing was enqueued", m)
		}
	}
	return n
}

// judgeGroup looks whether a task that was aggregated is in one task that ran or is stored: only faults of asynq's
// client, and operators, have asynq aggregate it again. Callers hold mu.
func (b *ledger) judgeGroup(t *taskBook) {
	in := 0
	for _, made := range t.into {
		if !b.neverCame(b.books[made]) {
			in++
		}
	}
	switch {
	case in == 0 && t.state == "gone" && !t.op:
		b.violatef("group: task %d is gone, and so is each task that was made of it: %v", t.n, t.into)
	case (in > 1 || t.success > 0) && b.clean && !t.op:
		b.violatef("group: task %d has succeeded %d times, and %d tasks were made of it: %v", t.n, t.success, in, t.into)
	}
}

// neverCame tells whether a task can be one that was never enqueued. Callers hold mu.
func (b *ledger) neverCame(t *taskBook) bool { return t.most < 0 && t.state == "gone" }

// mayStayInGroup tells whether asynq may leave a task in its group, which it lists again only with the next task that is
// enqueued: the task came back from a retry, or its aggregation failed. Callers hold mu.
func (b *ledger) mayStayInGroup(t *taskBook) bool { return t.op || !b.clean }

// isReadBeside tells whether a task may have been told to be a duplicate of one that asynq has aggregated and not yet
// deleted, so that the aggregated task may have run already. Callers hold mu.
func (b *ledger) isReadBeside(t *taskBook) bool {
	return slices.ContainsFunc(append(b.alike(t), t), func(o *taskBook) bool {
		return len(o.into) > 0 && (!b.clean || time.Since(o.aggregated) < b.deletedIn())
	})
}

// deletedIn is how long after its aggregation a task is deleted by asynq, and a producer that has seen it is answered.
func (b *ledger) deletedIn() time.Duration { return 500*ms + 16*b.w.plan.Latency }

// judgeClaim looks whether a task is refused although each other of its key has ended: it was aggregated, refused,
// joined, or a newer one took its place. Callers hold mu.
func (b *ledger) judgeClaim(t *taskBook, u *uniquePlan) {
	if !b.calm || !b.clean || u.Until == "for" {
		return
	}
	aggregated := -1
	for _, o := range b.alike(t) {
		switch {
		case o.refused > 0, o.joined > 0, o.asked == 0:
		case len(o.into) > 0 && !o.op && o.starts == 0 && time.Since(o.aggregated) > b.deletedIn()+5*time.Second:
			aggregated = o.n
		case o.acceptAt == 0 || !o.ends[endNewer]:
			return
		}
	}
	if aggregated >= 0 {
		b.violatef("claim: task %d is refused, and the last of its key, task %d, was aggregated", t.n, aggregated)
	}
}

// madeEndsUnrun tells whether a task was made of this one that did not run, for a reason, or that asynq keeps in its
// group. Callers hold mu.
func (b *ledger) madeEndsUnrun(t *taskBook) bool {
	return t.state == "aggregating" || slices.ContainsFunc(t.into, func(n int) bool {
		o := b.books[n]
		return o.endsUnrun() || o.starts == 0 && b.exhausted(o)
	})
}

// inGroups are the tasks that asynq will aggregate. A group that is not listed has no aggregator.
func (w *world) inGroups() (left []string) {
	m, base := w.redis.mini, "asynq:{"+queue+"}:"
	groups, _ := m.SMembers(base + "groups") // no such key: none
	for _, group := range groups {
		ids, _ := m.ZMembers(base + "g:" + group)
		for _, id := range ids {
			left = append(left, "group "+group+": "+id)
		}
	}
	sets, _ := m.ZMembers(base + "aggregation_sets")
	return append(left, sets...)
}
