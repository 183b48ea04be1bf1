package web

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// rulesView is what each rule says, and what its locks do now.
type rulesView struct {
	frame
	Rules  []ruleRow
	Orders []lock.Control
	Err    string
	Done   *Action

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

// topKeys is how many keys of a rule are named.
const topKeys = 3

func (p *page) rulesPage(w http.ResponseWriter, r *http.Request) {
	p.render(w, http.StatusOK, "rules", p.rulesView(r))
}

func (p *page) rulesView(r *http.Request) *rulesView {
	v := &rulesView{frame: p.frame(r, "rules", "Rules"), Done: p.done(r)}
	v.Live = p.liveURL("rules", "")
	ctx, cancel := context.WithTimeout(r.Context(), firstLook)
	defer cancel()
	var err error
	if v.Orders, err = p.controls(ctx); err != nil {
		v.Err = printable.Short(err.Error())
	}
	v.Recorded = p.past.recorder != nil
	counts, err := p.past.lately(ctx)
	if err != nil && v.Err == "" {
		v.Err = printable.Short(err.Error())
	}
	byName := map[string]*ruleRow{}
	v.Rules = make([]ruleRow, len(p.rules)) // filled in place: byName points into it
	for i, rule := range p.rules {
		v.Rules[i] = newRuleRow(rule, v.Orders)
		v.Rules[i].Lately = newLately(counts[rule.Name])
		byName[rule.Name] = &v.Rules[i]
	}
	snap := p.sampler.get(ctx)
	switch {
	case snap == nil:
		v.Err = errNoAnswer.Error()
		return v
	case snap.err != nil:
		v.Err = printable.Short(snap.err.Error())
	}
	v.Now = time.Now()
	names := map[string][]string{} // by scope
	for _, r := range snap.rows {
		scope := scopeOf(r.Key)
		its, ok := names[scope]
		if !ok {
			its = p.rulesFor(scope)
			names[scope] = its
		}
		for _, name := range its {
			if row := byName[name]; row != nil {
				row.add(r, v.Now)
			}
		}
	}
	return v
}

func newRuleRow(rule ruleInfo, orders []lock.Control) ruleRow {
	r := ruleRow{
		Name: rule.Name, Task: rule.Task, Limit: inspect.LimitText(rule.Rule), TTL: rule.TTL, Wait: rule.Wait, Busy: printable.Timed(rule.Busy.String()),
		Also: inspect.Also(rule.Rule),
	}
	if r.TTL == 0 {
		r.TTL = lock.DefaultTTL
	}
	parts := []string{rule.Scope}
	if rule.byType {
		parts[0] = "<type>"
	}
	if !rule.byType || !strings.HasSuffix(rule.Task, ":") {
		r.Scope = rule.scope // that of the type that the rule names, where each type has its own
	}
	for _, path := range rule.On {
		parts = append(parts, "<"+path+">")
	}
	for _, name := range rule.OnHeaders {
		parts = append(parts, "<header "+name+">")
	}
	if rule.Key != nil {
		parts = append(parts, "<computed>")
	}
	r.Key = strings.Join(parts, "|")
	for _, c := range orders {
		if c.Target == rule.scope {
			r.IsPause = c.Paused
			if c.Limit > 0 {
				r.Limit, r.Limited = strconv.Itoa(c.Limit), true
			}
		}
	}
	return r
}

func (r *ruleRow) add(l row, now time.Time) {
	r.Now.Locks++
	r.Now.Held += l.Held
	r.Now.Waiting += l.Waiting
	r.Now.Parked += l.Parked
	if !l.Since.IsZero() {
		r.Longest = max(r.Longest, now.Sub(l.Since))
	}
	if l.line() > 0 && len(r.Top) < topKeys { // they come by contention
		r.Top = append(r.Top, l)
	}
}
