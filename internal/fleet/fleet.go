// Package fleet is how the Guards of a prefix tell operators, and each other, which rules they run.
// Each writes one field of a hash, without any value of a payload:
//
//	<prefix>:{fleet}:guards    ID of a Guard -> a Process as JSON
//
// One command reads it all. A field has no TTL before Redis 7.4, so each has the time at which it was written. One that
// is older than keepFor does not count, and the next Guard that begins removes it. The hash expires with its last
// writer.
package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

const (
	firstAfter = time.Second // from the beginning to the first write: who lives for a moment writes nothing
	every      = 20 * time.Second
	keepFor    = 50 * time.Second
)

// Process is what one Guard says of itself.
type Process struct {
	Owner  string    `json:"owner"`
	Seen   time.Time `json:"seen"`             // when it wrote last, by its own clock
	Hashed bool      `json:"hashed,omitempty"` // it has a secret for HashKeys
	Serves []string  `json:"serves,omitempty"` // task types that it has a handler for, as far as it knows
	Rules  []Rule    `json:"rules"`
}

// Rule is what a Guard says of a rule: the keys of a file of package config with their values in words.
type Rule struct {
	Name      string   `json:"name"`
	Task      string   `json:"task"`
	On        []string `json:"on,omitempty"`
	OnHeaders []string `json:"on_headers,omitempty"`
	Computed  bool     `json:"computed,omitempty"` // by a Key of the program
	Optional  bool     `json:"optional,omitempty"`
	Scope     string   `json:"scope,omitempty"` // empty: each type has its own
	// 3, unlimited, <tenant.max> (default 3, most 50) or computed; a rate is in Shares
	Limit     string   `json:"limit"`
	TTL       string   `json:"ttl"`
	Wait      string   `json:"wait,omitempty"`
	Busy      string   `json:"busy"` // such as park, or retry in 30s
	InOrder   bool     `json:"in_order,omitempty"`
	LeaveIdle int      `json:"leave_idle,omitempty"` // also in Shares
	Shares    []string `json:"shares,omitempty"`     // what else all rules of the scope have to say alike, a text each
	Also      []string `json:"also,omitempty"`       // what else the rule says

	StartWithin string `json:"start_within,omitempty"` // also in Also
}

// ScopeText is the scope of the rule as it stands in keys. byType: each type has its own, which begins so.
func (r Rule) ScopeText() (scope string, byType bool) { return keys.RuleScope(r.Scope, r.Task) }

// Has reports whether the rule makes keys with that scope, as it stands in keys.
func (r Rule) Has(scope string) bool { return keys.RuleHas(r.Scope, r.Task, scope) }

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

// Key is the key of the hash.
func Key(prefix string) string { return prefix + ":{fleet}:guards" }

// Client is what is needed of a client of Redis.
type Client interface{ Pipeline() redis.Pipeliner }

// Read returns what the Guards of a prefix say of themselves, in the order of their IDs, which begin with their owners.
func Read(ctx context.Context, rdb Client, prefix string) ([]Process, error) {
	processes, _, err := read(ctx, rdb, Key(prefix))
	return processes, err
}

// read also returns the fields that do not count any more.
func read(ctx context.Context, rdb Client, key string) (processes []Process, old []string, err error) {
	pipe := rdb.Pipeline()
	fields := pipe.HGetAll(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(fields.Val())) {
		var p Process
		if json.Unmarshal([]byte(fields.Val()[id]), &p) != nil || time.Since(p.Seen) > keepFor {
			old = append(old, id)
		} else {
			processes = append(processes, p)
		}
	}
	return processes, old, nil
}

// Rules returns the rules of processes, each name once: where two differ, that of the first process.
func Rules(processes []Process) (rules []Rule) {
	for _, p := range processes {
		for _, r := range p.Rules {
			if !slices.ContainsFunc(rules, func(known Rule) bool { return known.Name == r.Name }) {
				rules = append(rules, r)
			}
		}
	}
	return rules
}

// Differences says where two Guards do not agree, once for each scope. Rules of one scope are to have one limit,
// one TTL and the same Shares, and rules of one name to be equal.
func Differences(processes []Process) (all []string) {
	type said struct{ text, by string }
	first, told := map[string]said{}, map[string]bool{}
	for _, p := range processes {
		for _, r := range p.Rules {
			scope, _ := r.ScopeText()
			shared := strings.Join(append([]string{"limit " + r.Limit, "lease " + r.TTL}, r.Shares...), ", ")
			if p.Hashed {
				shared += ", keys hashed"
			}
			whole := strings.Join(append([]string{r.KeyText(), r.Busy, shared}, r.Also...), ", ")
			for _, says := range [][2]string{{"scope " + scope, shared}, {"rule " + r.Name, whole}} {
				subject, text := says[0], says[1]
				before, known := first[subject]
				if !known {
					first[subject] = said{text, p.Owner}
				} else if before.text != text && !told[scope] {
					told[scope] = true
					all = append(all, fmt.Sprintf("%s differs: %s in %s, and %s in %s; deploy one version everywhere, or give them "+
						"different scopes",
						printable.Short(subject), before.text, before.by, text, p.Owner))
				}
			}
		}
	}
	return all
}

// Announce writes what a Guard says of itself until ctx ends, and asks self for it each time; then it removes it,
// within a second. After the first write it calls warn, once, if another Guard differs. Nothing depends on it: a write
// that fails is forgotten.
func Announce(ctx context.Context, rdb Client, prefix string, self func() Process, warn func(string)) {
	key, id, said := Key(prefix), self().Owner+" "+rand.Text(), false
	for next := firstAfter; ; next = every {
		select {
		case <-time.After(next):
		case <-ctx.Done():
			if said {
				withdraw(context.WithoutCancel(ctx), rdb, key, id)
			}
			return
		}
		p := self()
		p.Seen = time.Now().UTC()
		text, _ := json.Marshal(p) //nolint:errchkjson // it has texts and times alone
		pipe := rdb.Pipeline()
		pipe.HSet(ctx, key, id, text)
		pipe.PExpire(ctx, key, keepFor)
		if _, err := pipe.Exec(ctx); err == nil && !said {
			said = true
			hear(ctx, rdb, key, p, warn)
		}
	}
}

// hear looks at what others say, and removes what does not count any more. The Guard has written before: so of two
// that begin together, one at least sees the other.
func hear(ctx context.Context, rdb Client, key string, self Process, warn func(string)) {
	processes, old, _ := read(ctx, rdb, key)
	if len(old) > 0 {
		withdraw(ctx, rdb, key, old...)
	}
	for _, other := range processes {
		if differ := Differences([]Process{self, other}); len(differ) > 0 {
			warn(differ[0])
			return
		}
	}
}

// withdraw removes fields. One that stays does not count for longer than keepFor.
func withdraw(ctx context.Context, rdb Client, key string, ids ...string) {
	bound, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pipe := rdb.Pipeline()
	pipe.HDel(bound, key, ids...)
	_, _ = pipe.Exec(bound)
}
