package demo

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
)

//go:embed page.html
var pageSource string

var pageTemplate = template.Must(template.New("page").Parse(pageSource))

// page is what page.html shows.
type page struct {
	Summary, What, Result string
	Limit, Hidden         int
	Parked                int // times; the page tells of parked tasks when there were any
	Picture               *picture
	Rows                  []pageRow
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
	p := page{
		Summary: summary, What: what, Result: result, Limit: t.limit,
		Hidden: max(0, len(t.rows)-mostDrawn), Parked: len(t.parked), Picture: draw(t),
	}
	for _, r := range t.rows {
		p.Rows = append(p.Rows, pageRow{
			Label: printable(r.label), Runs: len(r.stays), Overlaps: r.overlaps, P50: brief(r.p50), P95: brief(r.p95),
			Parked: len(r.parked), ParkedP50: brief(r.parked.percentile(50)), ParkedP95: brief(r.parked.percentile(95)),
		})
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
