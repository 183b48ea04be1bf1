package lock

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/safelog"
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
	// Transport sends the commands of single operations in place of the
	// client; see [Transport]. nil: the client itself.
	Transport Transport
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

	call       inside.Caller           // has parked work run again; nil: this Locker calls nothing
	onControls func(inForce []Control) // see insider.New
}

// Locker makes locks on one Redis. Renewals and waiters of all its locks share pipelines, so
// use one Locker for each process and Redis. Safe for concurrent use. Close it when done. The
// zero value is not usable; see [New].
type Locker struct {
	rdb      Client
	conn     *exchange.Conn
	strings  bool // a mutex may be a string in Redis: the transport sends SET
	prefix   string
	secret   *string // Options.HashKeys; behind a pointer it is not printed with the Locker
	owner    string  // escaped
	ttl      time.Duration
	replicas int // MinReplicas
	log      *slog.Logger
	err      error // what is wrong with rdb or Options; every operation returns it

	channel string       // this Locker's wake channel, without the prefix
	nonce   atomic.Int64 // one per token, see nextNonce

	renewer   *renewer
	line      *line
	abandoned *abandoned
	wake      *wake
	parking   *parking
	contended *contendedKeys
	gather    gather
	controls  *controlReader

	// closing ends waiters and goroutines when Close begins. work counts what enter, spawn
	// and branch have begun, and Close waits for it. mu makes the check of closed and
	// work.Add one step, so that nothing begins after Close has begun to wait.
	closing context.Context // the Locker's own lifetime, not a caller's
	stop    context.CancelFunc
	mu      sync.Mutex
	closed  bool
	work    sync.WaitGroup
}

// New makes a Locker on rdb. It does no I/O and never fails. If a client or option cannot work
// (nil, a *redis.Ring, a TTL below 100 ms, a prefix with braces), every operation returns an
// error. The Locker does not close rdb: close it after the Locker.
func New(rdb Client, o Options) *Locker {
	random := make([]byte, 12) // 96 bits name the channel
	_, _ = rand.Read(random)   // crypto/rand.Read never fails since Go 1.24
	l := &Locker{
		rdb:      rdb,
		prefix:   o.Prefix,
		secret:   &o.HashKeys,
		ttl:      wholeMS(o.TTL),
		replicas: o.MinReplicas,
		log:      safelog.New(o.Logger),
		channel:  base64.RawURLEncoding.EncodeToString(random),
	}
	if l.prefix == "" {
		l.prefix = inside.DefaultPrefix
	}
	if l.ttl == 0 {
		l.ttl = DefaultTTL
	}
	owner := o.Owner
	if owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		owner = host + ":" + strconv.Itoa(os.Getpid())
	}
	l.owner = keytext.Escape(owner)
	l.closing, l.stop = context.WithCancel(context.Background())
	l.renewer = newRenewer(l)
	l.line = newLine(l)
	l.abandoned = newAbandoned(l)
	l.wake = &wake{locker: l}
	l.parking = newParking(l, o.call)
	l.controls = newControlReader(l, o.onControls)
	l.contended = newContendedKeys()
	if l.err = checkClient(rdb); l.err != nil {
		return l
	}
	l.err = cmp.Or(checkPrefix(l.prefix), checkSecret(*l.secret), checkTTL("Options.TTL", l.ttl), checkTransport(o.Transport),
		checkReplicas(rdb, o.MinReplicas))
	if l.err == nil {
		l.conn = newConn(rdb, o, l.prefix, l.log, l.closing.Done())
		l.strings = l.conn.SetsKeys()
	}
	return l
}

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
	l.mu.Lock()
	first := !l.closed
	if l.closed = true; first {
		l.work.Add(1) // a second Close must not pass Wait before abandoned.close is counted in
	}
	l.mu.Unlock()
	if first {
		l.stop()
		l.renewer.close()
		l.abandoned.close()
		l.work.Done()
	}
	l.work.Wait()
	return nil
}

// enter counts an operation in, so that Close waits for it. It returns an error if the Locker
// is closed or was made with bad options. After a nil error the caller calls l.work.Done when
// the operation ends.
func (l *Locker) enter() error {
	if l.err != nil {
		return l.err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.work.Add(1)
	return nil
}

// spawn runs f on a goroutine that Close waits for; false when closed.
func (l *Locker) spawn(f func()) bool {
	if l.enter() != nil {
		return false
	}
	defer l.work.Done()
	l.branch(f)
	return true
}

// branch is spawn for callers that are counted in already. It works also after Close has
// begun.
func (l *Locker) branch(f func()) {
	l.work.Add(1)
	go func() {
		defer l.work.Done()
		f()
	}()
}

// newBody makes a body, and the token in it, which is unique for every attempt:
//
//	body  = token|owner|note
//	token = channel.grant.[~][doublings+]nonce[.arrival]
//
//	channel    where to wake the token's owner
//	grant      how long a lease that is granted to it lasts, in ms
//	~          the lock has OnePerNote
//	doublings  its leases last up to 30 s doubled so many times, see lua/form.lua; left out: none
//	nonce      see nextNonce, in base 36
//	arrival    see OnStop; left out: none
func (l *Locker) newBody(now time.Time, grant, ttl time.Duration, apart bool, arrival int64, note string) (sent exchange.Body, body, token string) {
	b := make([]byte, 0, 64+len(l.owner)+len(note))
	b = append(b, l.channel...)
	b = append(b, '.')
	b = strconv.AppendInt(b, grant.Milliseconds(), 10)
	b = append(b, '.')
	if apart {
		b = append(b, '~')
	}
	if n := doublings(ttl); n > 0 {
		b = strconv.AppendInt(b, n, 10)
		b = append(b, '+')
	}
	b = strconv.AppendInt(b, l.nextNonce(now), 36)
	if arrival > 0 {
		b = append(b, '.')
		b = strconv.AppendInt(b, arrival, 10)
	}
	n := len(b)
	b = append(b, '|')
	b = append(b, l.owner...)
	b = append(b, '|')
	b = append(b, note...)
	body = string(b)
	return l.conn.NewBody(b), body, body[:n]
}

// nextNonce returns now in microseconds, or one more than the last nonce: no two are equal.
// For a lock that is a string in Redis the nonce says when it was taken, see takenAt.
func (l *Locker) nextNonce(now time.Time) int64 {
	for {
		last := l.nonce.Load()
		next := max(last+1, now.UnixMicro())
		if l.nonce.CompareAndSwap(last, next) {
			return next
		}
	}
}

// takenAt returns when the token was made, by the clock of its process, in microseconds since
// 1970; 0 for a token without a nonce.
func takenAt(token string) int64 {
	f := strings.Split(token, ".")
	if len(f) < 3 {
		return 0
	}
	nonce := strings.TrimPrefix(f[2], "~")
	if _, after, found := strings.Cut(nonce, "+"); found {
		nonce = after
	}
	us, err := strconv.ParseInt(nonce, 36, 64)
	if err != nil {
		return 0
	}
	return us
}

// doublings returns how often 30 s must be doubled to be at least ttl.
func doublings(ttl time.Duration) (n int64) {
	for most := 30 * time.Second; most < ttl; most *= 2 {
		n++
	}
	return n
}

// earliest returns the earlier of two times; the zero time means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// callUserFunc calls a function of the user on a goroutine of the Locker, and logs a panic:
// it would end the program, and with it every lease. what names the function in the log.
func (l *Locker) callUserFunc(what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("automutex: a function given to package lock panicked", "function", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}
