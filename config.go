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
	// Middleware, Keys and Explain call Decode once for a task if one of its rules has On or
	// Key. Middleware calls it again when it has to make the key again. An error of Decode has
	// the same effect as that of a [KeyFunc], for every rule with On or Key: a [*KeyError], or
	// an error that wraps asynq.SkipRetry, archives the task; after [NoLock] the task takes no
	// lock of these rules; after any other error it returns to asynq, its attempt not spent. A
	// panic fails the attempt, as a panic of the handler does.
	//
	// Many goroutines call Decode at once. It must not change the task, and must return the
	// same bytes for the same task. Producers need the same function as Config.Decode of
	// package unique.
	Decode func(*asynq.Task) ([]byte, error)

	// Owner is the label of this process as the holder of a lock, for operators. It
	// need not be unique. Empty means "host:pid".
	Owner string

	// MaxWaiting is how many workers of this process may wait in line at once. Further tasks
	// do not wait: their policy applies at once, except for a task on its last attempt. 0
	// means no bound; negative numbers are refused.
	MaxWaiting int

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

	// Logger is where the Guard logs. nil means slog.Default().
	Logger *slog.Logger

	// Observe is called with every [Event], by many goroutines at once. It runs on the
	// path of the task, so it should be quick. nil means none. A panic in it fails the
	// attempt, as a panic of the handler does, and leaves no lease behind. On EventLost
	// and EventOverdue, which may come on another goroutine, a panic is logged.
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
