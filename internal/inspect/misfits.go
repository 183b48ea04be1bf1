package inspect

import (
	"fmt"

	"github.com/automutex/automutex/internal/fleet"
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
	MisfitDiffer = "differ" // two workers have different rules for one key
	MisfitHashed = "hashed" // some hash keys, and others do not
)

// mostMisfits bounds the rules that differ.
const mostMisfits = 20

// Misfits finds what does not fit together in what live processes run: rules of workers for one task and scope that say
// different things, and keys that are hashed by some alone. Of more than two sets, each is held against the one that most run.
func Misfits(f *fleet.Fleet) (all []Misfit) {
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
				Text: fmt.Sprintf("rule %q is not the same in all workers: %s in %d of them (%.6s), and %s in %d of them (%.6s); deploy one version everywhere",
					r.Name, before.rule.String(), before.set.Runs, before.set.Hash, r.String(), set.Runs, set.Hash),
			})
		}
	}
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
	if with > 0 && without > 0 {
		all = append(all, Misfit{Kind: MisfitHashed, Bad: true, Text: fmt.Sprintf(
			"processes with a secret for HashKeys: %d, without: %d; they make different keys of one task: give all the same", with, without)})
	}
	return all
}
