package web

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/printable"
)

// Who ran when, on one key: a picture, and the same as a table. Times are by Redis' clock.

const (
	// mostBars is how many runs and waits of a key are read of its history, and kept of what looks saw.
	mostBars = 200
	// seenWithin is how far what looks saw may be from what the history says of the same run.
	seenWithin = 2 * time.Second
	// maxSeen is of how many keys the page keeps what looks saw.
	maxSeen = 500
)

// run is a run of a task, a wait, or both: the history of the key tells of it, or looks saw it.
type run struct {
	Task            task
	Worker, Outcome string
	Came            time.Time // when it came to the lock; zero: not known
	Start           time.Time // when its handler started; zero: it did not
	End             time.Time // if it goes on: the last look
	Open            bool      // it goes on
}

// begin is when it came, or was seen first.
func (r run) begin() time.Time { return cmp.Or(r.Came, r.Start) }

// waits reports whether the run has not begun: the line of the key shows it.
func (r run) waits() bool { return r.Open && r.Start.IsZero() }

// seenRuns is what the looks of the key views saw: without a history, it is all that is known of the past.
type seenRuns struct {
	mu   sync.Mutex          // guards keys; nobody does I/O under it
	keys map[string]*seenKey // at most maxSeen
}

// seenKey is what looks at one key saw.
type seenKey struct {
	first, last time.Time // looks
	open        map[string]run
	past        []run // at most mostBars, the newest last
}

// look adds a look at a key, and returns all that is known of it and since when.
func (s *seenRuns) look(info row, task func(queue, id, note string) task) (runs []run, first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of(info.Key, info.At)
	open, holds := map[string]run{}, map[string]bool{}
	for _, h := range info.Holders {
		r, known := k.open[h.Token]
		if !known {
			r = run{Task: task(h.Queue, h.Task, h.Note), Worker: h.Owner, Start: info.At.Add(info.late - info.held())} // not before the end that a look saw
			for _, waited := range k.open {
				if waited.Start.IsZero() && waited.Task == r.Task && r.Task.Text != "" {
					r.Came = waited.Came
				}
			}
		}
		open[h.Token], holds[r.Task.Text] = r, r.Task.Text != ""
	}
	for _, w := range info.Waiters {
		its := task(w.Queue, w.Task, w.Note)
		// Two that wait may have the same note, or none, and not the same time.
		open[its.Text+" "+strconv.FormatInt(w.Since.UnixNano(), 10)] = run{Task: its, Worker: w.Owner, Came: w.Since}
	}
	for id, r := range k.open {
		if _, still := open[id]; still || r.Start.IsZero() && holds[r.Task.Text] {
			continue // the wait of a holder is in its run
		}
		r.Open, r.End = false, k.last
		k.past = append(k.past, r)
	}
	k.past = k.past[max(0, len(k.past)-mostBars):]
	k.open, k.last = open, info.At
	for id, r := range open {
		r.Open, r.End = true, info.At
		open[id] = r
		runs = append(runs, r)
	}
	return append(runs, k.past...), k.first
}

// of is what is known of a key.
func (s *seenRuns) of(key string, now time.Time) *seenKey {
	if k := s.keys[key]; k != nil {
		return k
	}
	if s.keys == nil || len(s.keys) >= maxSeen {
		s.keys = map[string]*seenKey{} // rather than find out which one to forget
	}
	k := &seenKey{first: now, last: now}
	s.keys[key] = k
	return k
}

// joined is what the history of a key tells, and of what looks saw that which it does not tell, the newest first.
func joined(kept []history.Run, seen []run, taskOf func(note string) task) []run {
	all := make([]run, 0, len(kept)+len(seen))
	for _, r := range kept {
		all = append(all, run{Task: taskOf(r.Task), Worker: r.Worker, Outcome: r.Outcome, Came: r.Came, Start: r.Start, End: r.End})
	}
	for _, s := range seen {
		// What goes on is in no history yet: that was read before the look.
		if s.Open || !slices.ContainsFunc(all[:len(kept)], func(r run) bool {
			return r.Task == s.Task && r.Came.Before(s.End.Add(seenWithin)) && r.End.After(s.begin().Add(-seenWithin))
		}) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b run) int {
		return cmp.Or(b.End.Compare(a.End), b.begin().Compare(a.begin()), strings.Compare(a.Task.Text, b.Task.Text))
	})
	return all[:min(len(all), mostBars)]
}

// Sizes of the bars, in pixels. Widths are percentages, so that the picture fits every screen and its text keeps its size.
const (
	runHeight, waitHeight = 18, 7
	laneGap               = 3
	axisHeight            = 20
	mostLanes             = 30 // of runs, and of waits
	fewLanes              = 12 // more are lowHeight high
	lowHeight, lowGap     = 3, 1
	leastWidth            = 0.25 // percent

	// exactTo is how exact times are: the history is written by many processes, over a network. Bars that overlap by less
	// stand beside each other.
	exactTo = 20 * time.Millisecond
)

// bars is the picture of who ran when: a bar for each run and, below, for each wait. Those that overlap stand below
// each other.
type bars struct {
	Height, Floor, TickText int
	Marks                   []mark
	Ticks                   []tick
	From, To                time.Time // of the axis, which fits the bars
	Hidden                  int       // bars that no lane was left for
	Rows                    []run     // the runs, and the waits that are over, as a table, the newest first; the line has the others
	More                    int       // rows that are not shown

	now time.Time
}

// mark is a bar. It tells its Text when it is pointed at.
type mark struct {
	X, W        string
	Y, H        int // Y is the lane while the others are not known
	Class, Text string
}

// tick is a mark on the axis.
type tick struct {
	X, Text string
	Odd     bool // left out on a narrow screen
}

// newBars draws runs, which come the newest first; nil without any.
func newBars(runs []run, now time.Time) *bars {
	if len(runs) == 0 {
		return nil
	}
	b := &bars{From: runs[0].begin(), To: runs[0].End, now: now}
	for _, r := range runs {
		if r.begin().Before(b.From) {
			b.From = r.begin()
		}
		if r.End.After(b.To) {
			b.To = r.End
		}
		switch {
		case r.waits():
		case len(b.Rows) < mostShown:
			b.Rows = append(b.Rows, r)
		default:
			b.More++
		}
	}
	if b.To.Sub(b.From) < time.Second {
		b.To = b.From.Add(time.Second)
	}
	b.draw(runs, func(r run) (from, to time.Time) { return r.Start, r.End }, runHeight, "run")
	b.draw(runs, func(r run) (from, to time.Time) { return r.Came, cmp.Or(r.Start, r.End) }, waitHeight, "wait")
	b.Floor = b.Height
	b.TickText = b.Floor + axisHeight - 5
	b.Height += axisHeight
	b.ticks()
	return b
}

// draw draws the part of each run that span tells, in lanes below what was drawn before. A zero from is no such part.
func (b *bars) draw(runs []run, span func(run) (from, to time.Time), height int, class string) {
	runs = slices.DeleteFunc(slices.Clone(runs), func(r run) bool {
		from, to := span(r)
		return from.IsZero() || class == "wait" && !to.After(from)
	})
	slices.SortStableFunc(runs, func(x, y run) int { a, _ := span(x); b, _ := span(y); return a.Compare(b) })
	var lanes []time.Time // when each is free
	first := len(b.Marks)
	for _, r := range runs {
		from, to := span(r)
		lane := slices.IndexFunc(lanes, func(free time.Time) bool { return !free.After(from.Add(exactTo)) })
		if lane < 0 {
			if len(lanes) == mostLanes {
				b.Hidden++
				continue
			}
			lane = len(lanes)
			lanes = append(lanes, time.Time{})
		}
		lanes[lane] = to
		width := max(b.part(to.Sub(from)), leastWidth)
		b.Marks = append(b.Marks, mark{
			X: percent(min(b.part(from.Sub(b.From)), 100-width)), W: percent(width), Y: lane,
			Class: class + r.class(class), Text: r.text(),
		})
	}
	gap := laneGap
	if len(lanes) > fewLanes {
		height, gap = lowHeight, lowGap
	}
	for i := range b.Marks[first:] {
		m := &b.Marks[first+i]
		m.Y, m.H = b.Height+m.Y*(height+gap), height
	}
	b.Height += len(lanes) * (height + gap)
}

// class is what the part of a run looks like: how it ended is seen on its last part.
func (r run) class(part string) string {
	begins := func(with string) bool { return strings.HasPrefix(r.Outcome, with) }
	switch {
	case r.Open && r.Start.IsZero() == (part == "wait"):
		return " open"
	case part == "wait" && !r.Start.IsZero(), r.Outcome == "", begins("done") && !strings.Contains(r.Outcome, "lost"):
		return ""
	case begins("failed"), begins("archived"), begins("cut short"), strings.Contains(r.Outcome, "lost"):
		return " bad"
	}
	return " other"
}

// text says what a bar tells.
func (r run) text() string {
	text := cmp.Or(r.Task.Text, "no task")
	if r.Worker != "" {
		text += " on " + printable.Short(r.Worker)
	}
	text += "\n"
	if waited := r.Waited(); waited != "" {
		text += "waited " + waited + ", "
	}
	if !r.Start.IsZero() {
		text += "ran " + r.Ran() + " from " + r.Start.UTC().Format("15:04:05.000") + ", "
	}
	return text + r.Ended()
}

// Ended says how it ended.
func (r run) Ended() string {
	switch {
	case r.waits():
		return "waits"
	case r.Open:
		return "runs"
	}
	return printable.Short(cmp.Or(r.Outcome, "ended"))
}

// Waited is for how long it waited; empty: not known.
func (r run) Waited() string {
	switch {
	case r.Came.IsZero():
		return ""
	case r.Start.IsZero():
		return r.untilEnd(r.Came)
	}
	return printable.Duration(r.Start.Sub(r.Came))
}

// Ran is for how long it ran; empty: it did not.
func (r run) Ran() string {
	if r.Start.IsZero() {
		return ""
	}
	return r.untilEnd(r.Start)
}

// untilEnd is the time from begin to the end. The end of what looks alone saw is the last look that saw it.
func (r run) untilEnd(begin time.Time) string {
	text := printable.Duration(r.End.Sub(begin))
	if !r.Open && r.Outcome == "" {
		return "at least " + text
	}
	return text
}

// part is how much of the axis a time is, in percent.
func (b *bars) part(d time.Duration) float64 { return 100 * d.Seconds() / b.To.Sub(b.From).Seconds() }

func percent(part float64) string { return strconv.FormatFloat(part, 'f', 2, 64) + "%" }

// steps are the distances between two ticks.
var steps = []time.Duration{
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour,
	12 * time.Hour, 24 * time.Hour,
}

// dated reports whether times need their day.
func (b *bars) dated() bool {
	return b.To.Sub(b.From) >= 24*time.Hour || b.To.UTC().Day() != b.now.UTC().Day() || b.From.UTC().Day() != b.To.UTC().Day()
}

// Clock is a time, with its day if that is not today.
func (b *bars) Clock(t time.Time) string {
	if b.dated() {
		return t.UTC().Format("Jan 2 15:04:05")
	}
	return t.UTC().Format(time.TimeOnly)
}

// ticks are at most seven round times, none of them so near to an end that its text would not fit.
func (b *bars) ticks() {
	span, format, most, margin := b.To.Sub(b.From), "15:04:05", 7, 4.0 // percent
	if b.dated() && span > 10*time.Minute {
		format, most, margin = "Jan 2 15:04", 4, 12
	}
	step := span / time.Duration(most) // of what a wrong clock made longer than a week
	for _, s := range slices.Backward(steps) {
		if span <= time.Duration(most)*s {
			step = s
		}
	}
	switch {
	case step < time.Second:
		format = "15:04:05.0"
	case step >= time.Minute && most == 7:
		format = "15:04"
	}
	for at := b.From.Truncate(step); !at.After(b.To); at = at.Add(step) {
		if part := b.part(at.Sub(b.From)); part > margin && part < 100-margin {
			b.Ticks = append(b.Ticks, tick{X: percent(part), Text: at.UTC().Format(format), Odd: len(b.Ticks)%2 == 1})
		}
	}
}
