package main

import (
	"bytes"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plotSpec says how a scenario is drawn: its first metric, by point.
type plotSpec struct {
	y   string // what the metric is, with its unit
	log bool
}

// palette has colours that differ also for those who do not see all of them. Those
// of one library share one; its settings have different marks.
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
	color.RGBA{230, 159, 0, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{90, 90, 90, 255}, color.RGBA{160, 120, 60, 255},
}

var marks = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.TriangleGlyph{}, draw.SquareGlyph{}, draw.CrossGlyph{}, draw.RingGlyph{}, draw.PyramidGlyph{}, draw.PlusGlyph{},
}

// draw makes an SVG: a mark for each median, with a line from the least to the
// greatest value. What was given up has no mark.
func (r *record) draw(s *scenario) ([]byte, error) {
	p := plot.New()
	p.Title.Text = s.name + ". " + s.title
	p.Y.Label.Text = s.plot.y
	p.Legend.Top = true
	p.Legend.YOffs = -vg.Points(4)
	p.Add(plotter.NewGrid())

	points := s.points(&bench{quick: r.Quick})
	labels, entries := r.drawn(s, points)
	p.NominalX(labels...)
	colours, settings := map[string]color.Color{}, map[string]int{}
	lowest, highest := math.Inf(1), 0.0
	for i, entry := range entries {
		name := shortName(entry)
		if colours[name] == nil {
			colours[name] = palette[len(colours)%len(palette)]
		}
		mark := marks[settings[name]%len(marks)]
		settings[name]++
		var data spreads
		x := 0
		for _, at := range points {
			if !r.has(s, at.label, "") {
				continue
			}
			if f, unfinished, ok := r.figure(s, at.label, entry, s.metrics[0].key); ok && !unfinished && (f.low > 0 || !s.plot.log) {
				// Beside each other within the point, in the order of the table.
				data = append(data, spreadAt{float64(x) + 0.8*(float64(i)+0.5)/float64(len(entries)) - 0.4, f})
				lowest, highest = min(lowest, f.low), max(highest, f.high)
			}
			x++
		}
		if len(data) == 0 {
			continue
		}
		bars, err := plotter.NewYErrorBars(data)
		if err != nil {
			return nil, err
		}
		dots, err := plotter.NewScatter(data)
		if err != nil {
			return nil, err
		}
		bars.Color = colours[name]
		dots.GlyphStyle = draw.GlyphStyle{Color: colours[name], Radius: vg.Points(3), Shape: mark}
		p.Add(bars, dots)
		p.Legend.Add(entry, dots)
	}
	return render(p, s, lowest, highest, len(labels))
}

// drawn returns the points and the entries that there are figures for.
func (r *record) drawn(s *scenario, points []point) (labels, entries []string) {
	for _, at := range points {
		if !r.has(s, at.label, "") {
			continue
		}
		labels = append(labels, at.label)
		for _, entry := range s.entries(at) {
			if !slices.Contains(entries, entry) && r.has(s, "", entry) {
				entries = append(entries, entry)
			}
		}
	}
	return labels, entries
}

// render sets the axes, whose values are between lowest and highest, and draws the plot.
func render(p *plot.Plot, s *scenario, lowest, highest float64, points int) ([]byte, error) {
	if s.plot.log && highest > 0 {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Min, p.Y.Max = lowest*0.8, highest*1.2
	} else {
		p.Y.Min = 0
	}
	p.X.Min, p.X.Max = -0.5, float64(max(1, points))-0.5

	// The legend has a column of its own, so that it covers nothing.
	const height = 11 * vg.Centimeter
	canvas := vgsvg.New(28*vg.Centimeter, height)
	all := draw.New(canvas)
	all.FillPolygon(color.White, []vg.Point{all.Min, {X: all.Max.X, Y: all.Min.Y}, all.Max, {X: all.Min.X, Y: all.Max.Y}})
	legend := p.Legend
	p.Legend = plot.NewLegend()
	p.Draw(draw.Crop(all, 0, -10*vg.Centimeter, vg.Points(6), -vg.Points(6)))
	legend.Left, legend.TextStyle.Font.Size, legend.Padding = true, vg.Points(9), vg.Points(3)
	legend.Draw(draw.Crop(all, 18.3*vg.Centimeter, 0, vg.Points(6), -vg.Points(30)))
	var b bytes.Buffer
	_, err := canvas.WriteTo(&b)
	return append(bytes.ReplaceAll(bytes.TrimSpace(b.Bytes()), []byte("\n"), []byte(" ")), '\n'), err // one line: nobody compares plots line by line
}

// spreads are the points of one entry, as plotter takes them.
type spreads []spreadAt

type spreadAt struct {
	x float64
	f spread
}

func (v spreads) Len() int                    { return len(v) }
func (v spreads) XY(i int) (float64, float64) { return v[i].x, v[i].f.median }
func (v spreads) YError(i int) (low, high float64) {
	return v[i].f.median - v[i].f.low, v[i].f.high - v[i].f.median
}
