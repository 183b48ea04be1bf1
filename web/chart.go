package web

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// chart is one picture of the last hour. The server draws it as SVG; a script draws the
// same numbers larger.
type chart struct {
	Title  string
	Width  int
	Height int
	Most   int
	From   time.Time
	To     time.Time
	Lines  []chartLine
	Data   string // JSON for the script: {"begin": seconds, "step": seconds, "lines": [[...]]}
	Empty  bool   // nobody looked within the hour, but for one slot
}

// leastSlots is the shortest time that a chart shows: five minutes.
const leastSlots = 30

type chartLine struct {
	Name   string
	Class  string
	Points []string // for polyline: one for each stretch that was seen
}

// newChart draws points, which end with slot now.
func newChart(title string, points []point, now int64, width, height int) chart {
	// The axis fits what was seen: it begins with the first point, some minutes back at least.
	first := 0
	for first < len(points)-leastSlots && !points[first].seen() {
		first++
	}
	points = points[first:]
	c := chart{Title: title, Width: width, Height: height, Empty: true}
	data := struct {
		Begin int64    `json:"begin"`
		Step  int      `json:"step"`
		Names []string `json:"names"`
		Lines [][]*int `json:"lines"`
	}{Begin: (now - int64(len(points)) + 1) * int64(slotLength.Seconds()), Step: int(slotLength.Seconds())}
	c.From, c.To = time.Unix(data.Begin, 0), time.Unix((now+1)*int64(data.Step), 0)
	for _, p := range points {
		if p.seen() {
			c.Most = max(c.Most, p.Held, p.Waiting, p.Parked)
		}
	}
	for _, l := range []struct {
		name, class string
		of          func(point) int
	}{
		{"held", "line-held", func(p point) int { return p.Held }},
		{"waiting", "line-waiting", func(p point) int { return p.Waiting }},
		{"parked", "line-parked", func(p point) int { return p.Parked }},
	} {
		line, values := chartLine{Name: l.name, Class: l.class}, make([]*int, len(points))
		var stretch []string
		for i, p := range points {
			if !p.seen() {
				line.Points, stretch = closeStretch(line.Points, stretch), nil
				continue
			}
			v := l.of(p)
			values[i] = &v
			stretch = append(stretch, coordinate(i, len(points)-1, width)+","+coordinate(max(c.Most, 1)-v, max(c.Most, 1), height))
		}
		if len(stretch) > 1 {
			c.Empty = false
		}
		line.Points = closeStretch(line.Points, stretch)
		c.Empty = c.Empty && len(line.Points) == 0
		c.Lines = append(c.Lines, line)
		data.Names, data.Lines = append(data.Names, l.name), append(data.Lines, values)
	}
	if encoded, err := json.Marshal(data); err == nil { // numbers and our own names: it cannot fail
		c.Data = string(encoded)
	}
	return c
}

// closeStretch ends a stretch of points. One alone is no line.
func closeStretch(all, stretch []string) []string {
	if len(stretch) < 2 {
		return all
	}
	return append(all, strings.Join(stretch, " "))
}

// coordinate is the place of n out of most on so many pixels, with a pixel of margin.
func coordinate(n, most, pixels int) string {
	return strconv.FormatFloat(1+float64(n)/float64(max(most, 1))*float64(pixels-2), 'f', 1, 64)
}

// spark is a small chart of one number: a point a minute.
func spark(points []point, width, height int, of func(point) int) chartLine {
	const minute = slots / 60
	values, most := make([]int, 0, 60), 1
	for i := 0; i+minute <= len(points); i += minute {
		value := unseen
		for _, p := range points[i : i+minute] {
			if p.seen() {
				value = max(value, of(p))
			}
		}
		values, most = append(values, value), max(most, value)
	}
	var line chartLine
	var stretch []string
	for i, v := range values {
		if v == unseen {
			line.Points, stretch = closeStretch(line.Points, stretch), nil
			continue
		}
		stretch = append(stretch, coordinate(i, len(values)-1, width)+","+coordinate(most-v, most, height))
	}
	line.Points = closeStretch(line.Points, stretch)
	return line
}
