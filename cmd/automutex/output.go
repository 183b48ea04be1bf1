package main

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/clipperhouse/displaywidth"

	"github.com/automutex/automutex/internal/printable"
)

// table prints columns as wide as their cells are on a terminal, where a Chinese
// character takes two columns and a combining one none. Rows are kept until flush.
type table struct {
	out    io.Writer
	rows   [][]string
	widths []int // by column
}

func newTable(out io.Writer, header ...string) *table {
	t := &table{out: out}
	if len(header) > 0 {
		t.row(header...)
	}
	return t
}

func (t *table) row(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = printable.Text(cell)
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		t.widths[i] = max(t.widths[i], displaywidth.String(row[i]))
	}
	t.rows = append(t.rows, row)
}

// flush prints the rows. The last cell of a row is followed by no spaces.
func (t *table) flush() error {
	const gap = 2
	var b strings.Builder
	for _, row := range t.rows {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-displaywidth.String(cell)+gap))
			}
		}
		b.WriteByte('\n')
	}
	t.rows, t.widths = nil, nil
	_, err := io.WriteString(t.out, b.String())
	return err
}

// printAll prints a list: as JSON, an object a line, or as a table with a row for each.
func printAll[T any](out io.Writer, list []T, asJSON bool, header []string, row func(T) []string) error {
	t := newTable(out, header...)
	for _, v := range list {
		if !asJSON {
			t.row(row(v)...)
		} else if err := printJSON(out, v); err != nil {
			return err
		}
	}
	if asJSON {
		return nil
	}
	return t.flush()
}

// printJSON writes v on one line.
func printJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
