package web

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// Who ran when, on one key: a picture, and the same as a table. Times are by Redis' clock.

// mostBars is how many runs and waits of a key are read of its history, and drawn.
const mostBars = 200

// run is a run of a task, a wait, or both: the history of the key tells of it, or it goes on.
type run struct {
	Task            task
	Worker, Outcome string
	Came            time.Time // when it came to the lock; zero: not known
	Start           time.Time // when its handler started; zero: it did not
	End             time.Time // if it goes on: the look
	Open            bool      // it goes on
}

func (r run) begin() time.Time { return cmp.Or(r.Came, r.Start) }

// waits reports whether the run has not begun: the line of the key shows it.
func (r run) waits() bool { return r.Open && r.Start.IsZero() }

// runsOf is what the history of a key tells, which was read before the look, and what goes on, the newest first. Of
// several holders it is not known when they began.
func (p *page) runsOf(kept []history.Run, look row) []run {
	all := make([]run, 0, len(kept)+len(look.Waiters)+1)
	for _, r := range kept {
		all = append(all, run{Task: p.task(inspect.WorkOf(r.Task)), Worker: r.Worker, Outcome: r.Outcome, Came: r.Came,
			Start: r.Start, End: r.End})
	}
	if look.held() > 0 {
		h := look.Holders[0]
		all = append(all, run{Task: p.task(h.Work), Worker: h.Owner, Start: look.At.Add(-look.held()), End: look.At,
			Open: true})
	}
	for _, w := range look.Waiters {
		all = append(all, run{Task: p.task(w.Work), Worker: w.Owner, Came: w.Since, End: look.At, Open: true})
	}
	slices.SortFunc(all, func(a, b run) int {
		return cmp.Or(b.End.Compare(a.End), b.begin().Compare(a.begin()), strings.Compare(a.Task.Text, b.Task.Text))
	})
	return all[:min(len(all), mostBars)]
}

// Sizes of the bars, in pixels. Widths are percentages, so that the picture fits every screen and its text keeps its
// size.
const (
	runHeight, waitHeight = 18, 7
	laneGap               = 3
	axisHeight            = 20
	mostLanes             = 30   // of runs, and of waits
	leastWidth            = 0.25 // percent

	// exactTo is what clocks may drift during a run. Bars that overlap by less stand beside each other.
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
	// the runs, and the waits that are over, as a table, the newest first; the line has the others
	Rows []run
	More int // rows that are not shown

	now time.Time
}

// mark is a bar. It tells its Text when it is pointed at.
type mark struct {
	X, W        string
	Y, H        int
	Class, Text string
}

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
			X: percent(min(b.part(from.Sub(b.From)), 100-width)), W: percent(width),
			Y: b.Height + lane*(height+laneGap), H: height, Class: class + r.class(class), Text: r.text(),
		})
	}
	b.Height += len(lanes) * (height + laneGap)
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
	if r.Came.IsZero() {
		return ""
	}
	return printable.Duration(cmp.Or(r.Start, r.End).Sub(r.Came))
}

// Ran is for how long it ran; empty: it did not.
func (r run) Ran() string {
	if r.Start.IsZero() {
		return ""
	}
	return printable.Duration(r.End.Sub(r.Start))
}

// part is how much of the axis a time is, in percent.
func (b *bars) part(d time.Duration) float64 { return 100 * d.Seconds() / b.To.Sub(b.From).Seconds() }

func percent(part float64) string { return strconv.FormatFloat(part, 'f', 2, 64) + "%" }

// steps are the distances between two ticks.
var steps = []time.Duration{
	200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

func (b *bars) dated() bool {
	return b.To.Sub(b.From) >= 24*time.Hour || b.To.UTC().Day() != b.now.UTC().Day() ||
		b.From.UTC().Day() != b.To.UTC().Day()
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
