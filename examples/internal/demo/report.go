package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/anyredis"
	"github.com/automutex/automutex/internal/printable"
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

// account finds the fate of every task: first by what its handler did, then by where it is in
// Redis. A task found nowhere is lost. reasons counts why tasks were archived. The server must have stopped.
func (d *Demo) account() (t tally, reasons map[string]int, err error) {
	t.tasks, reasons = len(d.rec.tasks), map[string]int{}
	for _, task := range d.rec.tasks {
		switch task.fate {
		case done:
			t.done++
			continue
		case skipped:
			t.skipped++
			continue
		case replaced:
			t.replaced++
			continue
		}
		info, err := d.inspector.GetTaskInfo(d.Name, task.id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			t.lost++
		case err != nil:
			return t, reasons, fmt.Errorf("looking for task %s in queue %s: %w", task.id, d.Name, err)
		case info.State == asynq.TaskStateArchived:
			t.archived++
			reasons[busyText.ReplaceAllString(info.LastErr, "${1}its key was busy")]++
		default:
			t.queued++
		}
	}
	return t, reasons, nil
}

// busyText is what a BusyError says of its key and holder, which differ from task to task.
var busyText = regexp.MustCompile(`^(automutex: rule "(?:[^"\\]|\\.)*": )key ".*" is busy(?s:.*)$`)

// archived says why tasks were archived, most frequent reason first.
func archived(counts map[string]int) string {
	const most = 5
	reasons := make([]string, 0, len(counts))
	for reason := range counts {
		reasons = append(reasons, reason)
	}
	slices.SortFunc(reasons, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
	var b strings.Builder
	for _, reason := range reasons[:min(most, len(reasons))] {
		fmt.Fprintf(&b, "%d archived: %s\n", counts[reason], printable.Text(reason))
	}
	if rest := len(reasons) - most; rest > 0 {
		fmt.Fprintf(&b, "... and for %d other reasons\n", rest)
	}
	return b.String()
}

// Report draws who ran when, prints what became of each task, and removes the queue. It takes
// the error that the run ended with, and returns the exit status. The server has stopped.
func (d *Demo) Report(ctx context.Context, err error) int {
	if d.animated {
		fmt.Fprint(d.stderr, "\r"+ansi.EraseLineRight)
	}
	result, reasons, lost := d.account()
	err = errors.Join(err, lost, d.page.failure())
	rows := d.rowsOf()
	for _, r := range rows {
		result.overlaps += r.overlaps
	}
	if len(rows) > 0 {
		fmt.Fprintln(d.out, chart(rows, d.what(), d.width))
	}
	fmt.Fprint(d.out, archived(reasons))
	switch {
	case result.queued > 0 && d.store.Embedded:
		fmt.Fprintf(d.out, "queued=%d (gone with %s)\n", result.queued, d.store.Name)
	case result.queued > 0:
		fmt.Fprintf(d.out, "queued=%d in asynq queue %s of %s; to remove it: asynq queue rm --force %[2]s\n", result.queued, d.Name, d.store.Name)
	default:
		err = errors.Join(err, d.removeQueue(ctx))
	}
	if err != nil {
		fmt.Fprintf(d.stderr, "worker: %v\n", err)
	}
	broken := 0
	if d.InOrder {
		var failed int
		broken, failed = d.rec.disorder()
		fmt.Fprintf(d.out, "in order: %d attempts failed and kept their places; %d tasks began after one of their key that was enqueued later\n", failed, broken)
	}
	fmt.Fprintln(d.out, result)
	if err != nil || broken > 0 || result.lost > 0 || result.overlaps > 0 && !d.Unguarded {
		return ExitFindings
	}
	return ExitOK
}

// removeQueue deletes the queue with everything in it, and asynq's statistics
// of it, which asynq itself would keep for months; also when ctx has ended.
func (d *Demo) removeQueue(ctx context.Context) error {
	if err := d.inspector.DeleteQueue(d.Name, true); err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		return fmt.Errorf("deleting queue %s: %w", d.Name, err)
	}
	base := "asynq:{" + d.Name + "}:" // one Cluster slot
	keys := []string{base + "processed", base + "failed"}
	for day := d.rec.start.UTC(); !day.After(time.Now().UTC().Add(24 * time.Hour)); day = day.Add(24 * time.Hour) {
		keys = append(keys, base+"processed:"+day.Format(time.DateOnly), base+"failed:"+day.Format(time.DateOnly))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), anyredis.Patience)
	defer cancel()
	if err := d.Redis.Del(ctx, keys...).Err(); err != nil {
		return fmt.Errorf("deleting the statistics of queue %s: %w", d.Name, err)
	}
	return nil
}

// summary is the head line.
func (d *Demo) summary() string {
	guarded := "unguarded"
	switch {
	case d.Unguarded:
	case d.config != "":
		guarded = fmt.Sprintf("%d rules of %s", len(d.rules.Rules), d.config)
	default:
		wait, order := fmt.Sprintf("wait %s, ", d.Wait), ""
		if d.busy == automutex.Park.String() {
			wait = "" // it lasts as long as it takes
		}
		if d.InOrder {
			order = ", in order"
		}
		guarded = fmt.Sprintf("one turn per %s: limit %d, %sthen %s%s", strings.Join(d.On, " + "), d.Limit, wait, d.busy, order)
	}
	return fmt.Sprintf("%d tasks, %d workers, %s of work each, on %s; %s", len(d.events), d.Workers, d.work, d.store.Name, guarded)
}

// what heads the column of the rows.
func (d *Demo) what() string {
	if d.config != "" {
		return "rule and key"
	}
	return strings.Join(d.On, ", ")
}
