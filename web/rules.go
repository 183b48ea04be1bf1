package web

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
)

const (
	// fleetFresh is how old the answer may be to what processes run; they write once a minute.
	fleetFresh = 5 * time.Second
)

// known is the rules that the page knows: those of its Options, or else those that workers
// and producers say they run. It never changes.
type known struct {
	from      *fleet.Fleet // where they are of; nil: of Options alone
	rules     []ruleInfo
	unique    []fleet.Rule
	keyMaker  *automutex.KeyMaker // of the guards
	producers *automutex.KeyMaker
	hashed    bool // some process hashes keys, and the page has no secret
}

// ruleInfo is a rule as the page names it.
type ruleInfo struct {
	fleet.Rule
	scope  string // as keys have it; of the rule's own types when byType is set
	byType bool   // each task type has a scope of its own, which begins with scope
}

// ruleInfos adds what keys have of rules.
func ruleInfos(rules []fleet.Rule) []ruleInfo {
	infos := make([]ruleInfo, len(rules))
	for i, r := range rules {
		infos[i].Rule = r
		infos[i].scope, infos[i].byType = r.ScopeText()
	}
	return infos
}

// fleetNow reads what the processes say, for all viewers, and takes their rules over. With an
// error it gives what was read last.
func (p *page) fleetNow(ctx context.Context) (*fleet.Fleet, error) {
	f, err := p.fleet.get(ctx, fleetFresh, func(ctx context.Context) (*fleet.Fleet, error) {
		f, err := fleet.Read(ctx, p.rdb, p.o.Prefix)
		if err != nil {
			return nil, err
		}
		// Its times are by Redis' clock, and those of the page by its own.
		ahead := time.Until(f.At)
		f.At = f.At.Add(-ahead)
		for i := range f.Processes {
			f.Processes[i].Seen = f.Processes[i].Seen.Add(-ahead)
		}
		return f, nil
	})
	if f != nil && p.known.Load().from != f {
		p.learn(f)
	}
	return f, err
}

// learn makes known of the Options and of what processes say. Two viewers at once make the
// same.
func (p *page) learn(f *fleet.Fleet) {
	k := *p.known.Load()
	k.from = f
	for _, process := range f.Processes {
		k.hashed = p.o.HashKeys == "" && (k.hashed || process.Hashed)
	}
	cfg := automutex.Config{Prefix: p.o.Prefix, HashKeys: p.o.HashKeys, Decode: p.o.Decode, Logger: p.quiet}
	if p.o.Rules == nil {
		described := f.Rules(fleet.Worker)
		k.rules = ruleInfos(described)
		cfg.Rules = inspect.FromFleet(described)
		if maker, err := automutex.NewKeyMaker(cfg); err == nil { // rules that two workers see otherwise may be none together
			k.keyMaker = maker
		}
	}
	if p.o.Unique == nil {
		k.unique = f.Rules(fleet.Producer)
		cfg.Rules = inspect.FromFleet(k.unique)
		if maker, err := automutex.NewKeyMaker(cfg); err == nil {
			k.producers = maker
		}
	}
	p.known.Store(&k)
}

// namesFor gives the names of rulesFor, joined.
func (k *known) namesFor(scope string) string { return strings.Join(k.rulesFor(scope), ", ") }

// rulesFor gives the names of the rules whose locks have that scope: those that name the
// scope, else those with the longest Task that the scope begins with. Scopes that no rule
// makes give none.
func (k *known) rulesFor(scope string) (names []string) {
	longest := 0
	for _, r := range k.rules {
		if !r.Has(scope) {
			continue
		}
		n := len(r.Task)
		if !r.byType {
			n = math.MaxInt // it names the scope
		}
		if n > longest {
			names, longest = nil, n
		}
		if n == longest {
			names = append(names, r.Name)
		}
	}
	return names
}

// namesFor gives the names of the rules of a scope, as far as the page knows them.
func (p *page) namesFor(scope string) string { return p.known.Load().namesFor(scope) }

// unknownTarget says why no task has the target of an order, as far as rules and live locks
// tell; see inspect.Unknown.
func (p *page) unknownTarget(ctx context.Context, target string) (why, meant string) {
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	snap := p.sampler.get(ctx)
	if snap == nil {
		return "", ""
	}
	_, _ = p.fleetNow(ctx)
	k := p.known.Load()
	rules := make([]fleet.Rule, len(k.rules))
	for i, r := range k.rules {
		rules[i] = r.Rule
	}
	why, meant = inspect.Unknown(rules, k.hashed || p.o.HashKeys != "", p.o.Prefix, target)
	if why == "" {
		return "", ""
	}
	name := inspect.InBraces(p.keyOf(target))
	if _, live := snap.byKey[p.keyOf(target)]; live || !strings.Contains(name, "|") && snap.byScope[name] != nil {
		return "", ""
	}
	return why + " Nor is there such a lock now.", meant
}
