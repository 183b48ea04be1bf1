package web

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/web/record"
)

const (
	// countsOver is the time that the numbers of the Rules view are about.
	countsOver = 15
	// pastFor is how long what was read of the past is good enough to be shown.
	pastFor = 5 * time.Second
	// timelineOver is the time that the timeline of the Key view is about.
	timelineOver = time.Hour
	// mostRead is how many busy tasks, and how many other entries, of the timeline are read
	// for all viewers.
	mostRead = 2000
	// mostTimeline is how many busy tasks, and how many other entries, about one lock are
	// shown.
	mostTimeline = 50
)

// past is what Options.Recorder has of the last hour, for all viewers.
type past struct {
	recorder *record.Recorder // nil: there is none
	actions  *actionLog       // of this page; the write of one to Redis may have failed

	counts   shared[map[string]*record.Counts]
	timeline shared[*record.Timeline]
}

// lately gives the numbers of the last countsOver complete minutes by rule; none without a recorder.
func (p *past) lately(ctx context.Context) (map[string]*record.Counts, error) {
	if p.recorder == nil {
		return map[string]*record.Counts{}, nil
	}
	return p.counts.get(ctx, pastFor, func(ctx context.Context) (map[string]*record.Counts, error) {
		return p.recorder.Counts(ctx, countsOver)
	})
}

// about gives the newest entries about one of those keys and targets: those of the last hour
// and all actions that this page remembers. With an error it gives the latter. reach says in a
// sentence how far back they go. There is a recorder.
func (p *past) about(ctx context.Context, targets ...string) (its []record.Entry, reach string, err error) {
	timeline, err := p.read(ctx)
	// An action is in the timeline too, unless its write failed or has not ended yet.
	type id struct {
		ms        int64
		kind, key string
	}
	known := map[id]bool{}
	for _, a := range p.actions.about(targets...) {
		its = append(its, entryOf(a))
		known[id{a.At.UnixMilli(), a.Do, a.Target}] = true
	}
	if timeline != nil {
		for _, e := range timeline.Entries {
			if slices.Contains(targets, e.Key) && !known[id{e.At.UnixMilli(), e.Kind, e.Key}] {
				its = append(its, e)
			}
		}
	}
	slices.SortStableFunc(its, func(a, b record.Entry) int { return b.At.Compare(a.At) })
	// Busy tasks are counted apart, so that they do not push out what is rare.
	busy, rare := 0, 0
	its = slices.DeleteFunc(its, func(e record.Entry) bool {
		n := &rare
		if e.Kind == string(automutex.EventBusy) {
			n = &busy
		}
		*n++
		return *n > mostTimeline
	})
	return its, reachOf(timeline), err
}

// read gives the timeline of the last hour, which is read once for all viewers; nil with an
// error.
func (p *past) read(ctx context.Context) (*record.Timeline, error) {
	timeline, err := p.timeline.get(ctx, pastFor, func(ctx context.Context) (*record.Timeline, error) {
		return p.recorder.Timeline(ctx, timelineOver, mostRead)
	})
	if err != nil {
		return nil, err
	}
	return timeline, nil
}

// reachOf says in a sentence how far back the timeline reaches; nil: it was not read.
func reachOf(t *record.Timeline) string {
	if t == nil {
		return "Redis was not read: this has only what operators did on this page since its process started."
	}
	span := func(cut bool, since time.Time) string {
		if !cut {
			return "of the last hour"
		}
		return "since " + since.UTC().Format(time.TimeOnly) + " UTC (the last " + strconv.Itoa(mostRead) + " of all locks)"
	}
	return "Busy tasks are " + span(t.BusyCut, t.BusySince) + ". Lost, overdue and replaced tasks and actions are " + span(t.Cut, t.Since) +
		". Of each of the two at most " + strconv.Itoa(mostTimeline) + " are shown. Actions on this page are of all the time since its process started. Recorders leave out busy tasks when there are many."
}

// write adds an operator's action to the timeline.
func (p *past) write(ctx context.Context, a Action) error {
	if p.recorder == nil {
		return nil
	}
	err := p.recorder.Write(ctx, entryOf(a))
	// After the write: a viewer that read just before it must not keep the page from showing it.
	p.timeline.forget()
	return err
}

// entryOf is an operator's action as an entry of the timeline.
func entryOf(a Action) record.Entry {
	text := a.Result
	if a.Err != nil {
		text = "failed: " + a.Err.Error()
	}
	return record.Entry{At: a.At, Kind: a.Do, Key: a.Target, By: a.By, Text: text, Why: a.Why}
}

// latelyView has the numbers of the last minutes of one rule, as the Rules view shows them.
type latelyView struct{ Busy, P50, P95 string }

func newLately(c *record.Counts) latelyView {
	v := latelyView{"0", "–", "–"}
	if c == nil {
		return v
	}
	if c.Busy > 0 {
		v.Busy = strconv.FormatFloat(float64(c.Busy)/float64(c.Minutes), 'g', 2, 64)
		if minutes := int64(c.Minutes); c.Busy >= 100*minutes {
			v.Busy = strconv.FormatInt(c.Busy/minutes, 10)
		}
	}
	if d, ok := c.Wait(0.5); ok {
		v.P50 = printable.Duration(d)
	}
	if d, ok := c.Wait(0.95); ok {
		v.P95 = printable.Duration(d)
	}
	return v
}
