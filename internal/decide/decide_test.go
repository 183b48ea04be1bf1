package decide

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/decisions.txt and the table of docs/guide.md anew")

// table is a function as its tests see it.
type table struct {
	title  string
	facts  []heading
	rows   []string                            // the decision of each row
	ask    func(v values) (then string, i int) // the first row that fits
	wanted func(i, column int) uint32          // the values that row i asks for; 0: any
	// possible returns the values that are meant by some that cannot be.
	possible func(v values) values
}

func tableOf[D fmt.Stringer](title string, rows []row[D], possible func(values) values, facts ...heading) *table {
	t := &table{title: title, facts: facts, possible: possible}
	for _, r := range rows {
		t.rows = append(t.rows, r.then.String())
	}
	t.ask = func(v values) (string, int) {
		d, i := firstFit(rows, v)
		return d.String(), i
	}
	t.wanted = func(i, column int) (bits uint32) {
		for _, c := range rows[i].when {
			if c.column == column {
				bits |= c.oneOf
			}
		}
		return bits
	}
	return t
}

func tables() []*table {
	return []*table{
		tableOf("Start: a task is in a worker, and its handler has not started", startRows, func(v values) values { return situationOf(v).possible().values() },
			over.heading(), why.heading(), wish.heading(), parked.heading(), last.heading(), timeUp.heading()),
		tableOf("End: its handler has returned", endRows, func(v values) values { return resultOf(v).possible().values() },
			over.heading(), said.heading(), eLast.heading(), late.heading(), first.heading()),
		tableOf("Admit: a producer wants to enqueue a task for a key", admitRows, func(v values) values { return existingOf(v).possible().values() },
			until.heading(), duplicate.heading(), keep.heading(), claimed.heading(), task.heading(), begun.heading()),
	}
}

func situationOf(v values) Situation {
	return Situation{Over(v[0]), Why(v[1]), Wish(v[2]), v[3] == 1, v[4] == 1, v[5] == 1}
}

func resultOf(v values) Result {
	return Result{Over(v[0]), Said(v[1]), v[2] == 1, v[3] == 1, v[4] == 1}
}

func existingOf(v values) Existing {
	return Existing{Until(v[0]), Duplicate(v[1]), v[2] == 1, Claim(v[3]), Task(v[4]), v[5] == 1}
}

// each calls f with every combination that can be.
func (t *table) each(f func(values)) {
	var walk func(i int, v values)
	walk = func(i int, v values) {
		if i == len(t.facts) {
			if t.possible(v) == v {
				f(v)
			}
			return
		}
		for x := range t.facts[i].words {
			v[i] = uint8(x)
			walk(i+1, v)
		}
	}
	walk(0, values{})
}

// words names the values of a set, the shorter way.
func (h heading) some(bits uint32) string {
	var in, out []string
	for i, word := range h.words {
		if bits&(1<<i) != 0 {
			in = append(in, word)
		} else {
			out = append(out, word)
		}
	}
	switch {
	case len(in) == 0 || len(out) == 0:
		return "-"
	case len(in) > 2 && len(out) < len(in):
		return "not " + strings.Join(out, ", ")
	}
	return strings.Join(in, ", ")
}

// expand shows all combinations, fact by fact. Values of a fact that lead to the same decisions are one line.
func (t *table) expand() (lines [][]string) {
	var walk func(i int, v values) [][]string
	walk = func(i int, v values) [][]string {
		if i == len(t.facts) {
			then, row := t.ask(t.possible(v))
			return [][]string{{then, fmt.Sprint(row + 1)}}
		}
		type group struct {
			bits  uint32
			lines [][]string
		}
		var groups []group
		for x := range t.facts[i].words {
			v[i] = uint8(x)
			below := walk(i+1, v)
			same := slices.IndexFunc(groups, func(g group) bool { return fmt.Sprint(g.lines) == fmt.Sprint(below) })
			if same < 0 {
				same, groups = len(groups), append(groups, group{lines: below})
			}
			groups[same].bits |= 1 << x
		}
		var all [][]string
		for _, g := range groups {
			for _, line := range g.lines {
				all = append(all, append([]string{t.facts[i].some(g.bits)}, line...))
			}
		}
		return all
	}
	return walk(0, values{})
}

// Each row decides something, and each combination is decided: the last row asks for nothing.
func TestTables_haveNoDeadRow(t *testing.T) {
	for _, table := range tables() {
		used := make([]int, len(table.rows))
		table.each(func(v values) {
			_, i := table.ask(v)
			used[i]++
		})
		for i, n := range used {
			if n == 0 {
				t.Errorf("%s: row %d decides nothing: delete it", table.title, i+1)
			}
		}
		for column := range table.facts {
			if table.wanted(len(used)-1, column) != 0 {
				t.Errorf("%s: the last row asks for something, so some combination is not decided", table.title)
			}
		}
	}
}

// The rows, and what follows from them for every combination, are the golden file: read its changes.
func TestTables_golden(t *testing.T) {
	var b strings.Builder
	b.WriteString("The decisions of automutex, written by go test ./internal/decide -update. Read each change of this file.\n\"-\": it makes no difference. \"in 1-5 s\": under RetryIn, after its delay.\n")
	for _, table := range tables() {
		possible, used := 0, make([]int, len(table.rows))
		table.each(func(v values) {
			_, i := table.ask(v)
			used[i]++
			possible++
		})
		head := []string{"row"}
		for _, f := range table.facts {
			head = append(head, f.name)
		}
		lines := [][]string{append(slices.Clone(head), "decision", "situations")}
		for i, then := range table.rows {
			line := []string{fmt.Sprint(i + 1)}
			for column, f := range table.facts {
				line = append(line, f.some(table.wanted(i, column)))
			}
			lines = append(lines, append(line, then, fmt.Sprint(used[i])))
		}
		fmt.Fprintf(&b, "\n== %s\n\n%d situations can be. The first row that fits decides.\n\n%s", table.title, possible, aligned(lines))
		all := append([][]string{append(slices.Clone(head[1:]), "decision", "row")}, table.expand()...)
		fmt.Fprintf(&b, "\nAll of them, %d lines:\n\n%s", len(all)-1, aligned(all))
	}
	b.WriteString("\n== Start as a matrix: reasons and policies, not on the last attempt\n\n" + aligned(matrix()))
	golden(t, filepath.Join("testdata", "decisions.txt"), b.String())
}

// policies are those of package automutex, as Start sees them.
var policies = []struct {
	name string
	wish Wish
	park bool
}{
	{name: "Park", wish: WishBack, park: true}, {name: "Retry, RetryIn, Replace", wish: WishBack}, {name: "Skip", wish: WishDone},
	{name: "Archive", wish: WishArchive}, {name: "Fail", wish: WishSpend}, {name: "Allow", wish: WishRun},
}

func matrix() [][]string {
	lines := [][]string{{"why"}}
	for _, p := range policies {
		lines[0] = append(lines[0], p.name)
	}
	for w, word := range why.words {
		line := []string{word}
		for _, p := range policies {
			s := Situation{Why: Why(w), Wish: p.wish, Parked: p.park && Why(w) != Own}
			line = append(line, Start(s.possible()).String())
		}
		lines = append(lines, line)
	}
	return lines
}

func aligned(lines [][]string) string {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			fmt.Fprintf(&text, "%-*s  ", widths[i], cell)
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	return b.String()
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s is out of date: run go test ./internal/decide -update, and read the difference", path)
	}
}

// One list says which of several reasons counts.
func TestStrongest(t *testing.T) {
	for _, c := range []struct {
		reasons []Why
		want    Why
	}{
		{nil, Nothing},
		{[]Why{Held, Rate}, Rate},
		{[]Why{Rate, Own}, Own},
		{[]Why{Cooldown, OwnRate}, OwnRate},
		{[]Why{Held, Paused, Closed}, Paused},
		{[]Why{NoAnswer, KeyNever, KeyLater}, KeyNever},
	} {
		if got := Strongest(c.reasons...); got != c.want {
			t.Errorf("%v: %d, want %d", c.reasons, got, c.want)
		}
	}
}
