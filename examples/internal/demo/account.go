package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const (
	// redisGone is how long Redis may be out of reach before the demo gives up.
	redisGone = 30 * time.Second
	// pageSize is how many tasks are listed per call.
	pageSize = 1000
	// archiveCap is how many archived tasks asynq keeps per queue.
	archiveCap = 10_000
)

// tally says what became of the enqueued tasks: each is counted once.
type tally struct {
	tasks, done, skipped, archived int
	replaced                       int // ended for a newer one: policy Replace
	queued                         int // still in Redis, to be run later
	lost                           int // none of these
	overlaps                       int
}

func (t tally) String() string {
	replaced := "" // told where there can be any
	if t.replaced > 0 {
		replaced = fmt.Sprintf(" replaced=%d", t.replaced)
	}
	return fmt.Sprintf("result: tasks=%d done=%d skipped=%d%s archived=%d lost=%d overlaps=%d",
		t.tasks, t.done, t.skipped, replaced, t.archived, t.lost, t.overlaps)
}

// leftovers is what asynq still has of the queue's tasks, by task ID.
type leftovers struct {
	archived map[string]string // ID to the error it was archived with
	queued   map[string]bool
}

// account finds the fate of every task: first by what its handler did, then by
// where it is in Redis. A task found nowhere is lost.
func (r *recorder) account(left leftovers) tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := tally{tasks: len(r.order)}
	for _, id := range r.order {
		_, archived := left.archived[id]
		switch {
		case r.done[id]:
			t.done++
		case r.skipped[id]:
			t.skipped++
		case r.replaced[id]:
			t.replaced++
		case archived:
			t.archived++
		case left.queued[id]:
			t.queued++
		default:
			t.lost++
		}
	}
	return t
}

// drain waits until nothing in the queue is left to run, or ctx ends. It tells
// progress how many tasks are left.
func drain(ctx context.Context, inspector *asynq.Inspector, queue string, progress func(left int)) error {
	const shortest, longest = 10 * time.Millisecond, 100 * time.Millisecond
	pause := shortest
	answered := time.Now()
	for {
		info, err := inspector.GetQueueInfo(queue)
		switch {
		case err == nil:
			answered = time.Now()
			left := info.Pending + info.Active + info.Scheduled + info.Retry + info.Aggregating
			progress(left)
			if left == 0 {
				return nil
			}
		case missing(inspector, queue):
			return nil // Redis has lost it; what was in it will count as lost
		case time.Since(answered) > redisGone:
			return fmt.Errorf("asking for the state of queue %s: %w; gave up after %s", queue, err, redisGone)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		pause = min(2*pause, longest)
	}
}

// missing is true when Redis answers and does not know the queue.
func missing(inspector *asynq.Inspector, queue string) bool {
	queues, err := inspector.Queues()
	return err == nil && !slices.Contains(queues, queue)
}

// inventory lists what is left of the queue. The server must have stopped, so
// that nothing moves from page to page meanwhile.
func inventory(inspector *asynq.Inspector, queue string) (leftovers, error) {
	left := leftovers{archived: make(map[string]string), queued: make(map[string]bool)}
	waiting := func(t *asynq.TaskInfo) { left.queued[t.ID] = true }
	for _, state := range []struct {
		list func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)
		note func(*asynq.TaskInfo)
	}{
		{inspector.ListPendingTasks, waiting},
		{inspector.ListActiveTasks, waiting},
		{inspector.ListScheduledTasks, waiting},
		{inspector.ListRetryTasks, waiting},
		{inspector.ListArchivedTasks, func(t *asynq.TaskInfo) { left.archived[t.ID] = t.LastErr }},
	} {
		for page := 1; ; page++ {
			tasks, err := state.list(queue, asynq.PageSize(pageSize), asynq.Page(page))
			if errors.Is(err, asynq.ErrQueueNotFound) {
				return left, nil // nothing was enqueued, or Redis lost it all
			}
			if err != nil {
				return left, fmt.Errorf("listing what is left in queue %s: %w", queue, err)
			}
			for _, t := range tasks {
				state.note(t)
			}
			if len(tasks) < pageSize {
				break
			}
		}
	}
	return left, nil
}

// busyText is what a BusyError says of its key and holder, which differ from task to task.
var busyText = regexp.MustCompile(`^(automutex: rule "(?:[^"\\]|\\.)*": )key ".*" is busy(?s:.*)$`)

// printArchived says why tasks were archived, most frequent reason first. Tasks whose keys
// were busy under one rule have one reason.
func printArchived(w io.Writer, archived map[string]string) {
	const most = 5
	counts := make(map[string]int)
	for _, reason := range archived {
		counts[busyText.ReplaceAllString(reason, "${1}its key was busy")]++
	}
	reasons := make([]string, 0, len(counts))
	for reason := range counts {
		reasons = append(reasons, reason)
	}
	slices.SortFunc(reasons, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for _, reason := range reasons[:min(most, len(reasons))] {
		fmt.Fprintf(w, "%d archived: %s\n", counts[reason], printable(reason))
	}
	if rest := len(reasons) - most; rest > 0 {
		fmt.Fprintf(w, "... and for %d other reasons\n", rest)
	}
	if len(archived) >= archiveCap {
		fmt.Fprintf(w, "asynq keeps %d archived tasks per queue; those it dropped beyond that count as lost\n", archiveCap)
	}
}

// removeQueue deletes the queue with everything in it, and asynq's statistics
// of it, which asynq itself would keep for months; also when ctx has ended.
func removeQueue(ctx context.Context, rdb redis.UniversalClient, inspector *asynq.Inspector, queue string, since time.Time) error {
	if err := inspector.DeleteQueue(queue, true); err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		return fmt.Errorf("deleting queue %s: %w", queue, err)
	}
	base := "asynq:{" + queue + "}:" // one Cluster slot
	keys := []string{base + "processed", base + "failed"}
	for day := since.UTC(); !day.After(time.Now().UTC().Add(24 * time.Hour)); day = day.Add(24 * time.Hour) {
		date := day.Format(time.DateOnly)
		keys = append(keys, base+"processed:"+date, base+"failed:"+date)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisPatience)
	defer cancel()
	if err := rdb.Del(ctx, keys...).Err(); err != nil {
		return fmt.Errorf("deleting the statistics of queue %s: %w", queue, err)
	}
	return nil
}
