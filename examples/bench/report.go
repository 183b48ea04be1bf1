package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

const (
	reportFile = "RESULTS.md"
	recordFile = "results.json"
)

// reportTemplate is the report with what people have to say about the figures.
//
//go:embed results.md.tmpl
var reportTemplate string

// print writes the tables for a terminal.
func (r *record) print(w io.Writer) error {
	var b strings.Builder
	for _, s := range scenarios {
		if !r.has(s, "") {
			continue
		}
		fmt.Fprintf(&b, "\n%s. %s\n\n%s\n", s.name, s.title, r.table(s, false).Render())
	}
	fmt.Fprintf(&b, "\nWhat is to be reached\n\n%s\n\n%s\n", r.goalsTable(false).RenderMarkdown(), r.machineLine())
	if r.Quick {
		b.WriteString("A quick pass: these figures say that everything runs, and nothing more.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// write writes the report and the figures themselves into a folder.
func (r *record) write(dir string) error {
	report, err := r.markdown()
	if err != nil {
		return fmt.Errorf("bench: the report: %w", err)
	}
	figures, err := r.encode()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{reportFile: report, recordFile: figures} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	return nil
}

func (r *record) markdown() ([]byte, error) {
	funcs := template.FuncMap{
		"machine": r.machineLine,
		"peers":   func() string { return strings.Join(r.Machine.Peers, ", ") },
		"count":   func() int { return r.Count },
		"quick":   func() bool { return r.Quick },
		"goals":   func() string { return r.goalsTable(true).RenderMarkdown() },
		"scenarios": func() (done []*scenario) {
			for _, s := range scenarios {
				if r.has(s, "") {
					done = append(done, s)
				}
			}
			return done
		},
		"name":  func(s *scenario) string { return s.name },
		"title": func(s *scenario) string { return s.title },
		"about": func(s *scenario) string { return s.about },
		"table": func(s *scenario) string { return r.table(s, true).RenderMarkdown() },
	}
	t, err := template.New(reportFile).Funcs(funcs).Parse(reportTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, nil)
	return b.Bytes(), err
}

func (r *record) machineLine() string {
	m := r.Machine
	return fmt.Sprintf("%s, %d cores (%s), Redis %s on loopback, Go %s, %s", m.CPU, m.Cores, m.OS, m.Redis, m.Go, m.Date)
}

// table has a row for each entry at each point. With ranges the figures stand
// beside their least and greatest values.
func (r *record) table(s *scenario, ranges bool) table.Writer {
	t := newTable()
	header := table.Row{"", ""}
	columns := []table.ColumnConfig{{Number: 1, AutoMerge: !ranges}}
	column := func(title string) {
		header = append(header, title)
		columns = append(columns, table.ColumnConfig{Number: len(header), Align: text.AlignRight})
	}
	column(s.metrics[0].title)
	b := &bench{quick: r.Quick}
	points := s.points(b)
	toBase := points[0].base != ""
	if toBase {
		column("of that with one")
	}
	for _, ref := range s.refs {
		column("of " + shortName(ref))
	}
	for _, m := range s.metrics[1:] {
		column(m.title)
	}
	t.AppendHeader(header)
	t.SetColumnConfigs(columns)
	for i, p := range points {
		if i > 0 && !ranges {
			t.AppendSeparator()
		}
		for _, entry := range s.entries(p) {
			if row := r.row(s, p, entry, toBase, ranges); row != nil {
				t.AppendRow(row)
			}
		}
	}
	return t
}

// row is the row of an entry at a point; nil when there is no figure. toBase: the table
// has a column for the ratio to another point.
func (r *record) row(s *scenario, p point, entry string, toBase, ranges bool) table.Row {
	first := s.metrics[0]
	f, unfinished, ok := r.figure(s, p.label, entry, first.key)
	if !ok {
		return nil
	}
	cell := show(f, first.digits, unfinished, ranges)
	if ranges && f.n < r.Count {
		cell += fmt.Sprintf(" [%d of %d]", f.n, r.Count)
	}
	row := table.Row{p.label, entry, cell}
	ratio := func(point, to string) {
		f, unfinished, ok := r.ratio(s, p.label, entry, first.key, point, to)
		cell := ""
		if ok {
			cell = show(f, 2, unfinished, ranges)
		}
		row = append(row, cell)
	}
	if toBase {
		ratio(p.base, entry)
	}
	for _, ref := range s.refs {
		ratio(p.label, ref)
	}
	for _, m := range s.metrics[1:] {
		f, _, ok := r.figure(s, p.label, entry, m.key)
		cell := ""
		if ok && (!unfinished || countsAnyway[m.key]) {
			cell = show(f, m.digits, false, ranges)
		}
		row = append(row, cell)
	}
	return row
}

// countsAnyway are the metrics that mean something also where a cell was given up.
var countsAnyway = map[string]bool{"done": true, "overlaps": true, "vain": true, "commands": true}

// shortName is a reference's name without its setting.
func shortName(entry string) string {
	name, _, _ := strings.Cut(entry, ", ")
	return name
}

func (r *record) goalsTable(causes bool) table.Writer {
	t := newTable()
	header := table.Row{"", "", "", "to reach", "measured", "by", "", "best peer", "its name"}
	if causes {
		header = append(header, "why it is short")
	}
	t.AppendHeader(header)
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 4, Align: text.AlignRight}, {Number: 5, Align: text.AlignRight}, {Number: 8, Align: text.AlignRight}})
	for _, v := range r.judge() {
		g := v.goal
		bound, mark, cause, peer := "≤ ", "short", g.cause, ""
		if g.atLeast {
			bound = "≥ "
		}
		if v.reached {
			mark, cause = "reached", ""
		}
		if v.peer != "" {
			peer = show(v.peerGot, g.digits, false, false)
		}
		row := table.Row{g.s.name, v.point, g.what, bound + strconv.FormatFloat(g.limit, 'f', -1, 64), show(v.got, g.digits, false, causes), v.by, mark, peer, v.peer}
		if causes {
			row = append(row, cause)
		}
		t.AppendRow(row)
	}
	return t
}

func newTable() table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	style.Options.DrawBorder = false
	t.SetStyle(style)
	return t
}

// show writes a figure: its median, and where it was measured more than once the
// range. An unfinished one is a bound.
func show(f spread, digits int, unfinished, ranges bool) string {
	n := func(v float64) string { return withCommas(strconv.FormatFloat(v, 'f', digits, 64)) }
	cell := n(f.median)
	if unfinished {
		cell = "> " + cell
	}
	if ranges && f.low != f.high {
		cell += " (" + n(f.low) + " to " + n(f.high) + ")"
	}
	return cell
}

// withCommas writes 12345.6 as 12,345.6.
func withCommas(number string) string {
	whole, rest, _ := strings.Cut(number, ".")
	if rest != "" {
		rest = "." + rest
	}
	n, err := strconv.Atoi(whole)
	if err != nil || strings.HasPrefix(number, "-") {
		return number // no plain number, or below 0: as it is
	}
	return grouped(n) + rest
}
