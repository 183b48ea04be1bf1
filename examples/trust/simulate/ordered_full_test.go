package simulate

import (
	"time"

	"github.com/automutex/automutex"
)

// isFull notes that a key was full, and judges whether it can have been.
func (b *ledger) isFull(n int, full *automutex.FullError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addf("task %d: enqueue answered: %v", n, full)
	b.seq++
	task := b.w.plan.Tasks[n]
	rule := b.w.plan.orderOf(task)
	queued := 0
	for i, t := range b.books {
		other := b.w.plan.Tasks[i]
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
	if t.ghost.After(since) {
		since = t.ghost
	}
	return !t.ghost.IsZero() && (b.quietSince.IsZero() || time.Since(since) < 12*time.Second)
}
