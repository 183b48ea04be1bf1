package web

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/web/record"
)

const (
	// countsOver is the time that the numbers of the Rules view are about.
	countsOver = 15
	// pastFor is how long what was read of the past is good enough to be shown.
	pastFor = 5 * time.Second
	// mostRead is how many entries of the timeline are read for all viewers.
	mostRead = 2000
	// mostTimeline is how many entries about one lock are shown.
	mostTimeline = 50
)

// past is what Options.Recorder has of the last hour, for all viewers.
type past struct {
	recorder *record.Recorder // nil: there is none

	mu       sync.Mutex // held while Redis is asked, so that one viewer asks for all
	countsAt time.Time
	counts   map[string]*record.Counts
	readAt   time.Time
	entries  []record.Entry
}

// lately gives the numbers of the last countsOver minutes by rule; none without a recorder.
func (p *past) lately(ctx context.Context) (map[string]*record.Counts, error) {
	if p.recorder == nil {
		return map[string]*record.Counts{}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.countsAt) < pastFor {
		return p.counts, nil
	}
	counts, err := p.recorder.Counts(ctx, time.Now(), countsOver)
	if err != nil {
		return p.counts, err
	}
	p.countsAt, p.counts = time.Now(), counts
	return counts, nil
}

// about gives the entries of the last hour about one of those keys and targets.
func (p *past) about(ctx context.Context, targets ...string) (its []record.Entry, err error) {
	if p.recorder == nil {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.readAt) >= pastFor {
		entries, err := p.recorder.Timeline(ctx, time.Now().Add(-time.Hour), mostRead)
		if err != nil {
			return nil, err
		}
		p.readAt, p.entries = time.Now(), entries
	}
	for _, e := range p.entries {
		if slices.Contains(targets, e.Key) && len(its) < mostTimeline {
			its = append(its, e)
		}
	}
	return its, nil
}

// write adds an operator's action to the timeline.
func (p *past) write(ctx context.Context, a Action) error {
	if p.recorder == nil {
		return nil
	}
	text := a.Result
	if a.Err != nil {
		text = "failed: " + a.Err.Error()
	}
	if a.Why != "" {
		text += " (" + a.Why + ")"
	}
	p.mu.Lock()
	p.readAt = time.Time{} // whoever looks next sees it
	p.mu.Unlock()
	return p.recorder.Write(ctx, record.Entry{At: a.At, Kind: a.Do, Key: a.Target, By: a.By, Text: text})
}

// latelyView has the numbers of the last minutes of one rule, as the Rules view shows them.
type latelyView struct{ Busy, P50, P95 string }

func newLately(c *record.Counts) latelyView {
	v := latelyView{"0", "–", "–"}
	if c == nil {
		return v
	}
	if c.Busy > 0 {
		v.Busy = strconv.FormatFloat(float64(c.Busy)/countsOver, 'g', 2, 64)
		if c.Busy >= 100*countsOver {
			v.Busy = strconv.FormatInt(c.Busy/countsOver, 10)
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
