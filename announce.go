package automutex

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/nearest"
)

// This file is what a Guard says of itself to the page, the command, doctor and other Guards; see internal/fleet.

// announcer makes what writes the Guard's rules to Redis; nil, and then nothing is written, with Config.Private and
// without rules. The Guard owns the announcer's goroutine: Middleware, which is called once and not for each task,
// begins it, and Close ends it.
func (g *Guard) announcer(rdb fleet.Client) *fleet.Announcer {
	if g.cfg.Private || len(g.cfg.Rules) == 0 {
		return nil
	}
	self := fleet.Process{Owner: g.cfg.Owner, Hashed: g.rules.secret != "", Rules: describe(g.cfg.Rules)}
	return fleet.New(rdb, g.cfg.Prefix, self, g.served.list, g.warnDiffer)
}

// warnDiffer warns of scopes for which another Guard has other rules or limits.
func (g *Guard) warnDiffer(found []fleet.Difference) {
	scopes := make([]string, len(found))
	for i, d := range found {
		scopes[i] = d.Scope
	}
	g.log.Warn("automutex: another process has other rules: "+found[0].String(), "scopes", scopes)
}

// servedTypes is the task types that the Guard is known to have a handler for: those of tasks that came, and patterns of
// the mux that Run or Middleware was given. Safe for concurrent use; the zero value is empty.
type servedTypes struct {
	types atomic.Pointer[map[string]bool] // replaced and never changed, so that a task costs one look; nil: none
	mu    sync.Mutex                      // guards the replacement
}

// mostServed bounds servedTypes: who enqueues chooses the types of tasks.
const mostServed = 100

// add adds a type, and reports whether it is new.
func (s *servedTypes) add(taskType string) (isNew bool) {
	if s.has(taskType) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has(taskType) {
		return false
	}
	types := map[string]bool{taskType: true}
	if before := s.types.Load(); before != nil {
		maps.Copy(types, *before)
	}
	s.types.Store(&types)
	return true
}

// has reports whether the type is known, or is one too many.
func (s *servedTypes) has(taskType string) bool {
	types := s.types.Load()
	return types != nil && ((*types)[taskType] || len(*types) >= mostServed)
}

func (s *servedTypes) list() []string {
	if types := s.types.Load(); types != nil {
		return slices.Sorted(maps.Keys(*types))
	}
	return nil
}

// askMux adds the patterns under which the handler, an asynq.ServeMux or what embeds one, has the types of rules. It cannot list the
// others.
func (s *servedTypes) askMux(handler asynq.Handler, rules []Rule) {
	if mux, ok := handler.(interface {
		Handler(t *asynq.Task) (asynq.Handler, string)
	}); ok {
		for _, rule := range rules {
			if _, pattern := mux.Handler(asynq.NewTask(rule.Task, nil)); pattern != "" {
				s.add(pattern)
			}
		}
	}
}

// noteType notes that a task of the type came. If the type has no rule, it warns once of each rule that nothing is known to serve, and whose
// Task looks like the type.
func (g *Guard) noteType(taskType string) {
	if !g.served.add(taskType) || g.rules.find(taskType) != nil {
		return
	}
	for _, p := range g.rules.declared {
		if !nearest.IsMeant(p.task, taskType) || slices.ContainsFunc(g.served.list(), func(served string) bool { return g.rules.find(served) == p }) {
			continue
		}
		g.warnOnce("nothing serves "+p.task, fmt.Sprintf("a rule is for %q, which nothing is known to serve, and a task of type %q has no rule, and runs without a lock: "+
			"did you mean %[2]q?", p.task, taskType), "rule", p.rules[0].Name)
	}
}

// MarshalJSON returns what a file of package config says: Prefix, History and Rules with their defaults, each named as [New]
// names it. What is a function in the program becomes a text that no file has, or "computed": true for a Key.
// The secret of HashKeys is left out, as is what belongs to the process.
func (c Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Prefix  string       `json:"prefix,omitempty"`
		History int          `json:"history,omitempty"`
		Rules   []fleet.Rule `json:"rules"`
	}{c.Prefix, c.History, describe(c.Rules)})
}

// describe returns rules as files have them.
func describe(declared []Rule) []fleet.Rule {
	named := make([]*compiledRule, len(declared))
	for i, rule := range declared {
		named[i] = &compiledRule{Rule: rule, index: i}
	}
	nameRules(named)
	described := make([]fleet.Rule, len(named))
	for i, r := range named {
		described[i] = fleet.Rule{
			Name: r.Name, Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Computed: r.Key != nil, Optional: r.Optional, Scope: r.Scope,
			Limit: r.limitJSON(), TTL: fleet.Duration(cmp.Or(r.TTL, defaultTTL)), Wait: fleet.Duration(r.Wait), MaxHold: fleet.Duration(r.MaxHold),
			Cooldown: fleet.Duration(r.Cooldown), InOrder: r.InOrder, MaxQueued: r.MaxQueued, Fence: r.Fence, Busy: r.Busy.json(),
		}
		if r.OnArchive != HoldKey {
			described[i].OnArchive = r.OnArchive.String()
		}
		if r.Rate != (Rate{}) {
			described[i].Rate = &fleet.Rate{Starts: r.Rate.Starts, Per: fleet.Duration(r.Rate.Per), Burst: r.Rate.burst()}
		}
	}
	return described
}

// limitJSON is the limit of the rule as a file has it.
func (c *compiledRule) limitJSON() json.RawMessage {
	switch {
	case c.LimitOf != nil:
		return jsonOf("computed")
	case c.LimitField != nil:
		of := map[string]any{"field": c.LimitField.Path}
		if c.LimitField.Default > 0 {
			of["default"] = c.LimitField.Default
		}
		if c.LimitField.Most > 0 {
			of["most"] = c.LimitField.Most
		}
		return jsonOf(of)
	case c.Limit == Unlimited:
		return jsonOf("unlimited")
	}
	return jsonOf(cmp.Or(c.Limit, defaultLimit))
}

// json is the policy as a file has it.
func (p Policy) json() json.RawMessage {
	if p.kind == policyRetryIn {
		return jsonOf(map[string]fleet.Duration{"retry_in": fleet.Duration(p.delay)})
	}
	return jsonOf(p.String())
}

func jsonOf(v any) json.RawMessage {
	text, _ := json.Marshal(v) //nolint:errchkjson // of texts and numbers, so there is no error
	return text
}
