package demo

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// mostDrawn is how many keys the page's picture shows; its table has them all.
const mostDrawn = 100

// Sizes of the picture, in pixels of its view box.
const (
	pictureWidth = 900
	labelsEnd    = 205 // labels stand left of it, the time runs right of it
	marginRight  = 15
	marginTop    = 5
	axisHeight   = 45
	rowHeight    = 30
	bandHeight   = 24 // of a row, the rest is the gap
	parkedHeight = 9  // of a band, where any task was parked
	leastWidth   = 0.5
)

// picture is what page.html draws: a band for each key, and on it a bar for each run.
type picture struct {
	Width, Height      float64
	Left, Right, Floor float64 // where the time begins and ends, and where its axis lies
	Bands              []band
	Ticks              []tick
	Marks              []mark
	MostParked         int // tasks at once, of one key
}

// band is the ground of one key's bars.
type band struct {
	Y, H   float64
	Label  string
	LabelY float64 // of the text's base line
}

// tick is a mark on the axis.
type tick struct {
	X    float64
	Text string
}

// mark is a bar, which tells its Text when pointed at.
type mark struct {
	X, Y, W, H float64
	Class      string // run, over or parked
	Text       string
}

// draw makes the picture of a timeline.
func draw(t timeline) *picture {
	rows := t.rows[:min(mostDrawn, len(t.rows))]
	p := &picture{
		Width: pictureWidth, Height: float64(marginTop + rowHeight*max(1, len(rows)) + axisHeight),
		Left: labelsEnd, Right: pictureWidth - marginRight, Floor: float64(marginTop + rowHeight*max(1, len(rows))),
	}
	for _, r := range rows {
		p.MostParked = max(p.MostParked, r.parked.most())
	}
	span := max(t.span, time.Millisecond)
	x := func(at time.Duration) float64 {
		return p.Left + (p.Right-p.Left)*at.Seconds()/span.Seconds()
	}
	for i, r := range rows {
		top := float64(marginTop + i*rowHeight + (rowHeight-bandHeight)/2)
		p.Bands = append(p.Bands, band{Y: top, H: bandHeight, Label: shorten(r.label), LabelY: top + bandHeight*0.68})
		height := float64(bandHeight)
		if p.MostParked > 0 {
			height -= parkedHeight
			p.drawParked(r, x, top+bandHeight)
		}
		p.drawRuns(r, x, top, height)
	}
	p.Ticks = ticks(span, x)
	return p
}

// What page.html needs beside the fields.

// TimeWidth is how wide the part is that stands for time.
func (p *picture) TimeWidth() float64 { return p.Right - p.Left }

// LabelX is where labels end.
func (p *picture) LabelX() float64 { return p.Left - 6 }

// Middle is the middle of the axis.
func (p *picture) Middle() float64 { return (p.Left + p.Right) / 2 }

// TickEnd, TickText and Caption lie below each other, under the axis.
func (p *picture) TickEnd() float64  { return p.Floor + 5 }
func (p *picture) TickText() float64 { return p.Floor + 19 }
func (p *picture) Caption() float64  { return p.Floor + 38 }

// drawRuns draws each run of a row as a bar, overlapping ones below each other.
func (p *picture) drawRuns(r row, x func(time.Duration) float64, top, height float64) {
	lanes := 1
	for _, s := range r.stays {
		lanes = max(lanes, s.lane+1)
	}
	height /= float64(lanes)
	for _, s := range r.stays {
		class := "run"
		if s.depth > r.limit {
			class = "over"
		}
		p.mark(class, x(s.begin), x(s.end), top+height*float64(s.lane), height,
			fmt.Sprintf("%s\n%s %s\nfrom %s to %s, waited %s", printable(r.label), s.task, printable(s.kind), brief(s.begin), brief(s.end), brief(s.waited())))
	}
}

// drawParked draws how many tasks of a row were parked, upwards from floor.
func (p *picture) drawParked(r row, x func(time.Duration) float64, floor float64) {
	for _, l := range r.parked.levels() {
		height := parkedHeight * max(0.1, float64(l.tasks)/float64(p.MostParked)) // never too low to be seen
		tasks := "1 task"
		if l.tasks > 1 {
			tasks = fmt.Sprintf("%d tasks", l.tasks)
		}
		p.mark("parked", x(l.from), x(l.to), floor-height, height,
			fmt.Sprintf("%s\n%s parked\nfrom %s to %s", printable(r.label), tasks, brief(l.from), brief(l.to)))
	}
}

// mark adds a bar that is never too narrow to be seen, and never beyond the end.
func (p *picture) mark(class string, left, right, top, height float64, text string) {
	left = min(left, p.Right-leastWidth)
	p.Marks = append(p.Marks, mark{
		X: pixels(left), Y: pixels(top), W: pixels(max(right-left, leastWidth)), H: pixels(height), Class: class, Text: text,
	})
}

// pixels rounds to what can be seen, so that the page has no long numbers.
func pixels(f float64) float64 { return math.Round(f*100) / 100 }

// ticks are about eight round times in seconds, from 0 on.
func ticks(span time.Duration, x func(time.Duration) float64) (all []tick) {
	const most = 8
	step := math.Pow(10, math.Floor(math.Log10(span.Seconds()/most)))
	for _, factor := range []float64{2, 2.5, 2} { // 1, 2, 5, 10 times a power of ten
		if span.Seconds()/step > most {
			step *= factor
		}
	}
	for i := 0; float64(i)*step <= span.Seconds()*1.0001; i++ {
		at := float64(i) * step
		all = append(all, tick{X: pixels(x(time.Duration(at * float64(time.Second)))), Text: strconv.FormatFloat(at, 'g', 6, 64)})
	}
	return all
}
