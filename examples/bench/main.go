/*
Bench measures this library beside its peers, and beside what the commands alone
cost, on a redis-server of its own:

	go run ./bench                 everything; writes examples/bench/RESULTS.md
	go run ./bench -quick          a short pass that shows that all of it works
	go run ./bench -only A,D2      some scenarios; with the verdicts as a table to paste
	go run ./bench -server PATH    another server than the redis-server in PATH
	go run ./bench -from FILE      the report again, from the figures of a run before

In each repetition every entry runs once at every point, in a process of its own
and in an order that is drawn anew; ratios are formed within a repetition.
*/
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // go-redis' own; errors reach us anyway
	if spec := os.Getenv(jobEnv); spec != "" {
		os.Exit(work(spec, os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// What the program answers to the shell.
const (
	exitOK     = 0
	exitFailed = 1 // a program failed; short figures are no failure
	exitUsage  = 2
)

// resultsDir is where a full run writes to, seen from the repository's root.
const resultsDir = "examples/bench"

// run is main with everything it touches handed in.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitUsage
	}
	r, err := o.measured(ctx, stderr)
	switch {
	case ctx.Err() != nil:
		if r != nil && len(r.Cells) > 0 {
			_ = r.print(stdout)
		}
		fmt.Fprintln(stderr, "bench: interrupted: nothing is written")
		return exitFailed
	case r != nil:
		// Also when some cell failed: the others took their time.
		err = errors.Join(err, o.report(r, stdout))
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	return exitOK
}

func (o *options) report(r *record, stdout io.Writer) error {
	if o.out == "" {
		return r.print(stdout)
	}
	if err := r.write(o.out); err != nil {
		return errors.Join(err, r.print(stdout))
	}
	if err := r.print(stdout); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stdout, "\nwritten: %s\n", filepath.Join(o.out, reportFile))
	return err
}

type options struct {
	quick    bool
	chosen   []*scenario
	count    int
	out      string
	from     string
	profiles string
	binary   string
}

func parseFlags(args []string, stderr io.Writer) (*options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(io.Discard) // what is wrong is said once
	f.BoolVar(&o.quick, "quick", false, "a short pass: small sizes, one repetition; its figures say little")
	f.StringVar(&only, "only", "", "scenarios to run, such as A,D2 (default all)")
	f.IntVar(&o.count, "count", 0, "repetitions (default 5; with -quick 1)")
	f.StringVar(&o.out, "out", "", "folder for RESULTS.md and results.json (default "+resultsDir+" for a full run and with -from, else nothing is written)")
	f.StringVar(&o.from, "from", "", "make the report from the figures in this file, which a run has written beside its report")
	f.StringVar(&o.profiles, "profiles", "", "folder for a CPU profile of each worker process, which costs some speed")
	f.StringVar(&o.binary, "server", "redis-server", "the server to start: its path, or its name if it is in PATH")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(stderr)
			fmt.Fprintln(stderr, "Measures automutex beside its peers, on a redis-server of its own. The scenarios:")
			for _, s := range scenarios {
				fmt.Fprintf(stderr, "  %-2s  %s\n", s.name, s.title)
			}
			fmt.Fprintln(stderr, "What they and the columns of their tables mean is in RESULTS.md, which -out writes.")
			f.PrintDefaults()
		}
		return nil, err
	}
	set := map[string]bool{}
	f.Visit(func(f *flag.Flag) { set[f.Name] = true })
	for _, other := range []string{"quick", "only", "count", "profiles", "server"} {
		if set["from"] && set[other] {
			return nil, fmt.Errorf("-%s: not with -from, which measures nothing", other)
		}
	}
	if set["only"] && only == "" {
		return nil, errors.New("-only: no scenario is named; leave it out for all of them")
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("there are no arguments beside the flags, but: %q", f.Args())
	}
	if o.count < 0 || set["count"] && o.count == 0 {
		return nil, fmt.Errorf("-count: %d repetitions; at least 1", o.count)
	}
	if o.count == 0 {
		o.count = 5
		if o.quick {
			o.count = 1
		}
	}
	var err error
	o.chosen, err = choose(only)
	if err != nil {
		return nil, err
	}
	if o.out == "" && (o.from != "" || !o.quick && only == "") {
		if info, err := os.Stat(resultsDir); err != nil || !info.IsDir() {
			return nil, errors.New("-out: there is no folder " + resultsDir + " here; run this in the repository's root, or say where to write")
		}
		o.out = resultsDir
	}
	return &o, nil
}

func choose(only string) ([]*scenario, error) {
	if only == "" {
		return scenarios, nil
	}
	var chosen []*scenario
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(scenarios, func(s *scenario) bool { return strings.EqualFold(s.name, strings.TrimSpace(name)) })
		if i < 0 {
			var names []string
			for _, s := range scenarios {
				names = append(names, s.name)
			}
			return nil, fmt.Errorf("-only: there is no scenario %q; there are %s", name, strings.Join(names, ", "))
		}
		if !slices.Contains(chosen, scenarios[i]) {
			chosen = append(chosen, scenarios[i])
		}
	}
	return chosen, nil
}

// writable makes a folder, unless it is there, and tries to write into it.
func writable(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	f, err := os.CreateTemp(dir, ".bench-*")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// known tells whether r has figures, and only such as this program makes.
func (r *record) known() error {
	if len(r.Cells) == 0 {
		return errors.New("there are no figures in it")
	}
	for _, c := range r.Cells {
		ok := slices.ContainsFunc(scenarios, func(s *scenario) bool {
			return s.name == c.Scenario && slices.ContainsFunc(s.points(&bench{quick: r.Quick}), func(p point) bool {
				return p.label == c.Point && slices.Contains(s.entries(p), c.Entry)
			})
		})
		if !ok {
			return fmt.Errorf("%s, %s, %s: not of this version of the program; measure again", c.Scenario, c.Point, c.Entry)
		}
	}
	return nil
}

// measured runs the scenarios, or reads what an earlier run has measured.
func (o *options) measured(ctx context.Context, progress io.Writer) (_ *record, err error) {
	for _, dir := range []string{o.out, o.profiles} {
		if err := writable(dir); err != nil { // now, not after an hour
			return nil, err
		}
	}
	var r record
	if o.from != "" {
		text, err := os.ReadFile(o.from)
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err == nil {
			err = r.known()
		}
		if err != nil {
			return nil, fmt.Errorf("bench: -from: %s: %w", o.from, err)
		}
		return &r, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	s, err := startServer(o.binary)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	r = record{Count: o.count, Quick: o.quick}
	if err := caught(func() { r.Machine = thisMachine(ctx, s) }); err != nil {
		return nil, err
	}
	b := &bench{self: self, quick: o.quick, count: o.count, profiles: o.profiles, stderr: progress, progress: progress, server: s}
	return &r, b.measure(ctx, o.chosen, &r)
}
