package automutex

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// Defaults of [Config] and [Rule].
const (
	defaultPrefix = inside.DefaultPrefix
	defaultLimit  = 1
	defaultTTL    = lock.DefaultTTL

	minTTL = engine.MinTTL
)

// Config is what [New] makes a Guard from. New reads it once: do not change it, or the slices
// in it, afterwards.
type Config struct {
	// Rules declare which tasks take turns. If several rules apply to a task, it takes its
	// locks in the order of the rules; see [Rule].Scope. Without rules, every task runs as if
	// there were no Guard.
	Rules []Rule

	// Prefix starts every Redis key of this Guard. Empty means "automutex". Braces, spaces and
	// control characters are refused, and so is "asynq", with which asynq's own keys start.
	// Guards with the same Prefix must serve the same asynq Redis.
	Prefix string

	// HashKeys is a secret that keeps payload values out of keys, and so out of
	// Redis, logs, events and errors. In a key the values are replaced by their
	// HMAC-SHA256 under this secret; the scope stays readable. (A plain hash would not
	// hide account numbers: an attacker can hash all of them.) All Guards with a
	// Prefix, and the producers of package unique, need the same secret; changing it
	// renames every lock, as another Prefix does. Empty means that keys are readable.
	// Otherwise it has 16 to 1,024 bytes.
	HashKeys string

	// Decode returns the payload that rules read, for tasks whose payload is an envelope
	// that another middleware unwraps. On and [Rule].Payload refer to the JSON that Decode
	// returns. A Key, also one made by [Fields] or [KeyOf], gets a task with the same type
	// and headers and that payload, which need not be JSON. Handlers get the task as it was
	// enqueued. For a task without an envelope return t.Payload(). nil means that rules read
	// the payload as it is.
	//
	// Middleware and Keys call Decode once for a task if one of its rules has On, Key
	// or LimitOf. Middleware calls it again when it has to make the key again. An error of
	// Decode has the same effect as that of a [KeyFunc], for each of these rules. A panic fails
	// the attempt, as a panic of the handler does.
	//
	// Many goroutines call Decode at once. It must not change the task, and must return the
	// same bytes for the same task. Producers need the same function as Config.Decode of
	// package unique.
	Decode func(*asynq.Task) ([]byte, error)

	// Owner is the label of this process as the holder of a lock, for operators. It
	// need not be unique. Empty means "host:pid".
	Owner string

	// MinReplicas is how many replicas of a key's master must acknowledge a lease, so
	// that a failover to one of them does not forget it; see [lock.Options]. If too few
	// acknowledge, the task returns to asynq, its attempt not spent, as when Redis is
	// away. If replicas stay away for a TTL, the contexts of running handlers end. 0
	// waits for no replica; negative numbers are refused.
	MinReplicas int

	// Inspector wakes the parked tasks of the policy [Park]. It must be on the Redis of asynq.
	// nil means that New makes one from the Guard's own Redis client, which must then be a
	// redis.UniversalClient. The Guard does not close it.
	Inspector *asynq.Inspector

	// WakeAtFront puts woken tasks before the pending tasks of their queue, not behind them.
	// It moves the task's ID in asynq's own list of pending tasks, whose layout asynq does not
	// promise; it was checked with asynq 0.26. The Guard's Redis client must be a
	// redis.UniversalClient on the Redis of asynq.
	WakeAtFront bool

	// History is how many of the last runs of each key the Guard keeps in Redis, for the page of a key (package web):
	// when a task came, started and ended, its ID, its worker and how it ended. A wait in line that ended without a run
	// counts as one. Nothing of a payload or of an error is among them. A key's runs expire a day after its last one; all
	// keys under the Prefix keep about 200,000 runs, and at most 5,000 of them any: those that were idle for longest lose theirs.
	//
	// The Guard sends them four times a second at most: no task waits for that, and what Redis refuses, or does not take
	// in time, is dropped and logged. A run costs Redis 4 to 15 us and 110 to 290 bytes. The user in Redis needs the
	// right to xadd. 0 keeps none. Negative numbers, and those above 1,000, are refused.
	History int

	// Private keeps the Guard from telling operators and other Guards which rules it runs. Otherwise it writes its rules
	// and Owner under the Prefix, a second after Middleware or Run is called and then every 20 seconds, and Close removes
	// them. It warns once if another Guard has other rules for one of its scopes. No payload value is written. If Redis
	// refuses, nothing else changes.
	Private bool

	// Logger is where the Guard logs. nil means slog.Default().
	Logger *slog.Logger

	// Observe is called with every [Event], by many goroutines at once. It runs on the
	// path of the task, so it should be quick. nil means none. A panic in it is logged.
	Observe func(context.Context, Event)
}

// withDefaults fills in the zero values of Config itself; compile does so for
// the rules.
func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	c.Owner = cmp.Or(c.Owner, engine.Process())
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

func checkConfig(cfg Config) []*FieldError {
	var mistakes fieldErrors
	if err := engine.CheckPrefix(cfg.Prefix); err != nil {
		mistakes.addf("Prefix", "%w", err)
	}
	if cfg.Prefix == "asynq" {
		mistakes.addf("Prefix", `"asynq" is what asynq's own keys start with; choose another, such as "myapp"`)
	}
	if err := engine.CheckSecret(cfg.HashKeys); err != nil {
		mistakes.addf("HashKeys", "%w", err)
	}
	if cfg.MinReplicas < 0 {
		mistakes.addf("MinReplicas", "%d is negative; use 0 to wait for no replica", cfg.MinReplicas)
	}
	if cfg.History < 0 || cfg.History > history.Most {
		mistakes.addf("History", "%d is not from 0 to %d; use 0 to keep no runs", cfg.History, history.Most)
	}
	return mistakes.all
}

// notices tells of what is allowed but may surprise.
func (rs *ruleSet) notices() (notices []string) {
	for _, p := range rs.declared {
		if strings.Contains(p.task, "*") {
			notices = append(notices, fmt.Sprintf("automutex: %s: Task: %q matches only types that have that * in them: "+
				"a Task is a type or its beginning, and needs no *", p.rules[0].where(), p.task))
		}
	}
	for _, p := range rs.declared {
		for _, rule := range p.rules {
			notices = append(notices, rule.noticeSenseless()...)
		}
	}
	for _, p := range rs.declared {
		if shorter, ok := rs.byType.FindShorter(p.task); ok && !p.covers(shorter) {
			notices = append(notices, fmt.Sprintf(
				"automutex: %s hides %s from tasks whose type begins with %q: the longest Task wins; declare the latter for that Task too if both are meant",
				p.rules[0].where(), shorter.rules[0].where(), p.task))
		}
	}
	return notices
}

// senseless are the fields of a rule that have no effect under its policy, or not the one that their names promise. New
// warns of them. It refuses others, see check; testdata/policies.txt has each policy with each field.
var senseless = []struct {
	policy policyKind
	field  string
	isSet  func(*compiledRule) bool
	why    string
}{
	{policyPark, "Wait", func(c *compiledRule) bool { return c.Wait > 0 }, "has no effect under the policy park, which is also that of a rule without Busy: " +
		"a task waits in its worker while another worker is free, and then parks; choose the policy retry if tasks are to wait for this time, or leave Wait out"},
	{policyAllow, "Cooldown", func(c *compiledRule) bool { return c.Cooldown > 0 }, "prevents no run under the policy allow: " +
		"a task that comes within that time runs without the lock; the policy skip drops it; choose that, or leave Cooldown out"},
	{policyAllow, "Rate", func(c *compiledRule) bool { return c.Rate != (Rate{}) }, "bounds nothing under the policy allow: " +
		"a task that comes too early runs without the lock; under the policy park it comes in time; choose that, or leave Rate out"},
	{policyAllow, "Fence", func(c *compiledRule) bool { return c.Fence }, "protects nothing under the policy allow: " +
		"a task that runs without the lock has no fence; give the rule another policy, or leave Fence out"},
}

// noticeSenseless tells of the fields that have no effect under the rule's policy.
func (c *compiledRule) noticeSenseless() (notices []string) {
	for _, s := range senseless {
		if c.Busy.kind == s.policy && s.isSet(c) {
			notices = append(notices, fmt.Sprintf("automutex: %s: %s: %s", c.where(), s.field, s.why))
		}
	}
	return notices
}

// covers reports whether each lock of the other pattern is also one of p: a rule with the same Scope makes the same key.
func (p *pattern) covers(other *pattern) bool {
	for _, theirs := range other.rules {
		if theirs.Scope == "" || theirs.Key != nil || !slices.ContainsFunc(p.rules, func(ours *compiledRule) bool {
			return ours.Scope == theirs.Scope && ours.Key == nil && slices.Equal(ours.On, theirs.On) && slices.Equal(ours.OnHeaders, theirs.OnHeaders)
		}) {
			return false
		}
	}
	return true
}
