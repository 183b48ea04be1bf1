package trust

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// linSite is a process as Redis sees it: a Locker with connections of its own.
type linSite struct {
	locker *lock.Locker
	ctx    context.Context // ends when it dies
	stop   context.CancelFunc
	wire   *linWire      // nil: it does not die
	died   atomic.Int64  // when; 0: it lives
	gone   chan struct{} // closed when nothing of it runs any more
	rdb    redis.UniversalClient
}

// linWire are the connections of a site that dies: cut, and none anew. What was
// sent may still be run.
type linWire struct {
	mu    sync.Mutex // guards the fields below
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the process is dead")

func (w *linWire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = conn.Close()
		return nil, errCut
	}
	w.conns = append(w.conns, conn)
	return conn, nil
}

func (w *linWire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, conn := range w.conns {
		_ = conn.Close()
	}
}

// die ends the site as SIGKILL ends a process: at once, in the middle of whatever
// it does. Its goroutines here end beside.
func (s *linSite) die() {
	s.wire.sever()
	s.died.Store(linNow())
	s.stop()
	_ = s.locker.Close()
	_ = s.rdb.Close()
	close(s.gone)
}

// linWorld is a Redis and the processes that take locks there.
type linWorld struct {
	t       *testing.T
	server  *redistest.Server
	lasting []*linSite
	slow    *linSite // hears everything late; nil on a cluster

	mortal  atomic.Pointer[linSite] // the one that dies next
	crashes atomic.Int64
	quit    chan struct{}
	wg      sync.WaitGroup // of what runs until quit
}

// How long those live that die, and how late the slow one hears.
const (
	linLifetime = 1500 * time.Millisecond
	linDelay    = 40 * time.Millisecond
)

// newLinWorld has three processes that last, a slow one, and one that dies every
// now and then and is replaced. It ends with close.
func newLinWorld(t *testing.T, s *redistest.Server) *linWorld {
	w := &linWorld{t: t, server: s, quit: make(chan struct{})}
	for range 3 {
		w.lasting = append(w.lasting, w.site(s.Client(t, linPool), nil))
	}
	if s.Kind() != redistest.KindCluster {
		proxy := redistest.NewProxy(t, s.Addr())
		proxy.Delay(linDelay)
		w.slow = w.site(proxy.Client(t, linPool), nil)
	}
	w.mortal.Store(w.newMortal())
	// Ends at quit; die returns when nothing of the site runs any more.
	w.wg.Go(func() {
		ticker := time.NewTicker(linLifetime)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.crashes.Add(1)
				w.wg.Go(w.mortal.Swap(w.newMortal()).die) // ends when its Locker has closed, which the cut keeps short
			case <-w.quit:
				w.mortal.Load().die()
				return
			}
		}
	})
	return w
}

func linPool(o *redis.UniversalOptions) { o.PoolSize = 64 }

func (w *linWorld) newMortal() *linSite {
	wire := new(linWire)
	rdb := w.server.Client(w.t, linPool, func(o *redis.UniversalOptions) {
		o.Dialer, o.MaxRetries, o.DialerRetries = wire.dial, -1, 1
	})
	return w.site(rdb, wire)
}

func (w *linWorld) site(rdb redis.UniversalClient, wire *linWire) *linSite {
	s := &linSite{wire: wire, rdb: rdb, gone: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.locker = lock.New(rdb, lock.Options{Logger: slog.New(slog.DiscardHandler)})
	return s
}

func (w *linWorld) close() {
	close(w.quit)
	w.wg.Wait()
	for _, s := range append(w.lasting, w.slow) {
		if s != nil {
			s.stop()
			_ = s.locker.Close()
		}
	}
}

// linKey is one lock and those who take it, for one history.
type linKey struct {
	world *linWorld
	name  string
	limit int

	mu    sync.Mutex // guards stays
	stays []*linStayed
}

// linClient is one who takes the lock, from whatever process. It notes what it
// does; its methods are called by one goroutine.
type linClient struct {
	linRecord
	key    *linKey
	number int
	dice   *rand.Rand
}

func (c *linClient) note(e linEvent) {
	e.client = c.number
	c.events = append(c.events, e)
}

func (c *linClient) unseen(from, to int64) *linMaybe {
	m := &linMaybe{from, to}
	c.maybes = append(c.maybes, m)
	return m
}

// linResend is less than go-redis takes to send a command again whose answer was
// lost. A call that lasted longer may be the answer to the second one.
const linResend = 8 * time.Millisecond

// linTerms are those of a lease asked for.
type linTerms struct {
	ttl    time.Duration
	renew  bool
	fenced bool // a mutex is a sorted set from the start; without, it is a string until somebody waits
}

func (c *linClient) lock(s *linSite, terms linTerms, more ...lock.Option) *lock.Lock {
	options := append(more, lock.TTL(terms.ttl))
	if terms.fenced {
		options = append(options, lock.Fenced())
	}
	if !terms.renew {
		options = append(options, lock.NoRenew())
	}
	return s.locker.Semaphore(c.key.name, c.key.limit, options...)
}

// try is TryLock; nil when there is no lease to go on with.
func (c *linClient) try(s *linSite, terms linTerms) *linStayed {
	m := c.lock(s, terms)
	from := linNow()
	le, err := m.TryLock(s.ctx)
	to := linNow()
	switch {
	case err == nil:
		return c.took(s, terms, le, linEvent{from: from, to: to, op: linOp{kind: linTake}})
	case errors.Is(err, lock.ErrBusy) && !errors.Is(err, context.Canceled):
		c.note(linEvent{from: from, to: to, op: linOp{kind: linBusy}})
	case errors.Is(err, lock.ErrBackend), errors.Is(err, lock.ErrBusy): // it may have had a slot when its site died
		c.unseen(from, s.after(to)+int64(terms.ttl)+linLate)
	}
	return nil // else the site was dead before: nothing was sent
}

// after tells from when on nothing more comes of a call that returned at to
// without an answer: when the site died, for which it waits, and for one that
// lasts, when its Locker has given up.
func (s *linSite) after(to int64) int64 {
	if s.wire == nil {
		return to + int64(15*time.Second)
	}
	<-s.ctx.Done()
	return s.died.Load()
}

// certain is how long a wait may be for its place in line to be certain. In a
// longer one, on a machine that stood still, the place may have been stale once,
// or granted and not taken up before the grant ended: the waiter then stands at
// the end.
func (terms linTerms) certain() time.Duration {
	return min(2500*time.Millisecond, terms.ttl-10*time.Millisecond)
}

// wait is Lock; nil when there is no lease to go on with.
func (c *linClient) wait(s *linSite, terms linTerms, patience time.Duration) *linStayed {
	var joined int64
	m := c.lock(s, terms, func(m *lock.Lock) {
		inside.At(m).Request.OnWait = func(time.Duration) { joined = linNow() }
	})
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	from := linNow()
	le, err := m.Lock(ctx)
	to := linNow()
	switch {
	case err == nil && joined == 0 && to-from < int64(linResend):
		return c.took(s, terms, le, linEvent{from: from, to: to, op: linOp{kind: linTake}})
	case err == nil && joined == 0:
		// The ask may have been sent twice: the first joined the line, and the
		// answer to the second is that the slot is ours meanwhile.
		own := c.unseen(from, to)
		return c.took(s, terms, le, linEvent{from: from, to: to, op: linOp{kind: linUnplaced}, own: own})
	case err == nil && to-from > int64(terms.certain()):
		own := c.unseen(from, to)
		c.note(linEvent{from: from, to: joined, op: linOp{kind: linBusy}, own: own})
		return c.took(s, terms, le, linEvent{from: from, to: to, op: linOp{kind: linUnplaced}, own: own})
	case err == nil:
		taken := c.took(s, terms, le, linEvent{from: from, to: to, op: linOp{kind: linGranted}})
		c.note(linEvent{from: from, to: joined, stay: taken, op: linOp{kind: linJoin}})
		return taken
	}
	// It may have had a slot at the last moment, and given it back.
	own := c.unseen(from, to)
	switch late := to - from - int64(patience); {
	case s.wire != nil && s.ctx.Err() != nil, s.wire != nil && !errors.Is(err, lock.ErrBusy):
		own.to = s.after(to) + linStay + int64(terms.ttl) + linLate
	case !errors.Is(err, lock.ErrBusy), late > int64(200*time.Millisecond):
		own.to = s.after(to) // it left without waiting for an answer
	}
	if joined != 0 {
		c.note(linEvent{from: from, to: joined, op: linOp{kind: linBusy}, own: own})
	}
	return nil
}

func (c *linClient) took(s *linSite, terms linTerms, le *lock.Lease, e linEvent) *linStayed {
	fence, _ := le.Fence() // 0: it has none
	taken := &linStayed{
		lease: le, fence: fence, site: s, called: e.from, ttl: terms.ttl,
		bounded: !terms.renew, until: e.to + int64(terms.ttl),
	}
	e.stay = taken
	c.note(e)
	c.stays = append(c.stays, taken)
	c.key.mu.Lock()
	defer c.key.mu.Unlock()
	c.key.stays = append(c.key.stays, taken)
	return taken
}

func (c *linClient) release(taken *linStayed) {
	if taken.dead() {
		return
	}
	from := linNow()
	free, err := taken.lease.Release(context.Background())
	e := linEvent{from: from, to: linNow(), stay: taken, op: linOp{kind: linRelease}}
	switch {
	case err == nil:
		taken.released, e.op.ok, e.op.free = true, true, free
		if e.to-from >= int64(linResend) {
			e.op.free = linUnknown // it may be what a second release found
		}
	case errors.Is(err, lock.ErrNotHeld):
		taken.leaving, taken.lostBy = from, e.to
	default:
		taken.leaving = from
		return
	}
	c.note(e)
}

func (c *linClient) extend(taken *linStayed, d time.Duration) {
	if taken.dead() {
		return
	}
	from := linNow()
	err := taken.lease.Extend(context.Background(), d)
	e := linEvent{from: from, to: linNow(), stay: taken, op: linOp{kind: linExtend, ok: err == nil}}
	taken.until = max(taken.until, e.to+int64(d)) // whatever the answer: Redis may have done it
	switch {
	case err == nil || errors.Is(err, lock.ErrNotHeld):
		c.note(e)
	default:
		taken.until = max(taken.until, taken.site.after(e.to)+int64(d)+linLate)
	}
}

// work keeps the lease for so long, or until it is lost, if that is sooner.
func (c *linClient) work(taken *linStayed, d time.Duration) {
	ctx, cancel := context.WithTimeout(taken.lease.Bind(taken.site.ctx), d)
	defer cancel()
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), lock.ErrLost) {
		now := linNow()
		c.note(linEvent{from: now, to: now, stay: taken, op: linOp{kind: linLost}})
	}
}

// breakOne takes a lease away from its holder, if there is one.
func (c *linClient) breakOne(s *linSite) {
	c.key.mu.Lock()
	recent := slices.Clone(c.key.stays[max(0, len(c.key.stays)-c.key.limit-1):])
	c.key.mu.Unlock()
	if len(recent) == 0 {
		return
	}
	taken := recent[c.dice.IntN(len(recent))]
	from := linNow()
	ok, err := c.lock(s, linTerms{ttl: lock.DefaultTTL}).Break(s.ctx, taken.lease.Token())
	to := linNow()
	taken.mu.Lock()
	defer taken.mu.Unlock()
	if err != nil || !ok && to-from >= int64(linResend) {
		taken.shaken = from // or the first of two did it
		return
	}
	taken.broken = taken.broken || ok
	c.note(linEvent{from: from, to: to, stay: taken, op: linOp{kind: linBreak, ok: ok}})
}

func (c *linClient) look(s *linSite) {
	m := c.lock(s, linTerms{ttl: lock.DefaultTTL})
	from := linNow()
	free, err := m.Available(s.ctx)
	if err == nil {
		c.note(linEvent{from: from, to: linNow(), op: linOp{kind: linAvailable, free: free}})
	}
}
