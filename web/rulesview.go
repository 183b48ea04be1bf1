package web

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/automutex/automutex/lock"
)

// rulesView is what each rule says, and what its locks do now.
type rulesView struct {
	frame
	Rules  []ruleRow
	Orders []lock.Control
	Err    string
	Done   *Action

	freshness
	Seen int // Partial: of how many

	Recorded bool // there is a Recorder
}

type ruleRow struct {
	Name, Task, Key  string
	Limit            string
	Also             []string // what else the rule says
	TTL, Wait        time.Duration
	Busy             string
	Scope            string // the target of orders; empty where the rule names only how types begin
	Now              totals
	Longest          time.Duration // how long the oldest holder has its lock
	Top              []row         // its keys with a line, the most contended first
	Limited, IsPause bool
	Lately           latelyView
}

func (p *page) rulesView(r *http.Request) *rulesView {
	v := &rulesView{frame: p.frame(r, "rules", "Rules"), Done: p.done(r)}
	v.Live = p.liveURL("rules", "")
	ctx, cancel := context.WithTimeout(r.Context(), firstLook)
	defer cancel()
	var err error
	if v.Orders, err = p.controls(ctx); err != nil {
		v.Err = trouble(err, triesAgain)
	}
	v.Recorded = p.past.recorder != nil
	counts, err := p.past.lately(ctx)
	if err != nil && v.Err == "" {
		v.Err = trouble(err, triesAgain)
	}
	snap := p.sampler.get(ctx)
	if why := snap.failure(); why != "" {
		v.Err = why
	}
	if snap == nil {
		return v
	}
	_, _ = p.fleetNow(ctx) // Processes says what is wrong with it
	known := p.known.Load()
	byName := map[string]*ruleRow{}
	v.Rules = make([]ruleRow, len(known.rules)) // filled in place: byName points into it
	for i, rule := range known.rules {
		v.Rules[i] = newRuleRow(rule, v.Orders)
		v.Rules[i].Lately = newLately(counts[rule.Name])
		byName[rule.Name] = &v.Rules[i]
	}
	v.Now = time.Now()
	v.Seen, v.freshness = snap.totals.Locks, snap.freshness(v.Now)
	for scope, its := range snap.byScope {
		for _, name := range known.rulesFor(scope) {
			if row := byName[name]; row != nil {
				row.add(its, v.Now)
			}
		}
	}
	return v
}

func newRuleRow(rule ruleInfo, orders []lock.Control) ruleRow {
	r := ruleRow{
		Name: rule.Name, Task: rule.Task, Key: rule.KeyText(), Limit: rule.LimitShown(), TTL: rule.TTL, Wait: rule.Wait, Busy: rule.Busy, Also: rule.Also(),
		Scope: rule.scope, // where each type has its own, that of the type that the rule names, or "report:" for all of them
	}
	for _, c := range orders {
		if c.Target == rule.scope {
			r.IsPause = c.Paused
			if c.Limit > 0 && !rule.InOrder { // ordered keys have one at a time in any case
				r.Limit, r.Limited = strconv.Itoa(c.Limit), true
			}
		}
	}
	return r
}

func (r *ruleRow) add(t *scopeTotals, now time.Time) {
	r.Now = r.Now.plus(t.totals)
	if !t.Oldest.IsZero() {
		r.Longest = max(r.Longest, now.Sub(t.Oldest))
	}
	for _, l := range t.Top {
		r.Top = keepFirst(r.Top, l, topKeys, busier)
	}
}
