package engine

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
)

// Options are an Engine's.
type Options struct {
	Client   redisx.Client
	Prefix   string        // empty: inside.DefaultPrefix
	HashKeys string        // see CheckSecret
	Owner    string        // others see it as the holder; empty: Process()
	Log      *slog.Logger  // nil: slog.Default()
	TTL      time.Duration // for those who make requests; 0: they say it themselves
	Replicas int           // how many must acknowledge a lease
	Call     Caller        // has parked work run again; nil: this Engine calls nothing

	Obeys    bool                     // the orders of operators count
	HasScope func(text string) bool   // see control.Options
	Changed  func(now *control.State) // so; nil: nobody is told
}

func (o *Options) check() error {
	o.Prefix, o.Owner, o.Log = cmp.Or(o.Prefix, inside.DefaultPrefix), cmp.Or(o.Owner, Process()),
		cmp.Or(o.Log, slog.Default())
	if err := CheckClient(o.Client); err != nil {
		return err
	}
	if o.TTL = WholeMS(o.TTL); o.TTL != 0 {
		if err := CheckTTL("Options.TTL", o.TTL); err != nil {
			return err
		}
	}
	return cmp.Or(CheckPrefix(o.Prefix), CheckSecret(o.HashKeys), CheckReplicas(o.Client, o.Replicas))
}

// CheckClient returns why an Engine cannot work with a client: it is nil, a typed nil or a *redis.Ring.
func CheckClient(rdb redisx.Client) error {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("lock: the Redis client is nil (a nil %T): pass one that redis.NewClient or the like made", rdb)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return errors.New("lock: *redis.Ring cannot hold locks (a shard that is away would let a second holder in on " +
			"another): use *redis.Client or *redis.ClusterClient")
	}
	return nil
}

// CheckPrefix returns why a prefix cannot begin keys and channels, or nil.
func CheckPrefix(prefix string) error {
	unfit := func(r rune) bool { return r == '{' || r == '}' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if !utf8.ValidString(prefix) || strings.ContainsFunc(prefix, unfit) {
		return fmt.Errorf("lock: prefix %q has a brace, a space, a control character or invalid UTF-8; leave those out "+
			"(braces keep a lock in one Cluster slot)", prefix)
	}
	return nil
}

// CheckSecret returns why a secret cannot hash keys, or nil. With an empty one keys are not hashed. Any other is too
// long to guess, and has nothing that differs between processes by accident, such as a line end.
func CheckSecret(secret string) error {
	const least, most, like = 16, 1024, ", such as openssl rand -hex 32 gives"
	var why string
	n := len(secret)
	switch {
	case n == 0:
		return nil
	case n < least:
		why = fmt.Sprintf("has %d bytes: at least %d random ones%s, or what it hides can be guessed", n, least, like)
	case n > most:
		why = fmt.Sprintf("has %d bytes: at most %d%s", n, most, like)
	case strings.ContainsFunc(secret, unicode.IsControl), strings.TrimSpace(secret) != secret:
		why = "has a control character, or space around it, such as the end of the line in its file: trim it"
	case strings.HasPrefix(secret, "${"):
		why = "begins with ${, as a variable that nobody has expanded: take it from the environment in the program"
	case strings.Count(secret, secret[:1]) == n:
		why = "is one character again and again: take a random one" + like
	default:
		return nil
	}
	return errors.New("lock: the secret for hashed keys " + why)
}

// CheckReplicas returns why rdb cannot be asked to wait for n replicas, or nil.
func CheckReplicas(rdb redisx.Client, n int) error {
	const most = 1000 // more than any master has
	if n < 0 || n > most {
		return fmt.Errorf("lock: MinReplicas is %d: a number of replicas, %d at most, where 0 waits for none", n, most)
	}
	if n > 0 && !redisx.KnowsMasters(rdb) {
		return fmt.Errorf("lock: MinReplicas does not go with a %T, of which it is not known which Redis it asks: "+
			"use a *redis.Client or *redis.ClusterClient, or what embeds one", rdb)
	}
	return nil
}

// CheckTTL returns why a lease cannot have that length, or nil. what names the length.
func CheckTTL(what string, ttl time.Duration) error {
	if ttl < MinTTL {
		return fmt.Errorf("lock: %s is %s: at least %s, or pauses of the program or the network would lose leases%s", what,
			ttl, MinTTL, printable.MeantUnit(ttl))
	}
	if ttl > inside.MaxTTL {
		return fmt.Errorf("lock: %s is %s: at most %s; leases are renewed, so a short one lasts as long as its holder", what,
			ttl, inside.MaxTTL)
	}
	return nil
}

// Check rounds the TTL up to whole milliseconds, and returns what is wrong with the request.
func (r *Request) Check() error {
	given := r.TTL
	r.TTL = WholeMS(given)
	switch {
	case r.Name == "":
		return errors.New("lock: the name is empty: name what the lock protects")
	case r.Limit < 1:
		return fmt.Errorf("lock: %q: %d holders: at least 1", r.Name, r.Limit)
	case r.MaxHold != 0 && r.MaxHold < MinTTL:
		return fmt.Errorf("lock: %q: MaxHold is %s: 0 for no bound, or at least %s%s", r.Name, r.MaxHold, MinTTL,
			printable.MeantUnit(r.MaxHold))
	case r.TTL < MinTTL, r.TTL > inside.MaxTTL: // make the text only for an error: every task makes a request
		return CheckTTL(fmt.Sprintf("the TTL of %q", r.Name), given)
	}
	return nil
}

// WholeMS rounds d up to whole milliseconds.
func WholeMS(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 && d <= inside.MaxTTL {
		d += time.Millisecond - rest
	}
	return d
}

func (le *Lease) check(what string, d time.Duration) error {
	switch name := le.request.Name; {
	case d <= 0 || d > inside.MaxTTL:
		return fmt.Errorf("lock: %q: %s %s: more than 0, at most %s", name, what, d, inside.MaxTTL)
	case !le.Held():
		return fmt.Errorf("%w: %q: %s %s: the lease is over", ErrNotHeld, name, what, d)
	}
	return nil
}

// Host names this machine.
func Host() string {
	host, _ := os.Hostname() // empty at an error
	return cmp.Or(host, "unknown-host")
}

// Process returns host:pid, the label of a process without another.
func Process() string { return Host() + ":" + strconv.Itoa(os.Getpid()) }
