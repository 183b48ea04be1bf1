package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// summary is a record as it is written to a file: one line for each cell, with the values of
// all repetitions.
type summary struct {
	Machine machine
	Count   int
	Quick   bool
	Cells   []cell
}

// cell is what one entry did at one point of a scenario.
type cell struct {
	Scenario, Point, Entry string
	Runs                   []cellRun
}

// cellRun is one repetition of a cell. It has the digits that tables show.
type cellRun struct {
	Rep        int
	Values     map[string]rounded
	Unfinished bool `json:",omitempty"`
}

// rounded is written with six digits: no figure is more exact.
type rounded float64

func (v rounded) MarshalJSON() ([]byte, error) {
	short, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', 6, 64), 64)
	if err != nil {
		return nil, err
	}
	return json.Marshal(short)
}

// encode gives the text of the record's file.
func (r *record) encode() ([]byte, error) {
	type name [3]string
	var cells []*cell
	byName := map[name]*cell{}
	for _, x := range r.Samples {
		c := byName[name{x.Scenario, x.Point, x.Entry}]
		if c == nil {
			c = &cell{Scenario: x.Scenario, Point: x.Point, Entry: x.Entry}
			byName[name{x.Scenario, x.Point, x.Entry}] = c
			cells = append(cells, c)
		}
		run := cellRun{Rep: x.Rep, Values: map[string]rounded{}, Unfinished: x.Unfinished}
		for key, v := range x.Values {
			run.Values[key] = rounded(v)
		}
		c.Runs = append(c.Runs, run)
	}
	machine, err := json.Marshal(r.Machine)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"Machine\": %s,\n\"Count\": %d, \"Quick\": %t, \"Cells\": [", machine, r.Count, r.Quick)
	for i, c := range cells {
		line, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n%s", line)
	}
	b.WriteString("\n]}\n")
	return b.Bytes(), nil
}

// decode reads what encode has written.
func decode(text []byte) (*record, error) {
	var s summary
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	r := &record{Machine: s.Machine, Count: s.Count, Quick: s.Quick}
	for _, c := range s.Cells {
		for _, run := range c.Runs {
			x := sample{Scenario: c.Scenario, Point: c.Point, Entry: c.Entry, Rep: run.Rep, Values: values{}, Unfinished: run.Unfinished}
			for key, v := range run.Values {
				x.Values[key] = float64(v)
			}
			r.Samples = append(r.Samples, x)
		}
	}
	return r, nil
}
