package lock

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
)

// DefaultTTL is the length of a lease without [Options].TTL and the option [TTL].
const DefaultTTL = 30 * time.Second

// Options configure a Locker. The zero value is ready to use.
type Options struct {
	// Prefix begins every key and channel: "<prefix>:{<name>}". Lockers with
	// the same prefix on the same Redis share locks. Empty: "automutex".
	// No braces, no spaces, no control characters.
	Prefix string
	// HashKeys is a secret that keeps the values given to [Parts] out of Redis: a key
	// contains their HMAC-SHA256 under this secret instead. Names, owners and notes stay
	// readable. Lockers that share locks need the same secret; changing it renames every
	// lock that has parts. Empty: keys are readable. Otherwise 16 to 1,024 bytes.
	HashKeys string
	// Owner is a label that others see as the holder. Any text; empty:
	// "<hostname>:<pid>". It does not decide who owns a lease: tokens do.
	Owner string
	// TTL is the length of a lease for locks without the option [TTL]. 0: [DefaultTTL]. At
	// least 100 ms, at most ten years; rounded up to whole milliseconds.
	TTL time.Duration
	// Logger gets what an operator may have to act on, such as a subscription that was
	// replaced. nil: slog.Default().
	Logger *slog.Logger
	// MinReplicas is how many replicas of a key's master must acknowledge a lease: when it is
	// acquired, each time it is renewed, and by Extend. A failover to a replica that has
	// acknowledged a lease does not forget it. If there are more replicas than MinReplicas, a
	// failover may promote one that does not have the lease.
	//
	// If too few acknowledge an acquire, the lock is released and the error is
	// [ErrNotReplicated]. A renewal is tried again, so a lease is lost if replicas stay away
	// for its TTL. Each acquire costs one more round trip and waits for the replicas. Values
	// put into pools are not covered. 0 waits for no replica. At most 1,000.
	MinReplicas int

	call       engine.Caller           // has parked work run again; nil: this Locker calls nothing
	onControls func(inForce []Control) // see insider.New
	hasScope   func(text string) bool  // so
}

// Locker makes locks on one Redis. Renewals and waiters of all its locks share pipelines, so
// use one Locker for each process and Redis. Safe for concurrent use. Close it when done. The
// zero value is not usable; see [New].
type Locker struct {
	engine   *engine.Engine
	life     *life.Life // of all goroutines and operations
	controls *control.Reader
	prefix   string
	secret   *string // Options.HashKeys; behind a pointer it is not printed with the Locker
	ttl      time.Duration
	log      *slog.Logger
}

// New makes a Locker on rdb. It does no I/O and never fails. If a client or option cannot work
// (nil, a *redis.Ring, a TTL below 100 ms, a prefix with braces), every operation returns an
// error. The Locker does not close rdb: close it after the Locker.
func New(rdb Client, o Options) *Locker {
	l := &Locker{
		prefix: cmp.Or(o.Prefix, inside.DefaultPrefix), secret: &o.HashKeys, ttl: wholeMS(cmp.Or(o.TTL, DefaultTTL)), log: cmp.Or(o.Logger, slog.Default()),
	}
	owner := cmp.Or(o.Owner, inside.Process())
	err := checkClient(rdb)
	if err == nil {
		err = cmp.Or(checkPrefix(l.prefix), checkSecret(*l.secret), checkTTL("Options.TTL", l.ttl), checkReplicas(rdb, o.MinReplicas))
	}
	l.engine = engine.New(engine.Options{
		Client: rdb, Prefix: l.prefix, Owner: keys.Escape(owner), Log: l.log, Replicas: o.MinReplicas, Call: o.call, Unfit: err,
	})
	l.life = l.engine.Life()
	l.controls = control.New(control.Options{
		Life: l.life, Conn: l.engine.Conn(), Log: l.log, Prefix: l.prefix, Secret: l.secret, Owner: owner, HasScope: o.hasScope,
		Changed: func(now *control.State) {
			l.engine.AskAll()
			if o.onControls != nil {
				life.CallUser(l.log, "Options.OnControls", func() { o.onControls(inForce(now)) })
			}
		},
	})
	l.engine.Obey(limits{l.controls})
	return l
}

// limits are the controls as the engine takes them.
type limits struct{ *control.Reader }

func (l limits) Old(looked, now time.Time) bool { return control.Old(looked, now) }
func (l limits) Paused(key string) bool {
	pause, _ := l.PauseOf(key)
	return pause != nil
}
func (l limits) Channel() string { return l.Reader.Channel }
func (l limits) Told()           { l.ReadSoon() }

// checkPrefix reports whether prefix can begin keys and channels.
func checkPrefix(prefix string) error {
	unfit := func(r rune) bool { return r == '{' || r == '}' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if !utf8.ValidString(prefix) || strings.ContainsFunc(prefix, unfit) {
		return fmt.Errorf("lock: prefix %q has a brace, a space, a control character or invalid UTF-8; leave those out "+
			"(the braces around the name keep a lock in one Cluster slot)", prefix)
	}
	return nil
}

func checkTTL(what string, ttl time.Duration) error {
	if ttl < inside.MinTTL {
		return fmt.Errorf("lock: %s is %s: at least %s, or pauses of the program or the network would lose leases%s", what, ttl, inside.MinTTL, printable.MeantUnit(ttl))
	}
	if ttl > inside.MaxTTL {
		return fmt.Errorf("lock: %s is %s: at most %s; leases are renewed, so a short one lasts as long as its holder", what, ttl, inside.MaxTTL)
	}
	return nil
}

// Close ends every wait with ErrClosed and stops renewing. Leases still held last until their
// deadlines, and can be released. Close waits for the Locker's goroutines, which finish only
// the exchanges with Redis that are under way. It does not close the Redis client. It always
// returns nil; a second Close waits as well.
func (l *Locker) Close() error {
	l.engine.Close()
	return nil
}

// maxReplicas is more than any master has.
const maxReplicas = 1000

// checkReplicas reports whether rdb can be asked to wait for n replicas.
func checkReplicas(rdb Client, n int) error {
	if n < 0 || n > maxReplicas {
		return fmt.Errorf("lock: Options.MinReplicas is %d: a number of replicas, %d at most, where 0 waits for none", n, maxReplicas)
	}
	if n > 0 && !redisx.KnowsMasters(rdb) {
		return fmt.Errorf("lock: Options.MinReplicas does not go with a %T, of which it is not known which Redis it asks: "+
			"use a *redis.Client or *redis.ClusterClient, or what embeds one", rdb)
	}
	return nil
}

// minSecret is the length of the shortest secret that is accepted, in bytes.
const minSecret = 16

// maxSecret is the length of the longest one: it is hashed for each key.
const maxSecret = 1024

// checkSecret returns why a secret cannot hash keys, or nil. An empty secret means that keys
// are not hashed. Any other must be too long to guess, and must not contain what differs
// between processes by accident, such as a line end.
func checkSecret(secret string) error {
	const like = "such as openssl rand -hex 32 gives"
	n := len(secret)
	switch {
	case n == 0:
		return nil
	case n < minSecret:
		return fmt.Errorf("lock: the secret for hashed keys has %d bytes: at least %d random ones, %s, "+
			"or what it hides can be guessed", n, minSecret, like)
	case n > maxSecret:
		return fmt.Errorf("lock: the secret for hashed keys has %d bytes: at most %d, %s", n, maxSecret, like)
	case strings.ContainsFunc(secret, unicode.IsControl), strings.TrimSpace(secret) != secret:
		return errors.New("lock: the secret for hashed keys has a control character, or space around it, such as the end of " +
			"the line in its file: trim it, or processes that have it and such that have not would make different keys")
	case strings.HasPrefix(secret, "${"):
		return errors.New("lock: the secret for hashed keys begins with ${, as a variable that nobody has expanded: " +
			"take it from the environment in the program")
	case strings.Count(secret, secret[:1]) == n:
		return errors.New("lock: the secret for hashed keys is one character again and again: take a random one, " + like)
	}
	return nil
}
