package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/automutex/automutex/internal/printable"
)

// table prints columns. The last cell of a row is followed by no spaces.
type table struct{ *tabwriter.Writer }

func newTable(out io.Writer, header ...string) table {
	t := table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	if len(header) > 0 {
		t.row(header...)
	}
	return t
}

func (t table) row(cells ...string) {
	line := make([]string, len(cells))
	for i, cell := range cells {
		line[i] = printable.Text(cell) // has no tab and no end of a line
	}
	_, _ = io.WriteString(t, strings.Join(line, "\t")+"\n") // Flush gives the error
}

// printAll prints a list: as JSON, an object a line, or as a table with rows for each.
func printAll[T any](out io.Writer, list []T, asJSON bool, header []string, rows func(T) [][]string) error {
	t := newTable(out, header...)
	for _, v := range list {
		if asJSON {
			if err := printJSON(out, v); err != nil {
				return err
			}
			continue
		}
		for _, row := range rows(v) {
			t.row(row...)
		}
	}
	if asJSON {
		return nil
	}
	return t.Flush()
}

// printJSON writes v on one line.
func printJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// say prints to stdout.
func (a *app) say(format string, args ...any) error {
	_, err := fmt.Fprintf(a.out, format, args...)
	return err
}
