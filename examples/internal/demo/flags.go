package demo

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
)

// Flags are the command line, checked.
type Flags struct {
	redis string // URL or host:port list; "" means the embedded one
	input string // JSON lines; "" means generated events
	web   string // where the page for operators listens; "" means nowhere

	config string // the file of the rules; "" means one rule, from the flags below
	rules  automutex.Config

	Unguarded bool
	InOrder   bool
	On        []string
	Busy      automutex.Policy
	Limit     int
	Rate      automutex.Rate
	Wait      time.Duration
	TTL       time.Duration
	busy      string // the name of Busy
	retryIn   time.Duration

	Workers int
	work    time.Duration
	tasks   int
	seed    uint64
}

// parseFlags reports what is wrong in its error, and the flags' description to
// stderr when asked for it with -h.
func parseFlags(args []string, stderr io.Writer) (Flags, error) {
	var o Flags
	var on string
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the caller prints the error, once
	fs.StringVar(&o.redis, "redis", "", "a real Redis: host:port, a `URL` (redis://, rediss://, redis-sentinel://host:port?master=name), or a Cluster as host:port,host:port (default: one inside this program)")
	fs.StringVar(&o.input, "input", "", "take the tasks from `FILE` of JSON lines {\"type\": \"...\", \"payload\": {...}}; - is stdin (default: generated ones)")
	fs.StringVar(&o.web, "web", "", fmt.Sprintf("serve the page for operators at `ADDR` of this machine while the demo runs, such as 127.0.0.1:8081 (then -tasks is %d and -work %s, unless they are given)", webTasks, webWork))
	fs.StringVar(&o.config, "config", "", "take the rules from `FILE` (YAML), in place of -on, -busy, -limit, -rate, -wait, -ttl and -retry-in")
	fs.BoolVar(&o.Unguarded, "unguarded", false, "run without the guard, to see what it prevents")
	fs.BoolVar(&o.InOrder, "in-order", false, "run the tasks of one key in the order in which they were enqueued; one task in ten fails once, and keeps its place")
	fs.StringVar(&on, "on", "repository.full_name", "payload `fields` (comma-separated) that make the key; empty: one lock for everything")
	fs.StringVar(&o.busy, "busy", "retry", "the `policy` for a task that did not get its lock: retry, skip, archive, fail, allow, park, replace")
	fs.IntVar(&o.Limit, "limit", 1, "how many tasks of one key may run at once")
	fs.Func("rate", "how often tasks of one key may start, such as `20/s`, 100/m or 5/h, evenly spread (default: as often as they come)", o.setRate)
	fs.DurationVar(&o.Wait, "wait", 2*time.Second, "the longest time in line before the policy applies; -busy park knows none")
	fs.DurationVar(&o.TTL, "ttl", 0, "length of a lease, renewed while the handler runs (default: the library's, 30s)")
	fs.DurationVar(&o.retryIn, "retry-in", 0, "with -busy retry: come back after this long (default: the library's, 1s to 5s)")
	fs.IntVar(&o.Workers, "workers", 10, "tasks that the server runs at once")
	fs.DurationVar(&o.work, "work", 20*time.Millisecond, "how long a handler works, give or take half")
	fs.IntVar(&o.tasks, "tasks", 300, "how many tasks to generate")
	fs.Uint64Var(&o.seed, "seed", 1, "the same seed generates the same tasks")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(stderr)
			fmt.Fprintln(stderr, "Tasks of one repository take turns, tasks of different ones do not.\n\nUsage: worker [flags]")
			fs.PrintDefaults()
		}
		return o, err
	}
	if on != "" {
		for field := range strings.SplitSeq(on, ",") {
			o.On = append(o.On, strings.TrimSpace(field))
		}
	}
	given := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if err := o.setWeb(given); err != nil {
		return o, err
	}
	if err := o.check(fs.Args(), given); err != nil || !given["config"] {
		return o, err
	}
	for _, name := range []string{"on", "busy", "limit", "rate", "wait", "ttl", "retry-in"} {
		if given[name] {
			return o, fmt.Errorf("-%s: the rules of -config say that; leave one of the two out", name)
		}
	}
	var err error
	o.rules, _, err = config.Load(o.config)
	return o, err
}

// check reports the first thing in the options that can't be. What only the
// guard can judge is left to automutex.New.
func (o *Flags) check(rest []string, given map[string]bool) error {
	for _, field := range o.On {
		if field == "" {
			return errors.New("-on: an empty field name; want for example repository.full_name,action")
		}
	}
	for name, n := range map[string]int{"limit": o.Limit, "workers": o.Workers, "tasks": o.tasks} {
		if n < 1 {
			return fmt.Errorf("-%s %d: must be at least 1", name, n)
		}
	}
	for name, d := range map[string]time.Duration{"work": o.work, "wait": o.Wait, "ttl": o.TTL, "retry-in": o.retryIn} {
		if d < 0 {
			return fmt.Errorf("-%s %s: must not be negative", name, d)
		}
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q; everything is a flag (see -h)", rest[0])
	case given["retry-in"] && o.busy != "retry":
		return fmt.Errorf("-retry-in goes with -busy retry, not with -busy %s", o.busy)
	case o.input != "" && (given["tasks"] || given["seed"]):
		return errors.New("-tasks and -seed are for generated tasks; leave them out with -input")
	}
	if o.InOrder {
		switch {
		case o.Unguarded:
			return errors.New("-in-order is kept by the guard, and -unguarded has none; leave one of the two out")
		case given["config"]:
			return errors.New("-in-order: write in_order: true in the rules of -config")
		case o.Limit > 1:
			return fmt.Errorf("-in-order runs one task of a key at a time; leave -limit %d out", o.Limit)
		case given["busy"] && o.busy != automutex.Park.String():
			return fmt.Errorf("-in-order needs -busy park, not %s; leave it out", o.busy)
		}
		o.busy = automutex.Park.String()
	}
	if o.busy == automutex.Park.String() && !given["wait"] {
		o.Wait = 0 // a parked task waits for as long as it takes
	}
	var err error
	o.Busy, err = policyOf(*o)
	return err
}

// setWeb checks -web, and has the demo last long enough to be looked at.
func (o *Flags) setWeb(given map[string]bool) (err error) {
	if !given["web"] {
		return nil
	}
	if o.Unguarded {
		return errors.New("-web shows locks, and -unguarded takes none; leave one of the two out")
	}
	if !given["tasks"] && o.input == "" {
		o.tasks = webTasks
	}
	if !given["work"] {
		o.work = webWork
	}
	o.web, err = webAddress(o.web)
	return err
}

// setRate reads 20/s: so many starts in each second, minute or hour, one at a time.
func (o *Flags) setRate(text string) error {
	starts, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(starts)
	per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	if err != nil || n < 1 || per == 0 {
		return errors.New("want a number of starts and a unit, such as 20/s, 100/m or 5/h")
	}
	o.Rate = automutex.Rate{Starts: n, Per: per, Burst: 1}
	return nil
}

// policyOf reads -busy and -retry-in.
func policyOf(o Flags) (automutex.Policy, error) {
	if o.retryIn > 0 {
		return automutex.RetryIn(o.retryIn), nil
	}
	for _, p := range []automutex.Policy{
		automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail,
		automutex.Allow, automutex.Park, automutex.Replace,
	} {
		if p.String() == o.busy {
			return p, nil
		}
	}
	return automutex.Policy{}, fmt.Errorf("-busy %q: no such policy; want retry, skip, archive, fail, allow, park or replace", o.busy)
}
