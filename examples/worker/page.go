package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// mostDrawn is how many keys the page's picture shows; its table has them all.
const mostDrawn = 100

//go:embed page.html
var pageSource string

var pageTemplate = template.Must(template.New("page").Parse(pageSource))

var (
	amber = color.RGBA{R: 0xf2, G: 0xc1, B: 0x4e, A: 0xff}
	green = color.RGBA{R: 0x2e, G: 0x9e, B: 0x5b, A: 0xff}
	red   = color.RGBA{R: 0xd6, G: 0x45, B: 0x45, A: 0xff}
	grey  = color.RGBA{R: 0xee, G: 0xee, B: 0xee, A: 0xff}
)

// page is what page.html shows.
type page struct {
	Summary, What, Result string
	Limit, Hidden         int
	Parked                int           // times; the page tells of parked tasks when there were any
	MostParked            int           // at once, of one key
	Picture               template.HTML // made by vgsvg, which escapes what it is given
	Width, Height         float64
	Marks                 []mark
	Rows                  []pageRow
}

// mark is a place in the picture that tells of its run, or of what was parked,
// when pointed at.
type mark struct {
	X, Y, W, H float64
	Text       string
}

type pageRow struct {
	Label                string
	Runs, Overlaps       int
	P50, P95             string
	Parked               int
	ParkedP50, ParkedP95 string
}

// writePage writes the timeline as one page that needs nothing else: no
// script, no font, no style sheet from elsewhere.
func writePage(file string, t timeline, summary, what, result string) error {
	html, err := renderPage(t, summary, what, result)
	if err != nil {
		return fmt.Errorf("-html: making the page: %w", err)
	}
	if err := os.WriteFile(file, html, 0o644); err != nil {
		return fmt.Errorf("-html: %w", err)
	}
	return nil
}

func renderPage(t timeline, summary, what, result string) ([]byte, error) {
	p := page{Summary: summary, What: what, Result: result, Limit: t.limit, Hidden: max(0, len(t.rows)-mostDrawn), Parked: len(t.parked)}
	for _, r := range t.rows {
		p.Rows = append(p.Rows, pageRow{
			Label: printable(r.label), Runs: len(r.stays), Overlaps: r.overlaps, P50: brief(r.p50), P95: brief(r.p95),
			Parked: len(r.parked), ParkedP50: brief(r.parked.percentile(50)), ParkedP95: brief(r.parked.percentile(95)),
		})
	}
	if err := p.draw(t); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// draw makes the picture and its marks.
func (p *page) draw(t timeline) error {
	b := &bars{rows: t.rows[:min(mostDrawn, len(t.rows))]}
	names := make([]string, len(b.rows))
	for i, r := range b.rows {
		names[b.height(i)] = shorten(r.label)
		b.mostParked = max(b.mostParked, r.parked.most())
	}
	p.MostParked = b.mostParked
	chart := plot.New()
	chart.X.Label.Text = "seconds since the start"
	chart.X.Max = max(t.span.Seconds(), 0.001)
	chart.Y.Min, chart.Y.Max = -0.5, float64(max(1, len(names)))-0.5
	if len(names) > 0 {
		chart.NominalY(names...)
	}
	chart.X.Tick.Label.Font.Variant = "Sans"
	chart.Y.Tick.Label.Font.Variant = "Sans"
	chart.X.Label.TextStyle.Font.Variant = "Sans"
	chart.Add(b)

	width, height := 900*vg.Points(1), vg.Length(60+30*max(1, len(names)))
	canvas := vgsvg.New(width, height)
	chart.Draw(draw.New(canvas))
	var svg strings.Builder
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Within a page, svg needs neither the XML declaration nor the namespaces.
	_, element, found := strings.Cut(svg.String(), "<svg")
	if !found {
		return errors.New("the drawing has no svg element")
	}
	for _, space := range []string{`xmlns="http://www.w3.org/2000/svg"`, `xmlns:xlink="http://www.w3.org/1999/xlink"`} {
		element = strings.Replace(element, space, "", 1)
	}
	p.Picture = template.HTML("<svg" + strings.ReplaceAll(element, "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,sans-serif"))
	p.Width, p.Height = width.Points(), height.Points()
	p.Marks = b.marks
	for i := range p.Marks {
		p.Marks[i].Y = p.Height - p.Marks[i].Y // plots count from below
	}
	return nil
}

// bars is a plot.Plotter that draws each run as a bar on the line of its key,
// overlapping ones below each other, and under them how many tasks were parked,
// if any were. It notes where they came to lie.
type bars struct {
	rows       []row
	mostParked int // at once, of one key
	marks      []mark
}

// How much of a row's height is used, and how much of that by what was parked.
const (
	thick       = 0.8
	thickParked = 0.3
)

// height is the place of a row on the Y axis: the first is on top.
func (b *bars) height(i int) int { return len(b.rows) - 1 - i }

// Plot implements plot.Plotter.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i, r := range b.rows {
		top := float64(b.height(i)) + thick/2
		fill(c, grey, c.Min.X, c.Max.X, y(top), y(top-thick))
		thick := thick // what is left of it for the runs
		if b.mostParked > 0 {
			b.plotParked(c, x, y, r, top-thick)
			thick -= thickParked
		}
		lanes := 1
		for _, s := range r.stays {
			lanes = max(lanes, s.lane+1)
		}
		for _, s := range r.stays {
			paint := color.Color(green)
			if s.depth > r.limit {
				paint = red
			}
			from := top - thick*float64(s.lane)/float64(lanes)
			left, right := x(s.begin.Seconds()), x(s.end.Seconds())
			right = max(right, left+vg.Points(0.5)) // never too narrow to be seen
			bottom := y(from - thick/float64(lanes))
			fill(c, paint, left, right, y(from), bottom)
			b.marks = append(b.marks, mark{
				X: left.Points(), Y: y(from).Points(),
				W: (right - left).Points(), H: (y(from) - bottom).Points(),
				Text: fmt.Sprintf("%s\n%s %s\nfrom %s to %s, waited %s", printable(r.label), s.task, printable(s.kind),
					brief(s.begin), brief(s.end), brief(s.waited())),
			})
		}
	}
}

// plotParked draws how many tasks of a row were parked, upwards from base.
func (b *bars) plotParked(c draw.Canvas, x, y func(float64) vg.Length, r row, base float64) {
	for _, l := range r.parked.levels() {
		left, right := x(l.from.Seconds()), x(l.to.Seconds())
		share := max(0.1, float64(l.tasks)/float64(b.mostParked)) // never too low to be seen
		top := y(base + thickParked*share)
		fill(c, amber, left, right, top, y(base))
		if right-left < vg.Points(1) {
			continue // nobody can point at it
		}
		tasks := "1 task"
		if l.tasks > 1 {
			tasks = fmt.Sprintf("%d tasks", l.tasks)
		}
		b.marks = append(b.marks, mark{
			X: left.Points(), Y: top.Points(),
			W: (right - left).Points(), H: (top - y(base)).Points(),
			Text: fmt.Sprintf("%s\n%s parked\nfrom %s to %s", printable(r.label), tasks, brief(l.from), brief(l.to)),
		})
	}
}

func fill(c draw.Canvas, paint color.Color, left, right, top, bottom vg.Length) {
	c.FillPolygon(paint, []vg.Point{{X: left, Y: top}, {X: right, Y: top}, {X: right, Y: bottom}, {X: left, Y: bottom}})
}
