package demo

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// foreign finds what a browser would fetch, and every URL in general.
var foreign = regexp.MustCompile(`(?i)https?:|//[a-z]|\b(src|href|srcset)\s*=|url\(|@import|<(script|link|iframe|img|object|embed)\b`)

func renderTest(t *testing.T, tl timeline) string {
	t.Helper()
	html, err := renderPage(tl, "a summary", "repository", "result: tasks=5")
	if err != nil {
		t.Fatal(err)
	}
	return string(html)
}

func TestPage_selfContained(t *testing.T) {
	html := renderTest(t, contended())
	if got := foreign.FindString(html); got != "" {
		t.Errorf("the page refers to something outside: %q", got)
	}
	for _, want := range []string{"<!DOCTYPE html>", "octo/hello", "acme/anvil", "a summary", "result: tasks=5", "event-20-60"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	// One bar and one place to point at for each of the five runs.
	if got := strings.Count(html, "<title>") - 1; got != 5 {
		t.Errorf("%d runs can be pointed at, want 5", got)
	}
	if greens, reds := strings.Count(html, `class="run"`), strings.Count(html, `class="over"`); greens != 4 || reds != 1 {
		t.Errorf("%d green and %d red bars, want 4 and 1", greens, reds)
	}
}

// drawTest draws a timeline, all of whose marks must lie in the picture.
func drawTest(t *testing.T, tl timeline) *picture {
	t.Helper()
	p := draw(tl)
	for i, m := range p.Marks {
		if m.X < 0 || m.Y < 0 || m.W <= 0 || m.H <= 0 || m.X+m.W > p.Width || m.Y+m.H > p.Height {
			t.Errorf("mark %d lies outside the picture of %g x %g: %+v", i, p.Width, p.Height, m)
		}
	}
	return p
}

func TestPage_parked(t *testing.T) {
	html := renderTest(t, called())
	for _, want := range []string{
		"at most 2 of one key at once", "<th>parked<", "<td>3<td>35ms<td>70ms", // octo/hello
		"<td>0<td>0s<td>0s", // acme/anvil
		"octo/hello\n2 tasks parked\nfrom 10ms to 35ms", "octo/hello\n1 task parked\n",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if got := foreign.FindString(html); got != "" {
		t.Errorf("the page refers to something outside: %q", got)
	}
	if html := renderTest(t, contended()); strings.Contains(html, "parked<") || strings.Contains(html, `class="parked"`) {
		t.Error("nothing was parked, and the page tells of it")
	}

	// Below the runs of the row, higher for two tasks than for one, and over the
	// same time as it was.
	p := drawTest(t, called())
	var runs, parked []mark
	for _, m := range p.Marks {
		switch {
		case strings.Contains(m.Text, "parked"):
			parked = append(parked, m)
		case strings.HasPrefix(m.Text, "octo/hello"):
			runs = append(runs, m)
		}
	}
	if len(runs) != 3 || len(parked) != 4 || strings.Count(html, `class="parked"`) != len(parked) {
		t.Fatalf("%d runs and %d times with tasks parked, want 3 and 4, and a bar for each:\n%v", len(runs), len(parked), parked)
	}
	for i, m := range parked {
		if m.Y < runs[0].Y+runs[0].H-0.01 {
			t.Errorf("what was parked (%+v) does not lie below the runs (%+v)", m, runs[0])
		}
		if two := i == 1 || i == 2; two != (m.H > 1.5*parked[0].H) {
			t.Errorf("heights of 1, 2, 2, 1 parked tasks: bar %d is %g high, the first %g", i, m.H, parked[0].H)
		}
	}
	last := parked[3]
	if scale := runs[0].W / 40; math.Abs(last.X-runs[0].X-40*scale) > 0.1 || math.Abs(last.W-40*scale) > 0.1 {
		t.Errorf("the last bar (%+v) does not go from 40 to 80 ms, where the run to 40 ms is %+v", last, runs[0])
	}
}

func TestPage_marksLieOnBars(t *testing.T) {
	p := drawTest(t, contended())
	// octo/hello is the first row: its marks lie above acme/anvil's.
	if first, last := p.Marks[0], p.Marks[4]; first.Y+first.H > last.Y {
		t.Errorf("the first row (%+v) does not lie above the second (%+v)", first, last)
	}
}

func TestPage_ticks(t *testing.T) {
	for span, want := range map[time.Duration]string{
		time.Millisecond: "0 0.0002 0.0004 0.0006 0.0008 0.001", 681 * time.Millisecond: "0 0.1 0.2 0.3 0.4 0.5 0.6",
		7 * time.Second: "0 1 2 3 4 5 6 7", 9 * time.Second: "0 2 4 6 8", 5 * time.Minute: "0 50 100 150 200 250 300",
	} {
		var texts []string
		for _, tick := range ticks(span, func(at time.Duration) float64 { return at.Seconds() / span.Seconds() }) {
			if texts = append(texts, tick.Text); tick.X < 0 || tick.X > 1 {
				t.Errorf("%s: the tick at %s lies outside of the axis", span, tick.Text)
			}
		}
		if got := strings.Join(texts, " "); got != want {
			t.Errorf("%s: ticks at %s, want %s", span, got, want)
		}
	}
}

func TestPage_hostileKeys(t *testing.T) {
	html := renderTest(t, newTimeline([]taskRun{at(`</title></svg><script>alert(1)</script>`, 0, 10), at("\x00\x1b", 0, 1)}, nil, 1, "nobody"))
	if strings.Contains(html, "<script") || strings.ContainsAny(html, "\x00\x1b") {
		t.Error("a key's text became markup")
	}
}

func TestPage_empty(t *testing.T) {
	if html := renderTest(t, newTimeline(nil, nil, 1, "nobody")); !strings.Contains(html, "<svg") {
		t.Error("no picture")
	}
}

func TestWritePage_error(t *testing.T) {
	file := filepath.Join(t.TempDir(), "missing", "page.html")
	if err := writePage(file, contended(), "", "", ""); err == nil || !strings.Contains(err.Error(), "-html") {
		t.Errorf("writing to a folder that isn't there: %v", err)
	}
	if err := probe(file); err == nil {
		t.Error("probe does not see that the file can't be written")
	}
	if err := probe(filepath.Join(t.TempDir(), "page.html")); err != nil {
		t.Errorf("probe: %v", err)
	}
	if err := probe(os.TempDir()); err == nil {
		t.Error("probe takes a folder for a file")
	}
}
