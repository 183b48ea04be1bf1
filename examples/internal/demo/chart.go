package demo

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

const (
	plainWidth = 100 // columns where stdout is no terminal
	labelWidth = 28  // columns for a key at most
	mostRows   = 20  // the chart shows that many keys, and counts the others
)

var (
	styleHead = lipgloss.NewStyle().Bold(true)
	styleIdle = lipgloss.NewStyle().Faint(true)
	styleRun  = lipgloss.NewStyle().Foreground(lipgloss.Green)
	stylePark = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	styleOver = lipgloss.NewStyle().Foreground(lipgloss.BrightRed).Bold(true)
)

// screen is where results go, and what it can show.
type screen struct {
	out      io.Writer // stdout; ANSI sequences it can't show are left out
	width    int
	animated bool // stdout and stderr are terminals
}

// newScreen looks at stdout, $TERM and $NO_COLOR.
func newScreen(stdout, stderr io.Writer) screen {
	out, ok := stdout.(*os.File)
	if !ok || !term.IsTerminal(int(out.Fd())) {
		return screen{out: &colorprofile.Writer{Forward: stdout, Profile: colorprofile.NoTTY}, width: plainWidth}
	}
	profile := colorprofile.Detect(out, os.Environ())
	if os.Getenv("NO_COLOR") != "" {
		profile = colorprofile.NoTTY
	}
	width, _, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 {
		width = plainWidth
	}
	errFile, ok := stderr.(*os.File)
	return screen{
		out:      &colorprofile.Writer{Forward: stdout, Profile: profile},
		width:    min(max(width, 60), 200),
		animated: os.Getenv("TERM") != "dumb" && ok && term.IsTerminal(int(errFile.Fd())),
	}
}

// chart draws one line per key: time runs to the right, a block is a run, a
// digit is that many at once. Below it is one for what was parked, if anything
// was.
func chart(t timeline, what string, width int) string {
	rows := t.rows[:min(mostRows, len(t.rows))]
	widest := len("p50 wait")
	most := 0 // parked at once
	for _, r := range rows {
		widest = max(widest, ansi.StringWidth(shorten(r.label)))
		most = max(most, r.parked.most())
	}
	what = shorten(what)
	widest = max(widest, ansi.StringWidth(what))
	// Beside the time: the label, four numbers (the heads are as wide as they
	// get), and two columns between neighbours.
	cells := max(20, width-widest-len("  "+"  9999"+"  overlaps"+"  p50 wait"+"  p95 wait"))

	var over []bool // by line
	tab := table.New().
		Border(lipgloss.HiddenBorder()).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).
		BorderColumn(false).BorderHeader(false).
		Headers(what, axis(cells, t.span), "runs", "overlaps", "p50 wait", "p95 wait").
		StyleFunc(func(row, col int) lipgloss.Style {
			s := lipgloss.NewStyle()
			if row == table.HeaderRow {
				s = styleHead
			}
			if col > 1 {
				s = s.Align(lipgloss.Right)
			}
			if col > 0 {
				s = s.PaddingLeft(2)
			}
			if col == 3 && row >= 0 && over[row] {
				s = s.Inherit(styleOver)
			}
			return s
		})
	for _, r := range rows {
		pieces := r.cells(cells, t.span)
		over = append(over, r.overlaps > 0)
		tab.Row(shorten(r.label), paint(pieces, r.limit),
			strconv.Itoa(len(r.stays)), strconv.Itoa(r.overlaps), brief(r.p50), brief(r.p95))
		if n := len(r.parked); n > 0 {
			over = append(over, false)
			tab.Row(stylePark.Render("  parked"), stylePark.Render(hill(pieces, most)),
				strconv.Itoa(n), "", brief(r.parked.percentile(50)), brief(r.parked.percentile(95)))
		}
	}
	var b strings.Builder
	b.WriteString(tab.Render())
	b.WriteByte('\n')
	b.WriteString(restOf(t.rows[len(rows):]))
	fmt.Fprintf(&b, "\n%s one at a time (%s part of the time)   %s two at once, ...\nwait: from enqueue to start\n",
		styleRun.Render("█"), styleRun.Render("░▒▓"), paint([]cell{{depth: 2}}, t.limit))
	if most > 0 {
		fmt.Fprintf(&b, "%s tasks parked, %d at most; how many times; for how long (p50, p95)\n",
			stylePark.Render(strings.Join(heights, "")), most)
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
		runs += len(r.stays)
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
	var b strings.Builder
	for len(cells) > 0 {
		now, style := sign(cells[0]), styleOf(cells[0], limit)
		n := 1
		for n < len(cells) && sign(cells[n]) == now && styleOf(cells[n], limit).GetForeground() == style.GetForeground() {
			n++
		}
		b.WriteString(style.Render(strings.Repeat(now, n)))
		cells = cells[n:]
	}
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
	case c.busy > 0.75:
		return "█"
	case c.busy > 0.5:
		return "▓"
	case c.busy > 0.25:
		return "▒"
	default:
		return "░"
	}
}

// heights are the signs of hill, lowest first. A full block would be a run.
var heights = []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇"}

// hill is as high as many tasks were parked; most is the highest of all rows.
func hill(cells []cell, most int) string {
	var b strings.Builder
	for _, c := range cells {
		if c.parked == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteString(heights[(c.parked*len(heights)-1)/most])
	}
	return b.String()
}

func styleOf(c cell, limit int) lipgloss.Style {
	switch {
	case c.depth > limit:
		return styleOver
	case c.depth > 0:
		return styleRun
	default:
		return styleIdle
	}
}

// shorten makes a key fit for its column.
func shorten(label string) string {
	return ansi.Truncate(printable(label), labelWidth, "…")
}

// printable replaces what would disturb a terminal: payloads are not ours.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
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
