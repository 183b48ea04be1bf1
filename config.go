package automutex

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/safelog"
	"github.com/automutex/automutex/lock"
)

// Defaults of [Config] and [Rule].
const (
	defaultPrefix = inside.DefaultPrefix
	defaultLimit  = 1
	defaultTTL    = lock.DefaultTTL

	minTTL = inside.MinTTL
)

// Config is what [New] makes a [Guard] from. It is read once: changing it
// afterwards, or the slices in it, is not allowed and has no defined effect.
type Config struct {
	// Rules declare which tasks take turns. Their order is the order in which
	// a task that several rules apply to takes its locks; see [Rule].Scope.
	// With no rules at all, every task runs as if there were no Guard.
	Rules []Rule

	// Prefix starts every Redis key of this Guard. Empty means "automutex".
	// Braces, spaces and control characters are refused, and so is "asynq",
	// with which asynq's own keys start. Guards that share a Prefix must share
	// one asynq Redis.
	Prefix string

	// HashKeys is a secret that keeps payload values out of keys, and so out of
	// Redis' names, out of what is logged and told, and out of errors: the values
	// of a key are replaced by their HMAC-SHA256 under it, the scope stays
	// readable. Without the secret nobody finds a value by hashing guesses, as an
	// account number would be found in a moment. All Guards with a Prefix, and the
	// producers of package unique, have the same one; changing it renames every
	// lock, as another Prefix does. Empty means that keys are readable; else it
	// has at least 16 bytes.
	HashKeys string

	// Decode returns the payload that rules read, for tasks whose payload is an envelope
	// that another middleware unwraps: On, and what [Rule].Payload checks, are about the
	// JSON that Decode returns. A Key, those of [Fields] and [KeyOf] included, gets a task
	// with the same type and headers and that payload, which need not be JSON. Handlers
	// get the task as it is. nil means that rules read the payload as it is; return
	// t.Payload() for a task that has no envelope.
	//
	// Decode is called once for a task, by Middleware, Keys and Explain, if a rule of
	// the task has On or Key; a task that asks for its key again is decoded again. Its
	// errors count as those of a [KeyFunc] do, for every rule that has On or Key: a
	// [*KeyError], or one that wraps asynq.SkipRetry, archives the task, [NoLock] means that
	// it takes no lock of these rules, after any other error it comes back, its attempt not
	// spent. A panic costs the task
	// its attempt, as one of the handler does. Decode is called by many goroutines at
	// once, must not change the task, and returns the same bytes for the same task
	// always. Producers need the same one, as Config.Decode of package unique.
	Decode func(*asynq.Task) ([]byte, error)

	// Owner is a label that tells an operator who holds a lock. It need not be
	// unique: nothing is decided by it. Empty means "host:pid".
	Owner string

	// MaxWaiting is how many workers of this process may wait in line at once.
	// Beyond it the policy applies at once, except for a task on its last
	// attempt. 0 means that there is no cap; negative numbers are refused.
	MaxWaiting int

	// MinReplicas is how many replicas of a key's master must have acknowledged
	// a lease for it to count, so that a failover to one of them does not forget
	// it; see [lock.Options]. A task whose key too few acknowledge goes back
	// unspent, as when Redis is away; a handler's context ends when they stay
	// away for a TTL. 0 waits for none; negative numbers are refused.
	MinReplicas int

	// Inspector is what the policy Park wakes tasks with, on the Redis of
	// asynq. nil means one made from the Guard's own Redis client, which must be
	// a redis.UniversalClient then. The Guard does not close it.
	Inspector *asynq.Inspector

	// WakeAtFront has tasks that were parked run before what their queue has
	// pending, where they stand behind it otherwise. It moves the task's ID in
	// asynq's own list of pending tasks, whose layout asynq does not promise:
	// checked with asynq 0.26. It needs the Guard's Redis client to be a
	// redis.UniversalClient on the Redis of asynq.
	WakeAtFront bool

	// Logger is where the Guard logs. nil means slog.Default().
	Logger *slog.Logger

	// Observe is told of every [Event]. It is called by many goroutines at
	// once, on the path of the task, and so should be quick. nil means that
	// nobody is told. A panic costs the task its attempt, as one of the handler
	// does, and leaves no lease behind; on EventLost and EventOverdue, which may
	// come on another goroutine, it is logged instead.
	Observe func(context.Context, Event)
}

// withDefaults fills in the zero values of Config itself; compile does so for
// the rules.
func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		c.Owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	c.Logger = safelog.New(c.Logger)
	return c
}

func checkConfig(cfg Config) []*FieldError {
	var mistakes fieldErrors
	if err := inner.CheckPrefix(cfg.Prefix); err != nil {
		mistakes.addf("Prefix", "%w", err)
	}
	if cfg.Prefix == "asynq" {
		mistakes.addf("Prefix", `"asynq" is what asynq's own keys start with; choose another, such as "myapp"`)
	}
	if err := inner.CheckSecret(cfg.HashKeys); err != nil {
		mistakes.addf("HashKeys", "%w", err)
	}
	if cfg.MaxWaiting < 0 {
		mistakes.addf("MaxWaiting", "%d is negative; use 0 for no cap", cfg.MaxWaiting)
	}
	if cfg.MinReplicas < 0 {
		mistakes.addf("MinReplicas", "%d is negative; use 0 to wait for no replica", cfg.MinReplicas)
	}
	return mistakes.all
}
