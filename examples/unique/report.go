package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hibiken/asynq"
)

// handle is the work: it looks at the document, and takes its time. "asynq
// alone" sees the version of its payload; the others read the document when they
// begin, as such handlers do, unless the payload is what counts.
func (d *demo) handle(ctx context.Context, t *asynq.Task) error {
	var payload struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(t.Payload(), &payload); err != nil {
		return err
	}
	d.mu.Lock()
	from := time.Since(d.began)
	version := d.now
	if t.Type() != "until start" {
		version = payload.Version
	}
	d.mu.Unlock()
	select {
	case <-time.After(d.work):
	case <-ctx.Done():
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ran[t.Type()] = append(d.ran[t.Type()], stay{from, time.Since(d.began), version})
	return nil
}

// columns is how wide the chart is.
const columns = 60

// report draws the chart and checks what the rules promise.
func (d *demo) report(out io.Writer) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var end time.Duration
	for _, runs := range d.ran {
		for _, run := range runs {
			end = max(end, run.to)
		}
	}
	column := func(at time.Duration) int { return min(int(int64(columns)*int64(at)/int64(end+1)), columns-1) }

	fmt.Fprintf(out, "a document changes %d times, every %s; each change asks for a task of %s\n\n", d.changes, d.every, d.work)
	fmt.Fprintf(out, "%-12s        0 %s %s\n", "", strings.Repeat("─", columns-len(end.Round(10*time.Millisecond).String())-3), end.Round(10*time.Millisecond))
	exit := 0
	table := &strings.Builder{}
	tab := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "rule\tasked\taccepted\truns\tlast run saw\tmeans")
	for _, w := range wishes {
		asked, runs := []rune(strings.Repeat(" ", columns)), []rune(strings.Repeat(" ", columns))
		accepted := 0
		for _, a := range d.asked[w.task] {
			mark := '·'
			if a.accepted {
				accepted++
				mark = '+'
			}
			if at := column(a.at); asked[at] != '+' {
				asked[at] = mark
			}
		}
		last := 0
		began := slices.Clone(d.ran[w.task])
		slices.SortFunc(began, func(a, b stay) int { return int(a.from - b.from) })
		for _, run := range began {
			for at := column(run.from); at <= column(run.to-1); at++ {
				runs[at] = '█'
			}
			runs[column(run.from)] = '▌'
			last = run.version
		}
		fmt.Fprintf(out, "%-12s asked  %s\n%-12s runs   %s\n", w.task, string(asked), "", string(runs))
		fmt.Fprintf(tab, "%s\t%d\t%d\t%d\tversion %d of %d\t%s\n", w.task, d.changes, accepted, len(began), last, d.changes, w.text)

		if w.newest && last != d.changes {
			exit = 1
			fmt.Fprintf(out, "             the last run was to see version %d\n", d.changes)
		}
		if w.most != nil && len(began) > w.most(d.asked[w.task]) {
			exit = 1
			fmt.Fprintf(out, "             there are more runs than promised\n")
		}
		if w.rule != nil && overlap(began) {
			exit = 1
			fmt.Fprintf(out, "             two ran at once\n")
		}
	}
	_ = tab.Flush()
	fmt.Fprintf(out, "\n+ accepted   · a duplicate   ▌ a run begins\n\n%s", table)
	return exit
}

// overlap tells whether two runs, sorted by their begin, were under way at once.
func overlap(runs []stay) bool {
	for i := range runs[:max(0, len(runs)-1)] {
		if runs[i+1].from < runs[i].to-10*time.Millisecond { // noted beside the lock, not under it
			return true
		}
	}
	return false
}
