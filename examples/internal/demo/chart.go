package demo

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/automutex/automutex/internal/printable"
)

const (
	plainWidth = 100 // columns where stdout is no terminal
	labelWidth = 28  // columns for a key at most
	mostRows   = 20  // the chart shows that many keys, and counts the others
)

// look gives a text the colour of its class: run, over (beyond the limit), parked, idle, head, or none.
func look(class, text string) string {
	codes := map[string]string{"head": "1", "idle": "2", "run": "32", "parked": "33", "over": "1;91"}
	if codes[class] == "" {
		return text
	}
	return "\x1b[" + codes[class] + "m" + text + "\x1b[m"
}

// chart draws one line per key: time runs to the right, a block is a run, a
// digit is that many at once. Below it is one for what was parked, if anything
// was.
func chart(rows []row, what string, width int) string {
	shown := rows[:min(mostRows, len(rows))]
	what = shorten(what)
	widest, span := max(len("  parked"), ansi.StringWidth(what)), time.Duration(0)
	for _, r := range rows {
		for _, s := range append(r.runs[:len(r.runs):len(r.runs)], r.parked...) {
			span = max(span, s.to)
		}
	}
	for _, r := range shown {
		widest = max(widest, ansi.StringWidth(shorten(r.label)))
	}
	// Beside the time: the label, four numbers (the heads are as wide as they
	// get), and two columns between neighbours.
	n := max(20, width-widest-len("  "+"  9999"+"  overlaps"+"  p50 wait"+"  p95 wait"))
	most := 0 // parked at once
	hills := make([][]cell, len(shown))
	for i, r := range shown {
		hills[i] = cells(r.parked, n, span)
		for _, c := range hills[i] {
			most = max(most, c.depth)
		}
	}
	var b strings.Builder
	line := func(class, label, time string, numbers ...string) {
		b.WriteString(look(class, label+strings.Repeat(" ", widest-ansi.StringWidth(label))) + "  " + time)
		for i, head := range []string{"9999", "overlaps", "p50 wait", "p95 wait"} {
			class := class
			if i == 1 && numbers[i] != "0" && class == "" {
				class = "over"
			}
			b.WriteString("  " + look(class, fmt.Sprintf("%*s", len(head), numbers[i])))
		}
		b.WriteByte('\n')
	}
	line("head", what, look("head", axis(n, span)), "runs", "overlaps", "p50 wait", "p95 wait")
	for i, r := range shown {
		line("", shorten(r.label), paint(cells(r.runs, n, span), r.limit),
			strconv.Itoa(len(r.runs)), strconv.Itoa(r.overlaps), brief(r.p50), brief(r.p95))
		if times := len(r.parked); times > 0 {
			line("parked", "  parked", look("parked", hill(hills[i], most)), strconv.Itoa(times), "", brief(r.away50), brief(r.away95))
		}
	}
	b.WriteString(look("", restOf(rows[len(shown):])))
	fmt.Fprintf(&b, "\n%s one at a time (%s part of the time)   %s two at once, ...\nwait: from enqueue to start\n", look("run", "█"), look("run", "░▒▓"), look("over", "2"))
	if most > 0 {
		fmt.Fprintf(&b, "%s tasks parked, %d at most; how many times; for how long (p50, p95)\n", look("parked", strings.Join(heights, "")), most)
	}
	return b.String()
}

// restOf is the line about keys that have no row; empty when there are none.
func restOf(rest []row) string {
	if len(rest) == 0 {
		return ""
	}
	runs, overlaps, parked := 0, 0, 0
	for _, r := range rest {
		runs += len(r.runs)
		overlaps += r.overlaps
		parked += len(r.parked)
	}
	line := fmt.Sprintf("and %d more keys with %d runs, %d overlaps", len(rest), runs, overlaps)
	if parked > 0 {
		line += fmt.Sprintf(", parked %d times", parked)
	}
	return line + "\n"
}

// axis is the head of the time column: 0 on the left, the end on the right.
func axis(cells int, span time.Duration) string {
	left, right := "0 ", " "+brief(span)
	return left + strings.Repeat("─", max(0, cells-len(left)-len(right))) + right
}

// paint gives each cell its sign, and depths beyond limit their own colour.
func paint(cells []cell, limit int) string {
	var b, piece strings.Builder
	class := ""
	flush := func(next string) {
		if class != next && piece.Len() > 0 {
			b.WriteString(look(class, piece.String()))
			piece.Reset()
		}
		class = next
	}
	for _, c := range cells {
		switch {
		case c.depth > limit:
			flush("over")
		case c.depth > 0:
			flush("run")
		default:
			flush("idle")
		}
		piece.WriteString(sign(c))
	}
	flush("")
	return b.String()
}

// sign is a block for one run at a time, the darker the busier the cell, and a
// digit for several at once.
func sign(c cell) string {
	switch {
	case c.depth > 9:
		return "+"
	case c.depth > 1:
		return strconv.Itoa(c.depth)
	case c.depth == 0:
		return "·"
	}
	return []string{"░", "▒", "▓", "█"}[max(0, min(3, int(math.Ceil(c.busy*4))-1))]
}

// heights are the signs of hill, lowest first. A full block would be a run.
var heights = []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇"}

// hill is as high as many tasks were parked; most is the highest of all rows.
func hill(cells []cell, most int) string {
	var b strings.Builder
	for _, c := range cells {
		if c.depth == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteString(heights[(c.depth*len(heights)-1)/most])
	}
	return b.String()
}

// shorten makes a key fit for its column.
func shorten(label string) string {
	return ansi.Truncate(printable.Text(label), labelWidth, "…")
}

// brief gives a duration in at most 8 columns.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
