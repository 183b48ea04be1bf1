package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// filter says which locks an operator wants to see. The zero value is all of them.
type filter struct {
	// a pattern (*, ?, [a-z]) of the key, or of a holder's owner or task, or a part of it when it has none of these
	match   string
	waiting bool          // only locks with a line
	longer  time.Duration // only locks taken longer ago than this
}

func (f filter) passes(l inspect.Lock) bool {
	if !inspect.Matches(f.match, l.Key) && !l.IsHeldBy(f.match) || f.waiting && l.Line == 0 {
		return false
	}
	// Of several, any may be older.
	return f.longer == 0 || l.Held > 1 || l.Since != nil && l.At.Sub(*l.Since) > f.longer
}

func newList(a *app) *cobra.Command {
	var f filter
	var every time.Duration
	cmd := a.onLocks("list", `List the locks that are held or waited for

A row for each holder, and one for a key that a rate, CloseGate or a cooldown closes. SINCE is how
long ago a lock with one holder was taken, UNTIL when its lease ends unless it is renewed, LINE
how many wait for it, what blocks an ordered key, and what an operator has ordered. --json has
the tokens of the holders, which break takes.`, cobra.NoArgs, func(ctx context.Context, l locks, _ []string) error {
		if every < 0 {
			return usage("list: --watch is %s: give how often to list, as in -w=5s", every)
		}
		for {
			if err := a.list(ctx, l, f); every == 0 || err != nil && ctx.Err() == nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil // Ctrl-C is how one leaves
			case <-time.After(every):
			}
		}
	})
	cmd.Flags().StringVar(&f.match, "match", "", "only locks whose key, owner or task matches this pattern (*, ?, "+
		"[a-z]), or has it in it when it has none of these")
	cmd.Flags().BoolVar(&f.waiting, "waiting", false, "only locks that somebody waits for")
	cmd.Flags().DurationVar(&f.longer, "longer", 0, "only locks taken longer ago than this, and those with several "+
		"holders, whose ages are not known")
	cmd.Flags().DurationVarP(&every, "watch", "w", 0, "list again and again until Ctrl-C, each second or as often as "+
		"in -w=5s")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1s"
	return a.withJSON(cmd)
}

// list prints the locks that the filter lets pass, when all are found.
func (a *app) list(ctx context.Context, l locks, f filter) error {
	var found []inspect.Lock
	for s, err := range inspect.Walk(ctx, l.Engine) {
		if err != nil {
			return err
		}
		if f.passes(s) {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return a.nothing(ctx, l, "no locks under the prefix %q are held or waited for, as far as the filters show them")
	}
	return printAll(a, found, []string{"KEY", "HOLDER", "TASK", "SINCE", "UNTIL", "LINE"}, rows)
}

// nothing says that a list is empty. JSON shows it by itself. Where no program seems to be it is an error.
func (a *app) nothing(ctx context.Context, l locks, format string) error {
	err := a.place(ctx, l.rdb)
	if err == nil && !a.json {
		fmt.Fprintf(a.errs, format+"\n", a.conn.prefix)
	}
	return err
}

// lineOf is how many wait for a lock, and how many of them outside a worker.
func lineOf(s inspect.Lock) string {
	line := strconv.Itoa(s.Line)
	if s.Parked > 0 {
		line += fmt.Sprintf(" (%d parked)", s.Parked)
	}
	if s.Queued > 0 {
		line += fmt.Sprintf(" (%d in order)", s.Queued)
	}
	return line
}

// rows returns a lock in columns, a row for each holder.
func rows(s inspect.Lock) [][]string {
	now := s.At
	facts := []string{lineOf(s)}
	if s.Next != nil && s.Next.Blocked {
		facts = append(facts, "blocked by "+s.Next.Task)
	}
	for _, c := range s.Controls {
		facts = append(facts, fmt.Sprintf("%s (%s)", c.Text(now), c.By))
	}
	line := strings.Join(facts, ", ")
	var all [][]string
	for _, h := range s.Holders {
		taken := "-"
		if s.Since != nil && s.Held == 1 {
			taken = ago(now, *s.Since)
		}
		all = append(all, []string{s.Key, h.Owner, h.TaskName(), taken, in(now, h.Until), line})
	}
	if s.Gate != nil {
		all = append(all, []string{s.Key, "(" + s.Gate.String() + ")", "-", "-", in(now, s.Gate.Opens), line})
	}
	if len(all) == 0 {
		all = [][]string{{s.Key, "-", "-", "-", "-", line}}
	}
	return all
}

func newShow(a *app) *cobra.Command {
	cmd := a.onLocks("show KEY", `Show one lock: its holders, its line, and their tasks

KEY is as list prints it, or a scope and its parts as the program has them ("report|new york").
Of a line the first hundred are shown. When nobody holds or waits for the lock, nothing keeps tasks from starting, and
no control is for it, the exit code is 1.`, cobra.ExactArgs(1), func(ctx context.Context, l locks, args []string) error {
		s, err := a.one(ctx, l, args[0])
		switch {
		case err != nil:
			return err
		case s.Held+s.Line+len(s.Controls) == 0 && s.Gate == nil:
			return no("nobody holds or waits for %s", s.Key)
		case a.json:
			return printAll(a, []inspect.Lock{s}, nil, nil)
		}
		return a.printLock(s, l)
	})
	cmd.Example = `  automutex show 'automutex:{itunes:verify|7}'
  automutex show 'itunes:verify|7'`
	return a.withJSON(cmd)
}

func (a *app) key(typed string) string {
	return inspect.TypedKey(a.conn.prefix, os.Getenv(hashKeysEnv), typed)
}

func (a *app) one(ctx context.Context, l locks, name string) (inspect.Lock, error) {
	key := a.key(name)
	if _, err := l.Ref(key); err != nil {
		return inspect.Lock{}, usage("KEY: %w", err)
	}
	s, err := inspect.One(ctx, l.Engine, key)
	if err == nil && s.Held+s.Line+len(s.Controls) == 0 && s.Gate == nil {
		err = a.place(ctx, l.rdb)
	}
	return s, err
}

func (a *app) printLock(s inspect.Lock, l locks) error {
	now := s.At
	held := fmt.Sprintf("held by %d, waited for by %s", s.Held, lineOf(s))
	if s.Since != nil {
		held += ", last taken " + ago(now, *s.Since)
	}
	head := []string{s.Key, held}
	if s.Gate != nil {
		head = append(head, fmt.Sprintf("nobody starts for %s: %s", printable.Duration(s.Gate.Opens.Sub(now)), s.Gate))
	}
	if s.Next != nil {
		if why := blocked.Whys(l.inspector, []engine.Head{s.Next.Head})[0]; why != "" {
			head = append(head, fmt.Sprintf("behind %s, which %s", s.Next.Task, why))
		}
	}
	for _, c := range s.Controls {
		head = append(head, fmt.Sprintf("%s: %s; ordered by %s %s: %s", c.Target, c.Text(now), c.By, ago(now, c.Since),
			cmp.Or(c.Why, "no reason given")))
	}
	for _, line := range head {
		fmt.Fprintln(a.out, printable.OneLine(line))
	}
	fmt.Fprintln(a.out)
	if len(s.Holders) > 0 {
		err := printAll(a, s.Holders, []string{"TOKEN", "HOLDER", "TASK", "STATE", "UNTIL"},
			func(h inspect.Holder) [][]string {
				return [][]string{{h.Token, h.Owner, h.TaskName(), h.TaskState(l.inspector), in(now, h.Until)}}
			})
		if err != nil || len(s.Waiters) == 0 {
			return err
		}
		fmt.Fprintln(a.out)
	}
	place := 0
	err := printAll(a, s.Waiters, []string{"PLACE", "WAITER", "TASK", "STATE", "WAITS"},
		func(w inspect.Waiter) [][]string {
			place++
			owner := cmp.Or(w.Owner, "("+w.State+")") // what is in no worker has no owner
			return [][]string{{strconv.Itoa(place), owner, w.TaskName(), w.TaskState(l.inspector),
				printable.Duration(now.Sub(w.Since))}}
		})
	if more := s.Line - len(s.Waiters); more > 0 && err == nil && place > 0 {
		return a.say("and %d more\n", more)
	}
	return err
}

// ago says how long before now a time was.
func ago(now, then time.Time) string { return printable.Duration(now.Sub(then)) + " ago" }

func in(now, then time.Time) string { return "in " + printable.Duration(then.Sub(now)) }

func newBreak(a *app) *cobra.Command {
	var tokens []string
	var yes bool
	cmd := a.onLocks("break KEY [--holder TOKEN]", `Take a lock from its holders, or open its gate, after asking

From the holders that it shows, or from the one with the token (show tells tokens). Without
--holder it also opens a closed gate and ends a cooldown; a rate that is used up stays so. The
first in line gets the lock at once. The context of a holder's handler ends with cause
lock.ErrLost, at its next renewal at the latest. Until then it may still be at work: break a
lock whose holder is known to hang. A task in order keeps the key for its retry, and when it is
archived: see skip. When nothing was broken, the exit code is 1.`, cobra.ExactArgs(1), func(ctx context.Context, l locks, args []string) error {
		return a.breakLock(ctx, l, args[0], tokens, yes)
	})
	cmd.Example = `  automutex break 'automutex:{itunes:verify|7}'
  automutex break 'itunes:verify|7' --holder iBq-amHluSdcW1Xu.hm4v0fz1k37 --yes`
	cmd.Flags().StringArrayVar(&tokens, "holder", nil, "only the holder with this token")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// breakLock shows what a break is for, asks unless yes, and breaks. Without tokens it is for all holders and the gate.
func (a *app) breakLock(ctx context.Context, l locks, key string, tokens []string, yes bool) error {
	s, err := a.one(ctx, l, key)
	if err != nil {
		return err
	}
	s.Waiters = nil // not asked about
	opens := len(tokens) == 0 && s.Gate != nil && inspect.Breakable(s.Gate.Closed)
	holders := s.Held // maybe more than are shown
	if len(tokens) > 0 {
		s.Holders = slices.DeleteFunc(s.Holders, func(h inspect.Holder) bool { return !slices.Contains(tokens, h.Token) })
		holders = len(s.Holders)
	}
	question := "Take the lock from " + printable.Count(len(s.Holders), "holder")
	switch {
	case opens && len(s.Holders) == 0:
		question = "Open the gate"
	case opens:
		question += ", and open the gate"
	}
	switch {
	case len(s.Holders) > 0 || opens:
	case len(tokens) > 0:
		return no("nobody with the token %q holds %s", strings.Join(tokens, ", "), s.Key)
	default:
		return no("nobody holds %s, and it has no closed gate or cooldown to end (break leaves a rate as it is)", s.Key)
	}
	if err := a.printLock(s, l); err != nil {
		return err
	}
	if !yes {
		if err := a.ask("\n" + question + "? [y/N] "); err != nil {
			return err
		}
	}
	tokens = nil // those that were shown
	for _, h := range s.Holders {
		tokens = append(tokens, h.Token)
	}
	broken, opened, err := inspect.Break(ctx, l.Engine, s.Key, tokens, opens)
	if err != nil {
		return err
	}
	if broken == 0 && !opened {
		return no("what was shown of %s is over; nothing was done", s.Key)
	}
	done := fmt.Sprintf("broken: %d of %d", broken, holders)
	if opened {
		done += ", and the gate opened"
	}
	return a.say("\n%s\n", done)
}

// ask waits for a yes. Anything else, the end of the input too, is a no.
func (a *app) ask(question string) error {
	signal.Reset() // a read of a terminal cannot be cancelled
	fmt.Fprint(a.errs, question)
	answer, _ := bufio.NewReader(a.in).ReadString('\n') // cut short: no answer
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
		return nil
	}
	return no("not confirmed; nothing was done (--yes does not ask)")
}

func newSweep(a *app) *cobra.Command {
	return a.onLocks("sweep", `Remove what dead processes left behind

Nothing depends on it: each lock does the same when it is asked for, and keys that nobody asks
for expire.`, cobra.NoArgs, func(ctx context.Context, l locks, _ []string) error {
		removed, err := l.Sweep(ctx)
		if err != nil {
			return fmt.Errorf("after %d removed: %w", removed, err)
		}
		return a.say("removed: %d\n", removed)
	})
}

func newBlocked(a *app) *cobra.Command {
	cmd := a.onLocks("blocked", `List the ordered keys whose next task does not run

BEHIND is how many tasks of the key wait behind that task. To go on, run the task again with
asynq's tools, or skip it: automutex skip KEY TASK.`, cobra.NoArgs, func(ctx context.Context, l locks, _ []string) error {
		keys, err := blocked.List(ctx, l.Engine, l.inspector)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return a.nothing(ctx, l, "no ordered key under the prefix %q is blocked")
		}
		return printAll(a, keys, []string{"KEY", "TASK", "SINCE", "BEHIND", "WHY"}, func(key blocked.Key) [][]string {
			return [][]string{{key.Key, key.Task, time.Since(key.Since).Round(time.Second).String(), strconv.Itoa(key.Behind),
				key.Why}}
		})
	})
	return a.withJSON(cmd)
}

func newSkip(a *app) *cobra.Command {
	return a.onLocks("skip KEY TASK", `Give up the next task of an ordered key, and go on with the one behind it

KEY and TASK are those that blocked lists. The task itself is not changed: if asynq runs it
later, it takes its old place again. If it runs now, or is not the next one, the exit code is 1.`, cobra.ExactArgs(2), func(ctx context.Context, l locks, args []string) error {
		key := a.key(args[0])
		switch err := blocked.Skip(ctx, l.Engine, l.inspector, key, args[1], 0); {
		case errors.Is(err, lock.ErrBackend):
			return err
		case err != nil:
			return no("%w", err)
		}
		return a.say("skipped: %s of %s\n", args[1], key)
	})
}

const orderHelp = `

TARGET is what a person types; escaping is ours. "report" is the scope of that very name,
"report:" also every scope that begins with it, and "report|acme" one lock: its scope and its
parts as the program has them. A whole key, as "automutex list" prints it, means itself. Every
process obeys within 2 seconds, also after a restart. "automutex controls" lists what is in
force. A TARGET that no rule, no task and no lock has is refused, as far as the workers say
which they have.`

// order is what the flags say of an order.
type order struct {
	kind *control.Kind
	why  string
	ends bool
}

// newOrder makes a command that gives an order, or ends one. typed is what the operator typed of it, as its kind reads
// it.
func (a *app) newOrder(use, help string, args cobra.PositionalArgs, o *order,
	typed func(args []string) (string, error)) *cobra.Command {
	cmd := a.onLocks(use, help+orderHelp, args, func(ctx context.Context, l locks, args []string) error {
		guards, unread := fleet.Read(ctx, l.rdb, a.conn.prefix) // who may not read them gives orders all the same
		hashed := slices.ContainsFunc(guards, func(p fleet.Process) bool { return p.Hashed })
		a.known = known(guards)
		if !a.conn.force && !o.ends {
			if os.Getenv(hashKeysEnv) != "" && len(guards) > 0 && !hashed {
				return usage("%s is set, and no process hashes its keys: unset it, or --force", hashKeysEnv)
			}
			if err := a.place(ctx, l.rdb); err != nil {
				return err
			}
			if why, err := inspect.Unknown(ctx, l.Engine, a.known, hashed, args[0]); why != "" || err != nil {
				return cmp.Or(err, fmt.Errorf("%s; --force does it all the same", why))
			}
		}
		text, err := typed(args)
		if err != nil {
			return err
		}
		done, err := a.order(ctx, l.Controls(), o, args[0], text)
		if err != nil {
			return err
		}
		obeys := "every process with the prefix %s obeys within 2 seconds"
		// a lock without a Guard is told of by nobody, and workers may be about to start
		if unread == nil && len(guards) == 0 {
			obeys = "no process says that it runs with the prefix %s now: are --prefix and --db right?"
		}
		return a.say("%s %s; "+obeys+"\n", printable.OneLine(args[0]), done, a.conn.prefix)
	})
	if !o.ends {
		cmd.Flags().StringVar(&o.why, "why", "", "the reason to show with the order")
	}
	return cmd
}

// known is the rules that Guards say they run. A rule for each task type of its own is for the types that they have
// met: what is longer than its Task is a slip, or comes later. Of a prefix none may be met yet: then it is for all.
func known(guards []fleet.Process) (rules []fleet.Rule) {
	for _, r := range fleet.Rules(guards) {
		types := []string{r.Task}
		for _, p := range guards {
			types = append(types, p.Serves...)
		}
		types = slices.DeleteFunc(types, func(t string) bool {
			return r.Scope != "" || strings.HasSuffix(t, ":") || !r.Has(keys.Scope(t))
		})
		if len(types) == 0 {
			rules = append(rules, r)
		}
		for _, r.Scope = range types {
			rules = append(rules, r)
		}
	}
	return rules
}

// order gives an order, or ends it, and returns what is to be said of the target.
func (a *app) order(ctx context.Context, controls *control.Reader, o *order, target, text string) (string, error) {
	if o.ends {
		ended, err := controls.End(ctx, o.kind, target)
		if err == nil && !ended {
			err = no("%s %s under the prefix %s; automutex controls lists what is in force", target, o.kind.None, a.conn.prefix)
		}
		return o.kind.Ended, err
	}
	c, err := o.kind.Typed(text)
	if err != nil {
		return "", usage("%s: %w", o.kind.Name, err)
	}
	c.Why = o.why
	done := "is " + c.Text(time.Now())
	if !c.PausedUntil.IsZero() {
		done += ", until " + c.PausedUntil.UTC().Format(time.RFC3339)
	}
	return done, controls.Give(ctx, o.kind, target, c)
}

// newSetting makes a command for an order that has a value, and --clear.
func (a *app) newSetting(
	kind *control.Kind, value, flags, short, help, clears string, more func() string,
) *cobra.Command {
	o := order{kind: kind}
	use := fmt.Sprintf("%s TARGET %s%s | %[1]s TARGET --clear", kind.Name, value, flags)
	cmd := a.newOrder(use, short+"\n\n"+help+" With --clear, if the\ntarget "+kind.None+", the exit code is 1.",
		cobra.RangeArgs(1, 2), &o, func(args []string) (string, error) {
			if o.ends != (len(args) == 1) {
				return "", usage("%s: want TARGET and %s, or TARGET and --clear", kind.Name, value)
			}
			if o.ends {
				return "", nil
			}
			return args[1] + more(), nil
		})
	cmd.Flags().BoolVar(&o.ends, "clear", false, clears)
	return cmd
}

func newOrders(a *app) []*cobra.Command {
	return []*cobra.Command{newPause(a), newResume(a), newLimit(a), newRate(a)}
}

func newPause(a *app) *cobra.Command {
	o := order{kind: control.Pauses}
	var length string
	var cmd *cobra.Command
	cmd = a.newOrder("pause TARGET [--for 5m] [--why TEXT]",
		`Let no task of a scope or key start, until resumed or for a time

Running tasks go on. Other tasks return to asynq without spending an attempt, whatever the
policy of their rule, and run when the pause ends or up to 90 seconds later. Tasks on
their last attempt wait in their workers. A new pause replaces the present one.`, cobra.ExactArgs(1), &o,
		func([]string) (string, error) {
			if length == "" && cmd.Flags().Changed("for") { // who computes a time does not mean for ever
				return "", usage("pause: --for is empty: give a time such as 5m, or leave it out")
			}
			return length, nil
		})
	cmd.Flags().StringVar(&length, "for", "", "end the pause after this time (default: when it is resumed)")
	return cmd
}

func newResume(a *app) *cobra.Command {
	return a.newOrder("resume TARGET", `End a pause

Parked tasks are woken in their order, others run within 90 seconds. If the target is not
paused, the exit code is 1.`, cobra.ExactArgs(1), &order{kind: control.Pauses, ends: true},
		func([]string) (string, error) { return "", nil })
}

func newLimit(a *app) *cobra.Command {
	return a.newSetting(control.Limits, "N", "",
		"Set how many tasks of a key may run at once, in place of the rule's Limit",
		`A lower number takes effect as tasks end. The limit of one key wins over that of its scope; a
key in order has one task at a time.`, "end the limit", func() string { return "" })
}

func newRate(a *app) *cobra.Command {
	burst := 0
	cmd := a.newSetting(control.Rates, "STARTS/PER", " [--burst N] [--why TEXT]",
		"Set how often tasks of a key may start, in place of the rule's Rate",
		`Also for a rule without a Rate. 100/1m is evenly spread: one each 600 ms; after a pause --burst
of them may start at once. The rate of one key wins over that of its scope.`, "end the rate", func() string {
			if burst == 0 {
				return ""
			}
			return fmt.Sprintf(" burst %d", burst)
		})
	cmd.Flags().IntVar(&burst, "burst", 0, "how many may start at once after a pause (default 1)")
	return cmd
}

func newControls(a *app) *cobra.Command {
	return a.withJSON(a.onLocks("controls", `List the orders of operators that are in force

One that cannot be read is noted, and is not in force.`, cobra.NoArgs, func(ctx context.Context, l locks, _ []string) error {
		state, err := l.Controls().Fetch(ctx)
		if err != nil {
			return err
		}
		list, unreadable := inspect.FromOrders(state.Orders()), state.Unreadable()
		for _, field := range slices.Sorted(maps.Keys(unreadable)) {
			fmt.Fprintf(a.errs, "note: the field %s is not in force: %s\n", printable.OneLine(field), unreadable[field])
		}
		if len(list) == 0 {
			return a.nothing(ctx, l, "no controls under the prefix %q are in force")
		}
		return printAll(a, list, []string{"TARGET", "CONTROL", "BY", "SINCE", "WHY"}, func(c inspect.Control) [][]string {
			return [][]string{{c.Target, c.Text(state.Now()), c.By, ago(state.Now(), c.Since), cmp.Or(c.Why, "-")}}
		})
	}))
}
