package inspect

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/tasktype"
)

// Misfit is something in what the processes of a fleet run that does not fit together.
type Misfit struct {
	Kind   string
	Bad    bool // it causes trouble now
	Text   string
	Hashes []string // of the sets of rules that it is about
}

// Kinds of Misfit.
const (
	MisfitDiffer  = "differ"  // two workers have different rules for one key
	MisfitHashed  = "hashed"  // some hash keys, and others do not
	MisfitPair    = "pair"    // a producer's rule and a worker's do not fit
	MisfitStopped = "stopped" // a process ceased to say what it runs
)

// mostMisfits bounds Misfits of each kind.
const mostMisfits = 20

// Misfits finds what does not fit together in what live processes run, and who has stopped.
func Misfits(f *fleet.Fleet) (all []Misfit) {
	all = append(all, differing(f)...)
	all = append(all, hashing(f)...)
	all = append(all, pairs(f)...)
	var stopped []string
	for _, p := range f.Processes {
		if p.Kind == fleet.Worker && p.Stopped(f.At) { // one that enqueues may have had nothing to enqueue
			stopped = append(stopped, p.Owner)
		}
	}
	if len(stopped) > 0 {
		text := strings.Join(stopped[:min(len(stopped), 5)], ", ")
		if more := len(stopped) - 5; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		all = append(all, Misfit{Kind: MisfitStopped, Text: fmt.Sprintf("%s ended without a word, or hangs: %s; what it held is free when its leases end",
			countProcesses(len(stopped)), text)})
	}
	return all
}

// differing finds rules of workers that are for one name or one scope and say different
// things. Where there are more than two sets, each is held against the one that most run.
func differing(f *fleet.Fleet) (all []Misfit) {
	type first struct {
		rule fleet.Rule
		set  fleet.Set
	}
	byName := map[string]first{}
	for _, set := range f.Sets {
		if set.Kind != fleet.Worker {
			continue
		}
		for _, r := range set.Rules {
			scope, _ := r.ScopeText()
			name := r.Task + " " + scope
			before, known := byName[name]
			if !known {
				byName[name] = first{r, set}
				continue
			}
			if before.rule.String() == r.String() || len(all) == mostMisfits {
				continue
			}
			all = append(all, Misfit{
				Kind: MisfitDiffer, Bad: true, Hashes: []string{before.set.Hash, set.Hash},
				Text: fmt.Sprintf("rule %q is not the same in all workers: %s in %s, and %s in %s; deploy one version everywhere",
					r.Name, before.rule.String(), processes(before.set), r.String(), processes(set)),
			})
		}
	}
	return all
}

// countProcesses is "1 process" or "3 processes".
func countProcesses(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

func processes(s fleet.Set) string { return fmt.Sprintf("%d of them (%.6s)", s.Runs, s.Hash) }

// hashing finds out whether some processes hash keys and others do not: their keys differ.
func hashing(f *fleet.Fleet) []Misfit {
	var with, without int
	for _, p := range f.Processes {
		switch {
		case p.Stopped(f.At):
		case p.Hashed:
			with++
		default:
			without++
		}
	}
	if with == 0 || without == 0 {
		return nil
	}
	return []Misfit{{Kind: MisfitHashed, Bad: true, Text: fmt.Sprintf("processes with a secret for HashKeys: %d, without: %d; they make different keys of one task: give all the same",
		with, without)}}
}

// pairs holds what producers say against what workers say of the same tasks.
func pairs(f *fleet.Fleet) (all []Misfit) {
	var rules []fleet.Rule // of the workers, each once
	var workers tasktype.Map[[]fleet.Rule]
	seen := map[string]bool{}
	// A client writes within its calls alone, so one that has been quiet still counts.
	ordered := slices.ContainsFunc(f.Processes, func(p fleet.Process) bool { return p.Kind == fleet.Ordered })
	found := func(bad bool, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if len(all) < mostMisfits && !slices.ContainsFunc(all, func(m Misfit) bool { return m.Text == text }) {
			all = append(all, Misfit{Kind: MisfitPair, Bad: bad, Text: text})
		}
	}
	for r := range rulesOf(f, fleet.Worker) {
		if name := r.Task + " " + r.String(); !seen[name] {
			seen[name] = true
			before, _ := workers.At(r.Task)
			workers.Add(r.Task, append(slices.Clip(before), r))
			rules = append(rules, r)
		}
		if r.InOrder && !ordered {
			found(false, "rule %q runs tasks in order, and no process has said in the last 15 minutes that it enqueues with automutex.NewClient (one with Config.Private does not say so): a task has its place from when it first comes to a worker, not from its Enqueue", r.Name)
		}
	}
	for r := range rulesOf(f, fleet.Producer) {
		its, _ := workers.Find(r.Task)
		for _, w := range rules { // for some of the producers' tasks alone
			if strings.HasPrefix(w.Task, r.Task) {
				its = append(slices.Clip(its), w)
			}
		}
		if len(its) == 0 && r.Until == "until start" && len(rules) > 0 {
			found(true, "producers have a unique rule for %q that lasts until the start, and no worker has a rule for it: nothing ends the claim at the start; give the workers a rule for it", r.Task)
		}
		for _, w := range its {
			if r.Until == "until start" && w.Busy == "skip" {
				found(false, "tasks %q are unique until their start, and workers skip one that finds its key busy: a change that was enqueued while one ran is lost; use park or retry in the workers' rule, or until done", r.Task)
			}
		}
	}
	return all
}

// rulesOf gives the rules of the sets of one kind.
func rulesOf(f *fleet.Fleet, kind string) iter.Seq[fleet.Rule] {
	return func(yield func(fleet.Rule) bool) {
		for _, set := range f.Sets {
			for _, r := range set.Rules {
				if set.Kind == kind && !yield(r) {
					return
				}
			}
		}
	}
}
