// Package fleet is how the processes of a prefix say which rules they run: workers and
// producers write, and the page, the command and doctor read. A process writes a record of
// itself and its rules, without any value of a payload. All keys begin with <prefix>:{fleet}:,
// so that they share one slot of a Cluster, and none is the key of a lock.
//
//	<prefix>:{fleet}:processes    sorted set: ID of a process, by when it wrote last
//	<prefix>:{fleet}:process:<ID> string: a Process as JSON
//	<prefix>:{fleet}:rules:<hash> string: a []Rule as JSON; processes with equal rules share it
package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	lockkeys "github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// Every is how often a process writes.
	Every = time.Minute
	// StoppedAfter is after how long without a word a process counts as stopped: it has missed
	// two of its times.
	StoppedAfter = 150 * time.Second
	// keepFor is how long Redis keeps what a process wrote last, so that a stopped one is seen.
	keepFor = 15 * time.Minute
)

// What a process does with its rules.
const (
	Worker   = "worker"   // a Guard
	Producer = "producer" // a Client of package unique
	Ordered  = "client"   // a Client that enqueues in order
)

// Rule is what a rule says, as data for people. Its JSON is what Redis keeps.
type Rule struct {
	Name      string        `json:"name"`
	Task      string        `json:"task"`
	Scope     string        `json:"scope,omitempty"` // as the program has it; empty: each type has its own
	On        []string      `json:"on,omitempty"`
	OnHeaders []string      `json:"on_headers,omitempty"`
	Computed  bool          `json:"computed,omitempty"` // by a Key of the program
	Limit     int           `json:"limit,omitempty"`
	LimitText string        `json:"limit_text,omitempty"` // where a function says the limit
	TTL       time.Duration `json:"ttl,omitempty"`
	Wait      time.Duration `json:"wait,omitempty"`
	MaxHold   time.Duration `json:"max_hold,omitempty"`
	Cooldown  time.Duration `json:"cooldown,omitempty"`
	Rate      string        `json:"rate,omitempty"`
	Busy      string        `json:"busy,omitempty"`
	InOrder   bool          `json:"in_order,omitempty"`
	Fence     bool          `json:"fence,omitempty"`
	Optional  bool          `json:"optional,omitempty"`
	// Of producers alone.
	Queue     string `json:"queue,omitempty"`
	Until     string `json:"until,omitempty"`
	Duplicate string `json:"duplicate,omitempty"`
}

// Process is one Guard or Client, as it announces itself.
type Process struct {
	ID      string    `json:"id"`   // random
	Kind    string    `json:"kind"` // Worker, Producer or Ordered
	Owner   string    `json:"owner"`
	Version string    `json:"version,omitempty"` // of automutex
	App     string    `json:"app,omitempty"`     // path and version of the program's module
	Started time.Time `json:"started"`
	Hashed  bool      `json:"hashed,omitempty"` // it has a secret for HashKeys
	Hash    string    `json:"hash"`             // of its rules

	Seen time.Time `json:"-"` // when it wrote last, by Redis' clock
}

// Stopped reports whether the process has not written for too long. now is Redis' time.
func (p Process) Stopped(now time.Time) bool { return now.Sub(p.Seen) > StoppedAfter }

// keys of one prefix.
type keys string

func (k keys) index() string            { return string(k) + ":{fleet}:processes" }
func (k keys) process(id string) string { return string(k) + ":{fleet}:process:" + id }
func (k keys) rules(hash string) string { return string(k) + ":{fleet}:rules:" + hash }

// encodeRules returns rules as Redis keeps them, and their hash.
func encodeRules(rules []Rule) (text []byte, hash string) {
	text, err := json.Marshal(rules)
	if err != nil {
		panic(err) // a Rule has texts and numbers alone
	}
	sum := sha256.Sum256(text)
	return text, hex.EncodeToString(sum[:8])
}

// Hash tells different sets of rules apart.
func Hash(rules []Rule) string {
	_, hash := encodeRules(rules)
	return hash
}

// ScopeText is the scope of the rule as it stands in keys. Where each type has its own, it is
// what they begin with, and byType is true.
func (r Rule) ScopeText() (scope string, byType bool) { return lockkeys.RuleScope(r.Scope, r.Task) }

// Has reports whether the rule makes keys with that scope, as it stands in keys.
func (r Rule) Has(scope string) bool { return lockkeys.RuleHas(r.Scope, r.Task, scope) }

// IsFor reports whether a control's scope is for keys of the rule: it is a scope of the rule, or the
// beginning of one.
func (r Rule) IsFor(scope string) bool { return lockkeys.ControlsRule(r.Scope, r.Task, scope) }

// KeyText shows how the keys of the rule are made, as in report|<tenant>.
func (r Rule) KeyText() string {
	parts := []string{r.Scope}
	if r.Scope == "" {
		parts[0] = "<type>"
	}
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
	if r.LimitText != "" {
		return r.LimitText
	}
	return strconv.Itoa(max(r.Limit, 1))
}

// UntilShown is how long a task of a producer's rule blocks its key.
func (r Rule) UntilShown() string { return printable.Timed(strings.TrimPrefix(r.Until, "until ")) }

// Also lists what the rule says beside its key, limit, TTL, Wait and policy.
func (r Rule) Also() (also []string) {
	for _, also1 := range []struct {
		is   bool
		text string
	}{
		{r.InOrder, "in order"},
		{r.Fence, "fenced"},
		{r.Optional, "optional"},
		{r.Rate != "", "rate " + r.Rate},
		{r.Cooldown > 0, "cooldown " + printable.Exact(r.Cooldown)},
		{r.MaxHold > 0, "held for at most " + printable.Exact(r.MaxHold)},
	} {
		if also1.is {
			also = append(also, also1.text)
		}
	}
	return also
}

// String says the rule in one line, for findings about rules that differ.
func (r Rule) String() string {
	text := fmt.Sprintf("%s, limit %s, lease %s, %s", r.KeyText(), r.LimitShown(), printable.Exact(r.TTL), r.Busy)
	return strings.Join(append([]string{text}, r.Also()...), ", ")
}
