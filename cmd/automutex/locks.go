package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// filter says which locks an operator wants to see. The zero value is all of them.
type filter struct {
	match   string        // a pattern (*, ?, [a-z]) of the key, or a part of it when it has none of these
	holder  string        // a part of a holder's owner
	task    string        // a part of a holder's "queue/id"
	waiting bool          // only locks with a line
	longer  time.Duration // only locks taken longer ago than this
}

// passes reports whether a lock is shown. now is Redis' time.
func (f filter) passes(l inspect.Lock, now time.Time) bool {
	held := func(passes func(inspect.Holder) bool) bool { return slices.ContainsFunc(l.Holders, passes) }
	switch {
	case !inspect.Matches(f.match, l.Key), f.waiting && l.Line == 0:
		return false
	case f.holder != "" && !held(func(h inspect.Holder) bool { return strings.Contains(h.Owner, f.holder) }):
		return false
	case f.task != "" && !held(func(h inspect.Holder) bool {
		return strings.Contains(inspect.TaskName(h.Queue, h.Task, h.Note), f.task)
	}):
		return false
	}
	// Of several holders only the newest one's age is known: any other may be older.
	return f.longer == 0 || l.Held > 1 || l.Since != nil && now.Sub(*l.Since) > f.longer
}

var lockHeader = []string{"KEY", "HOLDER", "TASK", "SINCE", "UNTIL", "LINE"}

func newList(a *app) *cobra.Command {
	var f filter
	var asJSON bool
	var every time.Duration
	cmd := a.onLocks("list", `List the locks that are held or waited for

A row for each holder, and one for a key that a rate, a hold or a cooldown closes, as they
are found by SCAN. SINCE is how long ago a lock with one holder was taken, UNTIL when its
lease ends unless it is renewed, LINE how many wait for it, what blocks an ordered key, and
what an operator has ordered. --json has the tokens of the holders, which break takes.`, cobra.NoArgs, func(ctx context.Context, l locks, _ []string) error {
		for {
			began := time.Now()
			if err := a.list(ctx, l, f, asJSON); every == 0 || err != nil && ctx.Err() == nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil // Ctrl-C is how one leaves
			case <-time.After(max(every, rest*time.Since(began))):
			}
		}
	})
	cmd.Flags().StringVar(&f.match, "match", "", "only keys that match this pattern (*, ?, [a-z]), or have it in them when it has none of these")
	cmd.Flags().StringVar(&f.holder, "holder", "", "only locks held by an owner whose label has this in it")
	cmd.Flags().StringVar(&f.task, "task", "", "only locks held by a task, queue/id, that has this in it")
	cmd.Flags().BoolVar(&f.waiting, "waiting", false, "only locks that somebody waits for")
	cmd.Flags().DurationVar(&f.longer, "longer", 0, "only locks taken longer ago than this, and those with several holders, whose ages are not known")
	cmd.Flags().DurationVarP(&every, "watch", "w", 0, "list again and again until Ctrl-C, each second or as often as in -w=5s")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1s"
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each lock")
	return cmd
}

// rest is how many times as long as a look at all locks takes Redis is left alone before the next one: it spends no more
// than a fifth of its time on list -w.
const rest = 4

// list prints the locks as they are found, a thousand at a time.
func (a *app) list(ctx context.Context, l locks, f filter, asJSON bool) error {
	header := lockHeader
	var some []inspect.Lock
	flush := func() error {
		if len(some) == 0 {
			return nil
		}
		err := printAll(a.out, some, asJSON, header, func(s inspect.Lock) [][]string { return rows(s, s.At) })
		some, header = nil, nil
		return err
	}
	for s, err := range inspect.Walk(ctx, l.Engine) {
		if err != nil {
			return err
		}
		if f.passes(s, s.At) {
			some = append(some, s)
		}
		if len(some) == 1000 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	if header != nil && !asJSON {
		fmt.Fprintf(a.errs, "no locks under the prefix %q are held or waited for, as far as the filters show them\n", a.conn.prefix)
	}
	return nil
}

// rows returns a lock in columns, a row for each holder.
func rows(s inspect.Lock, now time.Time) [][]string {
	facts := []string{strconv.Itoa(s.Line)}
	if s.Parked > 0 {
		facts[0] += fmt.Sprintf(" (%d parked)", s.Parked)
	}
	if s.Queued > 0 {
		facts[0] += " (in order)"
	}
	if s.Next != nil && s.Next.Blocked {
		facts = append(facts, "blocked by "+s.Next.Task)
	}
	for _, c := range s.Controls {
		fact := "paused by " + c.By
		if !c.Paused {
			fact = fmt.Sprintf("limit %d by %s", c.Limit, c.By)
		}
		if c.Why != "" {
			fact += " (" + strings.Join(strings.Fields(c.Why), " ") + ")"
		}
		facts = append(facts, fact)
	}
	line := strings.Join(facts, ", ")
	var all [][]string
	for _, h := range s.Holders {
		taken := "-"
		if s.Since != nil && s.Held == 1 {
			taken = ago(now, *s.Since)
		}
		all = append(all, []string{s.Key, h.Owner, inspect.TaskName(h.Queue, h.Task, h.Note), taken, "in " + printable.Duration(h.Until.Sub(now)), line})
	}
	if s.Gate != nil {
		all = append(all, []string{s.Key, "(" + s.Gate.String() + ")", "-", "-", "in " + printable.Duration(s.Gate.Opens.Sub(now)), line})
	}
	if len(all) == 0 {
		all = [][]string{{s.Key, "-", "-", "-", "-", line}}
	}
	return all
}

func newShow(a *app) *cobra.Command {
	var asJSON bool
	cmd := a.onLocks("show KEY", `Show one lock: its holders, its line, and their tasks

KEY is as list prints it, or a scope and its parts as the program has them ("report|new york").
Of a line the first hundred are shown. When nobody holds or waits for the lock, nothing keeps tasks from starting, and no
control is for it, the exit code is 1.`, cobra.ExactArgs(1), func(ctx context.Context, l locks, args []string) error {
		s, err := a.one(ctx, l, args[0])
		switch {
		case err != nil:
			return err
		case s.Held+s.Line+len(s.Controls) == 0 && s.Gate == nil:
			return no("nobody holds or waits for %s", s.Key)
		case asJSON:
			return printJSON(a.out, s)
		}
		return a.printLock(s, s.At, l)
	})
	cmd.Example = `  automutex show 'automutex:{itunes:verify|7}'
  automutex show 'itunes:verify|7'`
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// one reads the lock that an operator names.
func (a *app) one(ctx context.Context, l locks, name string) (inspect.Lock, error) {
	key := inspect.TypedKey(a.conn.prefix, name)
	if _, err := l.Ref(key); err != nil {
		return inspect.Lock{}, usage("KEY: %w", err)
	}
	return inspect.One(ctx, l.Engine, key)
}

func (a *app) printLock(s inspect.Lock, now time.Time, l locks) error {
	head := fmt.Sprintf("%s\nheld by %d, waited for by %d", s.Key, s.Held, s.Line-s.Parked-s.Queued)
	add := func(is bool, format string, args ...any) {
		if is {
			head += fmt.Sprintf(format, args...)
		}
	}
	add(s.Parked > 0, ", %d parked", s.Parked)
	add(s.Queued > 0, ", %d in order", s.Queued)
	if s.Since != nil {
		add(true, ", last taken %s", ago(now, *s.Since))
	}
	if s.Gate != nil {
		add(true, "\nnobody starts for %s: %s", printable.Duration(s.Gate.Opens.Sub(now)), s.Gate)
	}
	if s.Next != nil {
		why := blocked.Whys(l.inspector, []engine.Head{s.Next.Head})[0]
		add(why != "", "\nbehind %s, which %s", s.Next.Task, why)
	}
	for _, c := range s.Controls {
		why := strings.TrimSuffix(": "+c.Why, ": ")
		add(true, "\n%s", printable.OneLine(fmt.Sprintf("%s: %s; ordered by %s %s%s", c.Target, what(c, now), c.By, ago(now, c.Since), why)))
	}
	fmt.Fprintf(a.out, "%s\n\n", head)
	if len(s.Holders) > 0 {
		err := printAll(a.out, s.Holders, false, []string{"TOKEN", "HOLDER", "TASK", "STATE", "UNTIL"}, func(h inspect.Holder) [][]string {
			state := inspect.TaskState(l.inspector, h.Queue, h.Task)
			return [][]string{{h.Token, h.Owner, inspect.TaskName(h.Queue, h.Task, h.Note), state, "in " + printable.Duration(h.Until.Sub(now))}}
		})
		if err != nil || len(s.Waiters) == 0 {
			return err
		}
		fmt.Fprintln(a.out)
	}
	place := 0
	err := printAll(a.out, s.Waiters, false, []string{"PLACE", "WAITER", "TASK", "STATE", "WAITS"}, func(w inspect.Waiter) [][]string {
		place++
		owner := cmp.Or(w.Owner, "("+w.State+")") // what is in no worker has no owner
		state := inspect.TaskState(l.inspector, w.Queue, w.Task)
		return [][]string{{strconv.Itoa(place), owner, inspect.TaskName(w.Queue, w.Task, w.Note), state, printable.Duration(now.Sub(w.Since))}}
	})
	if more := s.Line - len(s.Waiters); more > 0 && err == nil && place > 0 {
		return a.say("and %d more\n", more)
	}
	return err
}

// ago says how long before now a time was.
func ago(now, then time.Time) string { return printable.Duration(now.Sub(then)) + " ago" }

func newBreak(a *app) *cobra.Command {
	var tokens []string
	var yes bool
	cmd := a.onLocks("break KEY [--holder TOKEN]", `Take a lock from its holders, or open its gate, after asking

From the holders that it shows, or from the one with the token (list --json and show tell
tokens). Without --holder it also opens a closed gate and ends a cooldown; a rate that is used
up stays so. The first in line gets the lock at once. The context of a holder's handler ends
with cause lock.ErrLost, at its next renewal at the latest. Until then it may still be at work:
break a lock whose holder is known to hang. When nothing was broken, the exit code is 1.`, cobra.ExactArgs(1), func(ctx context.Context, l locks, args []string) error {
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
	var what []string
	gate := ""
	if len(tokens) > 0 {
		s.Holders = slices.DeleteFunc(s.Holders, func(h inspect.Holder) bool { return !slices.Contains(tokens, h.Token) })
	} else if s.Gate != nil && inspect.Breakable(s.Gate.Closed) {
		gate = strings.Replace(s.Gate.Closed, lock.ReasonClosed, "closed gate", 1)
	}
	if len(s.Holders) > 0 {
		what = append(what, "take the lock from "+printable.Count(len(s.Holders), "holder"))
	}
	if gate != "" {
		what = append(what, "end the "+gate)
	}
	switch {
	case len(what) > 0:
	case len(tokens) > 0:
		return no("nobody with the token %q holds %s", strings.Join(tokens, ", "), s.Key)
	case s.Gate != nil:
		return no("nobody holds %s; its rate is used up, which break leaves as it is: the next starts in %s", s.Key, printable.Duration(s.Gate.Opens.Sub(s.At)))
	default:
		return no("nobody holds %s", s.Key)
	}
	if err := a.printLock(s, s.At, l); err != nil {
		return err
	}
	question := strings.Join(what, ", and ")
	if !yes {
		if err := a.ask(ctx, "\n"+strings.ToUpper(question[:1])+question[1:]+"? [y/N] "); err != nil {
			return err
		}
	}
	broken, opened := 0, false
	r, _ := l.Ref(s.Key) // it is that of a lock, and was shown
	for _, h := range s.Holders {
		ok, err := l.BreakHolder(ctx, r, h.Token)
		if err != nil {
			return fmt.Errorf("%d of %d broken: %w", broken, len(s.Holders), err)
		}
		if ok {
			broken++
		}
	}
	if gate != "" {
		if opened, err = l.OpenGate(ctx, r); err != nil {
			return fmt.Errorf("%d of %d broken, and the %s not ended: %w", broken, len(s.Holders), gate, err)
		}
	}
	if broken == 0 && !opened {
		return no("what was shown of %s is over; nothing was done", s.Key)
	}
	done := fmt.Sprintf("broken: %d of %d\n", broken, len(s.Holders))
	if opened {
		done += "ended: the " + gate + "\n"
	}
	return a.say("\n%s", done)
}

// ask waits for a yes. Anything else, the end of the input too, is a no.
func (a *app) ask(ctx context.Context, question string) error {
	fmt.Fprint(a.errs, question)
	// A read of a terminal cannot be cancelled: at an interrupt it is left behind, and ends with the program. The buffer
	// lets it.
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n') // cut short: no answer
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return no("interrupted; nothing was done")
	case yes := <-answer:
		if yes == "y" || yes == "yes" {
			return nil
		}
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
	var asJSON bool
	cmd := a.onLocks("blocked", `List the ordered keys whose next task does not run

BEHIND is how many tasks of the key wait behind that task. To go on, run the task again with
asynq's tools, or skip it: automutex skip KEY TASK.`, cobra.NoArgs, func(ctx context.Context, l locks, _ []string) error {
		keys, err := blocked.List(ctx, l.Engine, l.inspector)
		if err != nil {
			return err
		}
		if len(keys) == 0 && !asJSON {
			fmt.Fprintf(a.errs, "no ordered key under the prefix %q is blocked\n", a.conn.prefix)
			return nil
		}
		return printAll(a.out, keys, asJSON, []string{"KEY", "TASK", "SINCE", "BEHIND", "WHY"}, func(key blocked.Key) [][]string {
			return [][]string{{key.Key, key.Task, time.Since(key.Since).Round(time.Second).String(), strconv.Itoa(key.Behind), key.Why}}
		})
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each key")
	return cmd
}

func newSkip(a *app) *cobra.Command {
	return a.onLocks("skip KEY TASK", `Give up the next task of an ordered key, and go on with the one behind it

KEY and TASK are those that blocked lists. The task itself is not changed: if asynq runs it
later, it takes its old place again. If it runs now, or is not the next one, the exit code is 1.`, cobra.ExactArgs(2), func(ctx context.Context, l locks, args []string) error {
		key := inspect.TypedKey(a.conn.prefix, args[0])
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
force. A TARGET that no rule and no lock has is refused, as far as the workers, or the FILE,
tell the rules.`

const rulesHelp = "the FILE of the rules: take its prefix, and its rules in place of those that the workers say they run"

// newOrder makes a command that gives an order; with ends it ends one. shown is the target for a person.
func (a *app) newOrder(use, help string, args cobra.PositionalArgs, o *order,
	do func(ctx context.Context, controls *control.Reader, args []string, shown string) error) *cobra.Command {
	cmd := a.onLocks(use, help+orderHelp, args, func(ctx context.Context, l locks, args []string) error {
		key, err := a.target(ctx, l, args[0], o.force || o.ends)
		shown := printable.OneLine(args[0])
		switch {
		case errors.Is(err, lock.ErrBackend):
			return err
		case err != nil:
			return no("%w", err)
		case key != "" && key != args[0] && control.Bare(key) != args[0] && !o.ends:
			shown += " (" + key + ")"
		}
		return do(ctx, l.Controls(), args, shown)
	})
	cmd.Flags().String("rules", "", rulesHelp)
	if !o.ends {
		cmd.Flags().StringVar(&o.why, "why", "", "the reason to show with the order")
		cmd.Flags().BoolVar(&o.force, "force", false, "also for a TARGET that no known rule and no lock has")
	}
	return cmd
}

// order is what the flags say of an order.
type order struct {
	why         string
	force, ends bool
}

// target is the whole key of the target that was typed. Workers whose Config is Private do not say what they run.
func (a *app) target(ctx context.Context, l locks, typed string, force bool) (string, error) {
	rules, hashed := inspect.Describe(a.rules.Rules), a.rules.HashKeys != ""
	if len(rules) == 0 {
		if f, err := fleet.Read(ctx, l.rdb, a.conn.prefix); err == nil { // who may not read them gives orders all the same
			rules = fleet.Rules(f)
			hashed = slices.ContainsFunc(f, func(p fleet.Process) bool { return p.Hashed })
		}
	}
	a.conn.known = rules
	return inspect.Target(ctx, l.Engine, rules, hashed, a.conn.prefix, typed, force)
}

// given says that an order was given.
func (a *app) given(text string) error {
	of := ""
	if a.conn.prefix != inside.DefaultPrefix {
		of = " with the prefix " + a.conn.prefix
	}
	return a.say("%s; every process%s obeys within 2 seconds\n", text, of)
}

func newPause(a *app) *cobra.Command {
	var o order
	var length time.Duration
	var cmd *cobra.Command
	cmd = a.newOrder("pause TARGET [--for 5m] [--why TEXT]", `Let no task of a scope or key start, until resumed or for a time

Running tasks go on. Other tasks return to asynq without spending an attempt, whatever the
policy of their rule, and run when the pause ends or up to 90 seconds later. Tasks on
their last attempt wait in their workers. A new pause replaces the present one.`, cobra.ExactArgs(1), &o,
		func(ctx context.Context, controls *control.Reader, args []string, shown string) error {
			until, end := time.Time{}, "until somebody resumes it"
			if cmd.Flags().Changed("for") { // 0 is over at once, and refused
				until = time.Now().Add(length)
				end = "for " + printable.Duration(length) + ", until " + until.UTC().Format(time.RFC3339)
			}
			if err := controls.Pause(ctx, args[0], until, o.why); err != nil {
				return err
			}
			return a.given(shown + " is paused " + end)
		})
	cmd.Flags().DurationVar(&length, "for", 0, "end the pause after this time (default: when it is resumed)")
	return cmd
}

func newResume(a *app) *cobra.Command {
	return a.newOrder("resume TARGET", `End a pause

Parked tasks are woken in their order, others run within 90 seconds. If the target is not
paused, the exit code is 1.`, cobra.ExactArgs(1), &order{ends: true},
		func(ctx context.Context, controls *control.Reader, args []string, shown string) error {
			ended, err := controls.Resume(ctx, args[0])
			if err != nil {
				return err
			}
			orders, err := controls.Orders(ctx)
			if err != nil {
				return err
			}
			after := ""
			if _, _, pause := control.For(orders, inspect.TypedKey(a.conn.prefix, args[0])); pause != nil {
				after = "; its scope " + printable.OneLine(pause.Target) + " is"
			}
			if !ended {
				return no("%s is not paused under the prefix %s%s", shown, a.conn.prefix, after)
			}
			return a.say("%s is resumed%s\n", shown, after)
		})
}

func newLimit(a *app) *cobra.Command {
	var o order
	cmd := a.newOrder("limit TARGET N | limit TARGET --clear", `Set how many tasks of a key may run at once, in place of the rule's Limit

A lower number takes effect as tasks end. The limit of one key wins over that of its
scope. With --clear, if the target has no such limit, the exit code is 1.`, cobra.RangeArgs(1, 2), &o,
		func(ctx context.Context, controls *control.Reader, args []string, shown string) error {
			if o.ends != (len(args) == 1) {
				return usage("limit: want TARGET and N, or TARGET and --clear")
			}
			if o.ends {
				ended, err := controls.ClearLimit(ctx, args[0])
				switch {
				case err != nil:
					return err
				case !ended:
					return no("%s has no limit of an operator under the prefix %s", shown, a.conn.prefix)
				}
				return a.say("%s has the limit of its program\n", shown)
			}
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return usage("limit: N is %q: want a whole number, at least 1; to let no task start, use pause", args[1])
			}
			if err := controls.SetLimit(ctx, args[0], n, o.why); err != nil {
				return err
			}
			return a.given(fmt.Sprintf("%s is limited to %d", shown, n))
		})
	cmd.Flags().BoolVar(&o.ends, "clear", false, "end the limit")
	return cmd
}

func newControls(a *app) *cobra.Command {
	var asJSON bool
	cmd := a.onLocks("controls", `List the pauses and limits that are in force

One that cannot be read is noted, and is not in force.`, cobra.NoArgs, func(ctx context.Context, l locks, _ []string) error {
		state, err := l.Controls().Fetch(ctx)
		if err != nil {
			return err
		}
		list, unreadable, now := state.Orders(), state.Unreadable(), state.Now()
		for _, field := range slices.Sorted(maps.Keys(unreadable)) {
			fmt.Fprintf(a.errs, "note: the field %s is not in force: %s\n", printable.OneLine(field), unreadable[field])
		}
		if len(list) == 0 && !asJSON {
			fmt.Fprintf(a.errs, "no controls under the prefix %q are in force\n", a.conn.prefix)
			return nil
		}
		return printAll(a.out, inspect.FromOrders(list), asJSON, []string{"TARGET", "CONTROL", "BY", "SINCE", "WHY"}, func(c inspect.Control) [][]string {
			return [][]string{{c.Target, what(c, now), c.By, ago(now, c.Since), cmp.Or(c.Why, "-")}}
		})
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each")
	cmd.Flags().String("rules", "", rulesHelp)
	return cmd
}

// what says what a control orders.
func what(c inspect.Control, now time.Time) string {
	switch {
	case !c.Paused:
		return fmt.Sprintf("limit %d", c.Limit)
	case c.PausedUntil.IsZero():
		return "paused until somebody resumes it"
	}
	return "paused for " + printable.Duration(c.PausedUntil.Sub(now))
}
