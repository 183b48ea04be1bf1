package lock

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
)

// Client is what this package needs of go-redis: *redis.Client, *redis.ClusterClient and redis.UniversalClient satisfy
// it. A *redis.Ring is refused: it moves keys to other shards when one is down, so two shards could each grant the
// lock.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// DefaultTTL is the length of a lease without [Options].TTL and the option [TTL].
const DefaultTTL = 30 * time.Second

// Options configure a Locker. The zero value is ready to use.
type Options struct {
	// Prefix begins every key and channel: "<prefix>:{<name>}". Lockers with the same prefix on the same Redis share
	// locks. Empty: "automutex". No braces, no spaces, no control characters.
	Prefix string
	// HashKeys is a secret that keeps the values given to [Parts] out of Redis: a key contains their HMAC-SHA256 under
	// this secret instead. Names, owners and notes stay readable. Lockers that share locks need the same secret; changing
	// it renames every lock that has parts. Empty: keys are readable. Otherwise 16 to 1,024 bytes.
	HashKeys string
	// Owner is a label that others see as the holder. Any text; empty: "<hostname>:<pid>". It does not decide who owns a
	// lease: tokens do.
	Owner string
	// TTL is the length of a lease for locks without the option [TTL], which has its bounds. 0: [DefaultTTL].
	TTL time.Duration
	// Logger gets what an operator may have to act on. nil: slog.Default().
	Logger *slog.Logger
	// MinReplicas is how many replicas of a key's master must acknowledge a lease: when it is acquired, each time it is
	// renewed, and by Extend. A failover to a replica that has acknowledged a lease does not forget it; with more replicas
	// than MinReplicas, a failover may promote another one.
	//
	// If too few acknowledge an acquire, the lock is released and the error is [ErrNotReplicated]. A renewal is tried
	// again, so a lease is lost if replicas stay away for its TTL. Each acquire costs one more round trip and waits for
	// the replicas. Values put into pools are not covered. 0 waits for no replica. At most 1,000.
	MinReplicas int
}

// Locker makes locks on one Redis. Renewals and waiters of all its locks share pipelines, so use one Locker for each
// process and Redis. Safe for concurrent use. Close it when done. The zero value is not usable; see [New].
type Locker struct{ core }

type core = inside.Of[*engine.Engine]

func (l *Locker) engine() *engine.Engine { return *inside.At(l) }

// New makes a Locker on rdb. It does no I/O and never fails: if a client or option cannot work, every operation returns
// an error. The Locker does not close rdb: close it after the Locker.
func New(rdb Client, o Options) *Locker {
	return &Locker{inside.Make(engine.New(engine.Options{
		Client: rdb, Prefix: o.Prefix, HashKeys: o.HashKeys, Owner: o.Owner, TTL: cmp.Or(o.TTL, DefaultTTL), Log: o.Logger,
		Replicas: o.MinReplicas, Obeys: true,
	}))}
}

// Close ends every wait with ErrClosed and stops renewing. Leases still held last until their deadlines, and can be
// released. Close waits for exchanges with Redis that are under way, up to 5 s. It always returns nil.
func (l *Locker) Close() error {
	l.engine().Close()
	return nil
}

// For returns the mutex of value. If value is a string, that is the lock's name. A Room whose ID is 123 has the lock
// "Room" with the part "123". The ID is the result of a method LockID() string, or else the field ID: a string, an
// integer, or a value with a text form (MarshalText, or else String), such as a UUID. For follows pointers and finds
// the field in embedded structs. [Parts] in options come after the ID. Types with the same name in two packages share
// their locks.
//
// If value has no ID, or an empty or zero one (it is not saved yet), every operation of the lock returns an error.
func (l *Locker) For(value any, options ...Option) *Lock {
	if name, ok := value.(string); ok {
		return l.Mutex(name, options...)
	}
	name, id, err := inside.Identify(value)
	withID := func(m *Lock) { m.parts = append([]string{id}, m.parts...) }
	m := l.Mutex(name, append(slices.Clip(options), withID)...)
	if err != nil && l.engine().Life().Unfit() == nil {
		inside.At(m).Err = err
	}
	return m
}
