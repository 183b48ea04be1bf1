package automutex

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
)

// announce writes what the Guard says of itself until Close, and then removes it; see internal/fleet. Close waits a
// second at most: Redis may hang.
func (g *Guard) announce() {
	defer close(g.announced)
	if !g.cfg.Private && len(g.cfg.Rules) > 0 {
		fleet.Announce(g.life.Closing, g.rdb, g.cfg.Prefix, func() fleet.Process {
			return fleet.Process{Owner: g.cfg.Owner, Hashed: g.rules.secret != "", Serves: g.served.List(),
				Rules: describe(g.rules)}
		}, func(how string) { g.log.Warn("automutex: another Guard has other rules: " + how) })
	}
}

// sawType takes in that a task of the type came. If no rule is for the type, it warns once of each rule for a like type
// that nothing is known to serve.
func (g *Guard) sawType(taskType string) {
	if !g.served.Add(taskType) || g.rules.match(taskType) != nil {
		return
	}
	for _, rule := range g.rules.rules {
		if nearest.IsMeant(rule.Task, taskType) && !g.serves(rule) {
			g.warnOnce("nothing serves "+rule.Task, fmt.Sprintf("a rule is for %q, which nothing is known to serve, and a "+
				"task of type %q has no rule, and runs without a lock: "+
				"did you mean %[2]q?", rule.Task, taskType), "rule", rule.Name)
		}
	}
}

// serves reports whether a task of the rule has come, or the mux serves one.
func (g *Guard) serves(rule *compiledRule) bool {
	return slices.ContainsFunc(g.served.List(), func(t string) bool { return g.rules.byTask.Pattern(t) == rule.Task })
}

// checkMet tells of rules whose tasks nothing serves here.
func (g *Guard) checkMet() {
	var none []string
	for _, rule := range g.rules.rules {
		if !g.serves(rule) {
			none = append(none, rule.Name)
		}
	}
	if len(none) > 0 {
		g.warnOnce("rules without tasks", "a minute after the first task none is known to have come for these rules: "+
			"compare their Task with the types", "rules", none, "types", g.served.List())
	}
}

type described = inside.Of[[]fleet.Rule]

func describe(rs *ruleSet) []fleet.Rule {
	all := make([]fleet.Rule, len(rs.rules))
	for i, r := range rs.rules {
		all[i] = fleet.Rule{
			Name: r.Name, Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Computed: r.Key != nil, Optional: r.Optional,
			Scope: r.Scope, Limit: r.limitText(), TTL: printable.Exact(r.TTL), Busy: printable.Timed(r.Busy.String()),
			InOrder: r.InOrder, LeaveIdle: r.LeaveIdle,
		}
		if r.Wait > 0 {
			all[i].Wait = printable.Exact(r.Wait)
		}
		if r.StartWithin > 0 {
			all[i].StartWithin = printable.Exact(r.StartWithin)
		}
		shares, also := &all[i].Shares, &all[i].Also
		for _, more := range []struct {
			of   *[]string
			is   bool
			text string
		}{
			{shares, r.InOrder, "in order"},
			{shares, r.OnArchive != HoldKey, "on archive " + r.OnArchive.String()},
			{shares, r.MaxQueued > 0, fmt.Sprintf("at most %d queued", r.MaxQueued)},
			{shares, r.Fence, "fenced"},
			{shares, r.Rate != Rate{}, fmt.Sprintf("rate %d per %s, burst %d", r.Rate.Starts, printable.Exact(r.Rate.Per),
				r.Rate.burst())},
			{shares, r.LeaveIdle > 0, fmt.Sprintf("more while %d workers are idle", r.LeaveIdle)},
			{shares, r.RateOf != nil, "rate computed"},
			{also, r.Cost != nil, "cost computed"},
			{also, r.Optional, "optional"},
			{also, r.Cooldown > 0, "cooldown " + printable.Exact(r.Cooldown)},
			{also, r.MaxHold > 0, "held for at most " + printable.Exact(r.MaxHold)},
			{also, r.StartWithin > 0, "to start within " + printable.Exact(r.StartWithin)},
			{also, r.StartWithin > 0 || r.Late != Archive, "late: " + r.Late.String()},
		} {
			if more.is {
				*more.of = append(*more.of, more.text)
			}
		}
	}
	return all
}

func (c *compiledRule) limitText() string {
	switch {
	case c.LimitOf != nil:
		return "computed"
	case c.LimitField != nil:
		text := ""
		if c.LimitField.Default > 0 {
			text = fmt.Sprint(", default ", c.LimitField.Default)
		}
		if c.LimitField.Most > 0 {
			text += fmt.Sprint(", most ", c.LimitField.Most)
		}
		if text != "" {
			text = " (" + text[2:] + ")"
		}
		return "<" + c.LimitField.Path + ">" + text
	case c.Limit == Unlimited:
		return "unlimited"
	}
	return strconv.Itoa(c.Limit)
}
