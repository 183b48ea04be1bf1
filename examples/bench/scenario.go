package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scenario is one question, put to several entries at several points.
type scenario struct {
	name  string // a letter, which -only takes
	title string
	about string // for the report: what is done, and what the columns are
	// metrics are what a cell measures; the first is what it is about, and is
	// shown as a ratio too.
	metrics []metric
	refs    []string // entries that the first metric is shown as a ratio to
	points  func(b *bench) []point
	entries func(p point) []string
	// takes is how long a cell takes by its design; 0: not long.
	takes time.Duration
	// run measures one cell on an empty server. errUnfinished beside values: it
	// was given up. Other errors panic.
	run func(ctx context.Context, b *bench, p point, entry string) (values, error)
}

// point is one setting of what the scenario varies.
type point struct {
	label string
	n     int
	load  string
	every time.Duration // how long tuned waiters wait between two tries
	base  string        // label of a point that the first metric is shown as a ratio to
}

type metric struct {
	key    string
	title  string // of its column, with the unit
	digits int
}

// errUnfinished: a cell's time was over before it was through.
var errUnfinished = errors.New("bench: not done in time")

// errNotHere: the server has not what the entry needs.
var errNotHere = errors.New("bench: not on this server")

// What takes longer than slowCell, and than it is to take, is measured so often at
// most, whatever the number of repetitions: only who does badly takes that long.
const (
	slowCell = 10 * time.Second
	slowMost = 2
)

// scenarios are all there are, in the order of the report.
var scenarios = []*scenario{
	&pairsScenario, &turnsScenario, &processesScenario, &drainScenario,
	&asynqScenario, &mixedScenario, &footprintScenario, &deathScenario, &growthScenario, &leasesScenario, &ratesScenario, &orderScenario,
}

// bench is one run of the program.
type bench struct {
	self     string // this program's own file
	quick    bool
	count    int
	profiles string // folder for profiles of the workers; empty: none
	cell     string // that is measured now
	hired    int    // workers
	stderr   io.Writer
	progress io.Writer
	server   *server
}

// sized is the quick or the full size of something.
func sized[T any](b *bench, full, quick T) T {
	if b.quick {
		return quick
	}
	return full
}

// measure runs all cells of the scenarios into r. In each repetition every point asks
// its entries in another order, the same in each run of the program. What was
// measured is there beside an error too: a cell that fails ends nothing but itself.
func (b *bench) measure(ctx context.Context, chosen []*scenario, r *record) (failed error) {
	shuffled := rand.New(rand.NewPCG(7, 7))
	slow := map[*cell]int{} // how often a cell took long
	for rep := range b.count {
		for _, s := range chosen {
			for _, p := range s.points(b) {
				entries := s.entries(p)
				shuffled.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
				for _, entry := range entries {
					c := r.cell(s, p.label, entry)
					if c.unfinished() || c != nil && slow[c] == slowMost {
						continue // what was not done in time is not asked again
					}
					began := time.Now()
					b.cell = fmt.Sprintf("%s_%s_%s_%d", s.name, p.label, entry, rep+1)
					v, err := b.run(ctx, s, p, entry)
					if errors.Is(err, errNotHere) {
						continue
					}
					if err != nil && !errors.Is(err, errUnfinished) {
						err = fmt.Errorf("%s, %s, %s, repetition %d: %w", s.name, p.label, entry, rep+1, err)
						failed = errors.Join(failed, err)
						fmt.Fprintf(b.progress, "%v\n", err)
						if ctx.Err() != nil {
							return failed
						}
						continue
					}
					c = r.add(s, p.label, entry, cellRun{rep, v, err != nil})
					if time.Since(began) > max(slowCell, 2*s.takes) {
						slow[c]++
					}
					first := s.metrics[0]
					fmt.Fprintf(b.progress, "%d/%d  %-2s  %-22s %-48s %12s %-22s %6.1fs\n", rep+1, b.count, s.name, p.label, entry,
						strconv.FormatFloat(v[first.key], 'f', first.digits, 64), first.title, time.Since(began).Seconds())
				}
			}
		}
	}
	return failed
}

func (b *bench) run(ctx context.Context, s *scenario, p point, entry string) (v values, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // a cell that hangs is a bug
	defer cancel()
	failed := caught(func() {
		b.server.clear(ctx)
		v, err = s.run(ctx, b, p, entry)
	})
	return v, cmp.Or(failed, err)
}

// alone has a single worker do a job, and gives its result and what Redis was
// busy with meanwhile.
func (b *bench) alone(ctx context.Context, j job, sends []string, result any) usage {
	w := b.hire(ctx, j)
	defer w.dismiss()
	before := b.server.used(ctx, sends)
	w.begin()
	w.result(result)
	return b.server.since(ctx, before, sends)
}

// counts makes points of numbers.
func counts(what string, numbers ...int) []point {
	points := make([]point, len(numbers))
	for i, n := range numbers {
		label := grouped(n) + " " + what
		if n == 1 {
			label = strings.TrimSuffix(label, "s")
		}
		points[i] = point{label: label, n: n}
	}
	return points
}

// grouped writes 10000 as 10,000.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// namesOf gives the full names of contenders.
func namesOf(lists ...[]*contender) []string {
	all := slices.Concat(lists...)
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.String()
	}
	return names
}
