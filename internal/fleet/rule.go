package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

// Rule is a rule as a file of package config has it. What is a function in the program has a text that no file has.
type Rule struct {
	Name      string          `json:"name"`
	Task      string          `json:"task"`
	On        []string        `json:"on,omitempty"`
	OnHeaders []string        `json:"on_headers,omitempty"`
	Computed  bool            `json:"computed,omitempty"` // by a Key of the program; no key of files
	Optional  bool            `json:"optional,omitempty"`
	Scope     string          `json:"scope,omitempty"` // as the program has it; empty: each type has its own
	Limit     json.RawMessage `json:"limit,omitempty"` // 3, "unlimited", {"field": "tenant.max", "default": 3, "most": 50}; or "computed"
	TTL       Duration        `json:"ttl,omitempty"`
	Wait      Duration        `json:"wait,omitempty"`
	MaxHold   Duration        `json:"max_hold,omitempty"`
	Cooldown  Duration        `json:"cooldown,omitempty"`
	Rate      *Rate           `json:"rate,omitempty"`
	InOrder   bool            `json:"in_order,omitempty"`
	OnArchive string          `json:"on_archive,omitempty"`
	MaxQueued int             `json:"max_queued,omitempty"`
	Fence     bool            `json:"fence,omitempty"`
	Busy      json.RawMessage `json:"busy,omitempty"` // "park", {"retry_in": "30s"}; or "after failure"
}

// Rate is the rate of a rule.
type Rate struct {
	Starts int      `json:"starts"`
	Per    Duration `json:"per"`
	Burst  int      `json:"burst"`
}

// Duration is a time.Duration that is text in JSON: 1m30s.
type Duration time.Duration

func (d Duration) String() string { return printable.Exact(time.Duration(d)) }

// MarshalText is that of encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is that of encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// ScopeText is the scope of the rule as it stands in keys. Where each type has its own, it is
// what they begin with, and byType is true.
func (r Rule) ScopeText() (scope string, byType bool) { return keys.RuleScope(r.Scope, r.Task) }

// Has reports whether the rule makes keys with that scope, as it stands in keys.
func (r Rule) Has(scope string) bool { return keys.RuleHas(r.Scope, r.Task, scope) }

// IsFor reports whether a control's scope is for keys of the rule: it is a scope of the rule, or the
// beginning of one.
func (r Rule) IsFor(scope string) bool { return keys.ControlsRule(r.Scope, r.Task, scope) }

// KeyText shows how the keys of the rule are made, as in report|<tenant>.
func (r Rule) KeyText() string {
	parts := []string{cmp.Or(r.Scope, "<type>")}
	for _, path := range r.On {
		parts = append(parts, "<"+path+">")
	}
	for _, name := range r.OnHeaders {
		parts = append(parts, "<header "+name+">")
	}
	if r.Computed {
		parts = append(parts, "<computed>")
	}
	return strings.Join(parts, "|")
}

// LimitShown is how many may hold a key of the rule at once.
func (r Rule) LimitShown() string {
	var of struct {
		Field   string `json:"field"`
		Default int    `json:"default"`
		Most    int    `json:"most"`
	}
	if json.Unmarshal(r.Limit, &of) != nil {
		return strings.Trim(string(r.Limit), `"`)
	}
	var more []string
	if of.Default > 0 {
		more = append(more, fmt.Sprintf("default %d", of.Default))
	}
	if of.Most > 0 {
		more = append(more, fmt.Sprintf("most %d", of.Most))
	}
	if len(more) == 0 {
		return "<" + of.Field + ">"
	}
	return "<" + of.Field + "> (" + strings.Join(more, ", ") + ")"
}

// BusyShown is the policy of the rule.
func (r Rule) BusyShown() string {
	var timed struct {
		After string `json:"retry_in"`
	}
	if json.Unmarshal(r.Busy, &timed) != nil {
		return strings.Trim(string(r.Busy), `"`)
	}
	return "retry in " + timed.After
}

// Also lists what the rule says beside its key, limit, TTL, Wait and policy.
func (r Rule) Also() (also []string) {
	add := func(is bool, format string, args ...any) {
		if is {
			also = append(also, fmt.Sprintf(format, args...))
		}
	}
	add(r.InOrder, "in order")
	add(r.OnArchive != "", "on archive %s", r.OnArchive)
	add(r.MaxQueued > 0, "at most %d queued", r.MaxQueued)
	add(r.Fence, "fenced")
	add(r.Optional, "optional")
	if r.Rate != nil {
		add(true, "rate %d per %s, burst %d", r.Rate.Starts, r.Rate.Per, r.Rate.Burst)
	}
	add(r.Cooldown > 0, "cooldown %s", r.Cooldown)
	add(r.MaxHold > 0, "held for at most %s", r.MaxHold)
	return also
}

// String says the rule in one line.
func (r Rule) String() string { return r.KeyText() + ", " + r.BusyShown() + ", " + r.ofKeys() }

// ofKeys is what rules have to agree on whose keys are the same.
func (r Rule) ofKeys() string {
	return strings.Join(append([]string{"limit " + r.LimitShown(), "lease " + r.TTL.String()}, r.Also()...), ", ")
}

// Rules returns the rules of processes, each name once: where two differ, that of the Guard that began first.
func Rules(processes []Process) (rules []Rule) {
	known := map[string]bool{}
	for _, p := range processes {
		for _, r := range p.Rules {
			if !known[r.Name] {
				known[r.Name] = true
				rules = append(rules, r)
			}
		}
	}
	return rules
}

// Difference is a scope for which the rules of two Guards do not agree.
type Difference struct {
	Scope              string
	One, Other         Process
	OneSays, OtherSays string
}

// String says what is wrong, and what to do.
func (d Difference) String() string {
	return fmt.Sprintf("rules for scope %s differ: %s in %s, and %s in %s; deploy one version everywhere, or give them different scopes",
		printable.Short(d.Scope), d.OneSays, d.One.Owner, d.OtherSays, d.Other.Owner)
}

// Differences finds scopes for which rules of two Guards do not agree, each once. Rules for one task are to be equal.
// Rules for two tasks that share a scope are to agree on what belongs to its keys, as those of one Guard do.
func Differences(processes []Process) (all []Difference) {
	type said struct {
		text string
		by   Process
	}
	first, told := map[[2]string]said{}, map[string]bool{}
	for _, p := range processes {
		alike := map[[2]string]int{} // a task may have several rules of one scope, which are told apart by their order
		for _, r := range p.Rules {
			scope, _ := r.ScopeText()
			shared := Rule{Limit: r.Limit, TTL: r.TTL, Rate: r.Rate, Fence: r.Fence, InOrder: r.InOrder, OnArchive: r.OnArchive, MaxQueued: r.MaxQueued}
			alike[[2]string{scope, r.Task}]++
			task := fmt.Sprint(r.Task, " ", alike[[2]string{scope, r.Task}])
			for _, s := range [][2]string{{task, r.String()}, {"", shared.ofKeys()}} {
				of, text := [2]string{scope, s[0]}, s[1]
				if p.Hashed {
					text += ", keys hashed"
				}
				before, known := first[of]
				if !known {
					first[of] = said{text, p}
				} else if before.text != text && !told[scope] {
					told[scope] = true
					all = append(all, Difference{scope, before.by, p, before.text, text})
				}
			}
		}
	}
	return all
}
