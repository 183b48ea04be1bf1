package automutex

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inside"
)

// Config is what [New] makes a Guard from. New copies what it reads.
type Config struct {
	// Rules declare which tasks take turns. If several apply to a task, it takes its locks in their order; see
	// [Rule].Scope.
	Rules []Rule

	// Prefix starts every Redis key of this Guard. Empty means "automutex". Braces, spaces and control characters are
	// refused, and so is "asynq". Guards with the same Prefix must serve the same asynq Redis.
	Prefix string

	// HashKeys is a secret of 16 to 1,024 bytes that keeps payload values out of keys, and so out of Redis, logs, events
	// and errors: their HMAC-SHA256 takes their place; the scope stays readable. All Guards with a Prefix, and producers,
	// need the same secret; another one renames every lock. Empty means that keys are readable.
	HashKeys string

	// Decode returns the payload that rules read, for tasks whose payload is an envelope that another middleware unwraps.
	// On and [Rule].Payload refer to the JSON that Decode returns. A Key gets a task with the same type and headers and
	// that payload, which need not be JSON. Handlers get the task as it was enqueued. For a task without an envelope
	// return t.Payload(). nil means that rules read the payload as it is.
	//
	// Decode is called once if a rule of the task has On, Key or bounds of the task. An error has the same effect as that
	// of a [KeyFunc], for each of these rules; a panic fails the attempt.
	//
	// Many goroutines call Decode at once. It must not change the task, and must return the same bytes for the same task.
	// Package unique needs the same function.
	Decode func(*asynq.Task) ([]byte, error)

	// Owner is the label of this process as the holder of a lock; it need not be unique. Empty means "host:pid".
	Owner string

	// MinReplicas is how many replicas of a key's master must acknowledge a lease, so that a failover to one of them does
	// not forget it; see [lock.Options]. With too few the task returns to asynq, its attempt not spent; if they stay away
	// for a TTL, the contexts of running handlers end. 0 waits for none; negative numbers are refused.
	MinReplicas int

	// Inspector wakes parked tasks ([Park]). It must be on the Redis of asynq. nil means that New makes one from the
	// Guard's own Redis client, which must then be a redis.UniversalClient. The Guard does not close it.
	Inspector *asynq.Inspector

	// WakeAtFront puts woken tasks before the pending tasks of their queue. It moves the task's ID in asynq's own list,
	// whose layout asynq does not promise; it was checked with asynq 0.26. The Guard's Redis client must be a
	// redis.UniversalClient on the Redis of asynq.
	WakeAtFront bool

	// History is how many of the last runs of each key the Guard keeps in Redis, for the page of a key (package web):
	// when a task came, started and ended, its ID, its worker and how it ended, or a wait in line that ended without a
	// run. Nothing of a payload or of an error is among them. A key's runs expire a day after its last one; all keys
	// under the Prefix keep about 200,000 runs, and at most 5,000 of them any: the longest idle lose theirs.
	//
	// No task waits for them; what Redis refuses, or does not take in time, is dropped and logged. The user in Redis
	// needs the right to xadd. 0 keeps none; 1,000 is the most.
	History int

	// Private keeps the Guard from telling operators and other Guards which rules it runs. Otherwise it writes its rules
	// and Owner, and no payload value, under the Prefix, a second after Middleware or Run is called and then every 20
	// seconds; Close removes them. It warns once if another Guard has other rules for one of its scopes.
	Private bool

	// Logger is where the Guard logs. nil means slog.Default().
	Logger *slog.Logger

	// Observe is called with every [Event], by many goroutines at once, on the path of the task: it should be quick. nil
	// means none. A panic in it is logged.
	Observe func(context.Context, Event)
}

// withDefaults fills in the zero values, but for those of rules.
func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, inside.DefaultPrefix)
	c.Owner = cmp.Or(c.Owner, engine.Process())
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Rules = slices.Clone(c.Rules)
	return c
}

func (c Config) check(mistakes *fieldErrors) {
	mistakes.add("Prefix", -1, engine.CheckPrefix(c.Prefix))
	if c.Prefix == "asynq" {
		mistakes.addf("Prefix", `"asynq" is what asynq's own keys start with; choose another, such as "myapp"`)
	}
	mistakes.add("HashKeys", -1, engine.CheckSecret(c.HashKeys))
	if c.History < 0 || c.History > history.Most {
		mistakes.addf("History", "%d is not from 0 to %d; use 0 to keep no runs", c.History, history.Most)
	}
}

func (rs *ruleSet) warn(log *slog.Logger) {
	first := map[string]*compiledRule{} // by scope
	for _, rule := range rs.rules {
		switch other := first[rule.Scope]; {
		case rule.Scope == "" || rule.Key != nil:
		case other == nil:
			first[rule.Scope] = rule
		case len(rule.On)+len(rule.OnHeaders) != len(other.On)+len(other.OnHeaders):
			log.Warn("automutex: " + rule.where() + ": Scope: " + other.where() + " shares it, and has another number of " +
				"fields in its keys, so their tasks never share a key; name as many in both, or give each a Scope")
		}
		if rule.Busy.row().parks && rule.Wait > 0 {
			log.Warn("automutex: " + rule.where() + ": Wait: has no effect under the policy park, which is also that of a " +
				"rule without Busy: a task waits in its worker while another worker is free, and then parks; choose the " +
				"policy retry if tasks are to wait for this time, or leave Wait out")
		}
	}
}
