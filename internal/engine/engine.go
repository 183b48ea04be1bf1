// Package engine is the lock: who holds it, who waits for it, and for how long. It knows no tasks.
//
// An Engine is one process' side: it takes locks, renews leases, asks again for waiters, and listens for messages; see
// lua/head.lua for Redis' side. A turn decides what becomes of a waiter. Due waiters and leases stand in two heaps; one
// alarm rings for the first; they are sent in pipelines, a few at a time.
package engine

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/maphash"
	mathrand "math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine/workers"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
)

var (
	// ErrClosed is the error of everything that begins after Close, and of those that wait then.
	ErrClosed = life.ErrClosed
	// ErrNotHeld says that the lease has ended before.
	ErrNotHeld = errors.New("lock: not held")
	// ErrLost is the cause with which the contexts of a lost lease end.
	ErrLost = errors.New("lock: lease lost")
	// ErrNotFenced says that the lease has no fence.
	ErrNotFenced = errors.New("lock: no fence")
	// ErrNotReplicated says that too few replicas acknowledged the lease in time.
	ErrNotReplicated = fmt.Errorf("%w: not on enough replicas", redisx.ErrBackend)
)

const (
	// maxSenders bounds the pipelines under way; maxSendersCluster so on a Cluster, where one master may hang. The
	// client's other connections are for single calls.
	maxSenders, maxSendersCluster = 4, 64
	// maxFirstAsks callers for a key, and for maxFirstKeys keys, send their first ask by themselves; the others' go in
	// pipelines.
	maxFirstAsks, maxFirstKeys = 8, 32
	// maxGrant is the longest lease that a release grants to a waiter, which may have died unnoticed.
	maxGrant = 3 * time.Second
)

// Ref names a lock, and says what its scripts have to know of it.
type Ref struct {
	Key     string
	Limit   int             // how many may hold the lock, for this caller
	Pool    bool            // its slots are its values
	Ordered bool            // it is given in the order of its tasks
	Lender  *workers.Lender // whose workers hold the lock beyond Limit; nil: nobody's

	Pace       // the caller's
	Rated bool // all its callers have it, so a check sets it
}

// LeaderKey ends the key of a leader's lock: no order of an operator is for a key of that form.
const LeaderKey = ":lead"

// keys share one text.
func (r *Ref) keys() []string {
	ends := []string{"", ":holders", ":line", ":parked", ":called", ":info", ":order", ":marks"}
	switch {
	case r.Pool:
		ends = append(ends[:6], ":values")
	case !r.Ordered:
		ends = ends[:6]
	}
	text := strings.Join(ends, r.Key) // begins with the second key
	for i, end := range ends[1:] {
		n := len(r.Key) + len(end)
		ends[i+1], text = text[:n], text[n:]
	}
	ends[0] = r.Key
	return ends
}

func (e *Engine) bounds(r *Ref) control.Bounds {
	return e.controls.Bounds(r.Key, control.Bounds{Slots: min(r.Limit, control.MaxLimit), Every: r.Every, Spare: r.Spare,
		Known: int64(0)})
}

func (e *Engine) limit(r *Ref) int64 { return int64(e.bounds(r).Slots) }

// borrows reports whether the lock may be held beyond its limit: not beyond that of an operator.
func (r *Ref) borrows(b control.Bounds) bool { return r.Lender != nil && b.Slots > 0 && !b.Limited }

// known is bounds once the orders of operators are known. The caller has called Enter.
func (e *Engine) known(ctx context.Context, r *Ref) (b control.Bounds, err error) {
	for b.Pause = control.Unread; b.Pause == control.Unread && err == nil; b = e.bounds(r) {
		err = e.controls.Know(ctx, r.Key)
	}
	return b, err
}

// Engine is one process' side of its locks. Safe for concurrent use.
type Engine struct {
	o         Options
	conn      *redisx.Conn
	life      *life.Life
	controls  *control.Reader // what operators have ordered; nil: the limit of each request counts
	owner     string          // escaped
	channel   string          // messages to this process are published on "<prefix>:<channel>"
	serial    atomic.Int64
	contended contended
	alarm     life.Alarm
	parking   *parking
	listening sync.Once

	ringing sync.Mutex         // before mu; held until all a ring begins is in senders
	mu      sync.Mutex         // guards what follows, and waiters and leases as their types say; never held across I/O
	waiters map[string]*waiter // by token: those whose wait goes on
	leases  map[string]*Lease  // by token: those that are held
	asks    agenda             // waiters, by when they ask again
	holds   agenda             // leases, by when they are renewed or end
	senders int                // pipelines that are under way
	firsts  map[string]int     // first asks under way by themselves, by key
}

// New makes an Engine, without I/O and goroutines. If the options are unfit, everything returns why.
func New(o Options) *Engine {
	var id [12]byte
	_, _ = rand.Read(id[:])
	unfit := o.check()
	e := &Engine{
		o: o, owner: keys.Escape(o.Owner), life: life.New(), channel: base64.RawURLEncoding.EncodeToString(id[:]),
		waiters: map[string]*waiter{}, leases: map[string]*Lease{}, firsts: map[string]int{},
	}
	if e.life.Refuse(unfit); unfit == nil {
		e.conn = redisx.New(o.Client, e.life.Closing.Done())
	}
	e.contended.seed, e.contended.began = maphash.MakeSeed(), time.Now()
	e.alarm.Ring = e.ring
	e.parking = newParking(e, o.Call)
	if o.Obeys {
		e.controls = control.New(control.Options{
			Life: e.life, Conn: e.conn, Log: o.Log, Prefix: o.Prefix, Secret: &e.o.HashKeys, Owner: o.Owner,
			HasScope: o.HasScope,
			Changed: func(now *control.State) {
				e.AskAll()
				if o.Changed != nil {
					o.Changed(now)
				}
			},
		})
	}
	return e
}

// Controls are the orders of operators; nil without Options.Obeys.
func (e *Engine) Controls() *control.Reader { return e.controls }

// Options are those of New.
func (e *Engine) Options() Options { return e.o }

// Key returns the key of the lock with that name and parts.
func (e *Engine) Key(name string, parts ...string) string {
	return keys.HashedKey(e.o.HashKeys, e.o.Prefix, name, parts...)
}

// Life counts what is under way, also of readers of orders and of claims.
func (e *Engine) Life() *life.Life { return e.life }

// Claim is the claim beside the lock with that key.
func (e *Engine) Claim(key string) claims.Claim { return claims.Of(e.life, e.conn, key) }

// Close is lock.Locker.Close.
func (e *Engine) Close() {
	select {
	case <-e.life.End():
	case <-time.After(redisx.Timeout): // without timeouts, also asynq's, it may be endless
	}
}

// Pace is a rate, and how a lock's grant counts for it. The zero value is none.
type Pace struct {
	Every time.Duration // from one start to the next
	Spare time.Duration // how much of that can be saved up
	Cost  int           // for how many starts a grant counts; 0: for one; below 0: for none
}

func (p *Pace) cost() int64 { return max(0, int64(cmp.Or(p.Cost, 1))) }

// Request is a wish for a lock.
type Request struct {
	Ref
	Name    string // of the lock, in errors
	Note    string
	TTL     time.Duration // how long a lease lasts without a renewal
	MaxHold time.Duration // after that the lease is lost; 0: no bound
	NoRenew bool
	Fenced  bool
	Notes   bool   // no two holders of the lock have the same note, from now on
	Arrival int64  // see Arrive; 0: none
	OnStop  func() // with Arrival: called when a newer one asks this holder or waiter to stop; it must not block
	Place   *Place // with Ref.Ordered
	Whole   bool   // the first exchange is waited for even if ctx ends, which saves a goroutine
	Line    *Line  // nil: the answer comes at once
}

// Line is how a caller waits in line. It does not change.
type Line struct {
	Within context.Context // ends the wait; nil: that of Take
	GateBy time.Time       // the wait ends at once if the gate opens later; zero: it does not
	// Yield parks the caller when it is closed: it leaves its note in line, and returns. So do a pause, and a gate that is
	// closed for long. nil: the caller does not park
	Yield  <-chan struct{}
	Ahead  bool            // with AtOnce: a free lock is not taken
	Again  <-chan struct{} // has the caller ask again; nil: nothing does
	Worker *workers.Wait   // with Ref.Lender: the wait of the caller's worker; nil: there is none
	// OnWait is called once at most, when Redis has said that the caller has to wait. sinceCall: as Lease.SinceCall.
	OnWait func(sinceCall time.Duration)

	AtPause bool // a pause ends the wait
}

// AtOnce is the Yield of who parks with the first ask.
var AtOnce = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

var noLine = &Line{}

// Handle is a lock as a program has it: what it asks of which Engine, and its error.
type Handle struct {
	Engine  *Engine
	Request Request
	Err     error
}

// Busy is the error of a request that did not get its lock.
type Busy struct {
	Answer
	Waited time.Duration
	Cause  error // what ended the wait, or nil
}

func (b *Busy) Error() string { return "lock: busy" }

// Unwrap returns b.Cause.
func (b *Busy) Unwrap() error { return b.Cause }

func (r *Request) grant() time.Duration { return min(r.TTL, maxGrant) }

// askCall asks within those bounds. With no slots it gives back a grant, and is in line by the ticket.
func (e *Engine) askCall(le *Lease, mode askMode, b control.Bounds, ticket int64) *redisx.Call {
	r, line := &le.request, le.request.Line
	if le.every, le.spare = b.Every, b.Spare; r.Ordered {
		return e.orderAsk(le, mode, b)
	}
	if line.Ahead {
		b.Slots = 0
	}
	if b.Slots > 0 {
		ticket = 0
	}
	args := []any{
		&le.body.Text, r.TTL.Milliseconds(), mode.lifetime(), r.grant().Milliseconds(), int64(b.Slots),
		oneOrZero(mode == askPark), oneOrZero((r.Notes || line.Yield != nil) && r.Note != ""), b.Known,
		b.Every.Microseconds(), b.Spare.Microseconds(), ticket,
		oneOrZero(r.borrows(b) && r.Lender.Lend(r.Key, r.Limit, line.Worker)), r.cost(),
	}
	args = shorten(args, 0, r.TTL.Milliseconds(), 1, 0, 0, 0, 0, 0, 0, 0, 1)
	return &redisx.Call{Script: askScript, Keys: r.keys(), Args: args}
}

// shorten leaves out last arguments that are as usual, from the third on.
func shorten(args []any, usual ...int64) []any {
	for n := len(args); n > 2 && args[n-1] == usual[n-3]; n-- {
		args = args[:n-1]
	}
	return args
}

func oneOrZero(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (e *Engine) newLease(r *Request, line *Line) *Lease {
	now := time.Now()
	var room [192]byte
	text := append(append(room[:0], e.channel...), '.')
	text = strconv.AppendInt(strconv.AppendInt(text, now.UnixMicro(), 36), e.serial.Add(1), 36)
	if r.Arrival > 0 {
		text = strconv.AppendInt(append(text, '.'), r.Arrival, 10)
	}
	size := len(text)
	text = append(append(append(append(text, '|'), e.owner...), '|'), r.Note...)
	body := string(text)
	le := &Lease{engine: e, request: *r, token: body[:size], keyArg: r.Key, ttlMS: r.TTL.Milliseconds(), takenAt: now,
		sinceCall: -1}
	le.body.Text, le.lease, le.request.Line = body, le, line
	return le
}

// Take takes a lock. The error Is a *Busy if others hold it, and the caller holds nothing and has no place in line,
// unless Busy.Parked. After any other error the lock may be taken until a lease ends, if Redis cannot be told.
func (e *Engine) Take(ctx context.Context, r *Request) (*Lease, error) { return e.take(ctx, r, askTry) }

// TakeFree tries to take a lock that is probably free, by one command. It returns nil without an error if the lock
// seems, or is, not free.
func (e *Engine) TakeFree(ctx context.Context, r *Request) (le *Lease, err error) {
	le, err = e.take(ctx, r, askFree)
	if busy, is := err.(*Busy); is && busy.Cause == nil { //nolint:errorlint // errors.As allocates
		err = nil
	}
	return le, err
}

// take tries by mode, or waits with r.Line.
func (e *Engine) take(ctx context.Context, r *Request, mode askMode) (*Lease, error) {
	line := cmp.Or(r.Line, noLine)
	if r.Line != nil {
		mode = askJoin
	}
	if err := ctx.Err(); err != nil {
		return nil, &Busy{Cause: err}
	}
	if err := e.life.Enter(); err != nil {
		return nil, err
	}
	defer e.life.Done()
	for {
		looked := time.Now()
		b, err := e.known(ctx, &r.Ref)
		if err != nil {
			return nil, err
		}
		le, err := e.takeOnce(ctx, r, line, mode, b)
		if busy, is := err.(*Busy); is && busy.Pause == control.Unread && busy.Waited == 0 { //nolint:errorlint // errors.As allocates
			continue
		}
		if err != nil {
			return nil, err
		}
		// An order may be read, or the process be stopped, between the look at the orders and here. So a try looks again, and
		// a wait, in which turn looks, that is late: after a pause nothing starts, and after a rate nothing uncounted.
		uncounted := false
		if (mode != askJoin || control.Old(looked, time.Now())) && ctx.Err() == nil {
			b, err = e.known(ctx, &r.Ref)
			if uncounted = b.Every > 0 && (b.Every != le.every || b.Spare != le.spare); err == nil && b.Pause != nil {
				err = pausedBy(b)
			}
		}
		switch {
		case ctx.Err() != nil:
			err = &Busy{Cause: ctx.Err()} // a caller never starts work on a context that has ended
		case err == nil && uncounted:
		case err == nil && !le.Held():
			err = fmt.Errorf("%w: %q: the reply came after the lease's end", redisx.ErrBackend, r.Name)
		case err == nil:
			return le, nil
		}
		e.giveBack(le)
		if err != nil && (mode != askJoin || ctx.Err() != nil || cmp.Or(line.Within, ctx).Err() != nil) {
			return nil, err
		}
		if line.OnWait != nil {
			again := *line
			again.OnWait = nil // it is called once
			line = &again
		}
	}
}

// seems: free: nobody here saw it taken of late, so a SET may get it; thin: take may say who has it.
func (e *Engine) seems(r *Request, b control.Bounds) (free, thin bool) {
	taken, fat := e.contended.has(r.Key)
	plain := b.Every == 0 && !r.Pool && !r.Ordered && b.Slots > 0
	return plain && !taken, plain && !fat && b.Slots == 1 && r.Lender == nil
}

func pausedBy(b control.Bounds) *Busy { return &Busy{Answer: Answer{Pause: b.Pause}} }

var errNotFree = &Busy{}

func (e *Engine) takeOnce(ctx context.Context, r *Request, line *Line, mode askMode, b control.Bounds) (*Lease, error) {
	free, thin := e.seems(r, b)
	switch {
	case b.Pause != nil && (mode != askJoin || line.AtPause):
		return nil, pausedBy(b)
	case mode == askFree && !free:
		return nil, errNotFree
	}
	le := e.newLease(r, line)
	var err error
	if mode == askJoin {
		err = e.wait(ctx, le, free && !line.Ahead, b.Pause != nil)
	} else {
		err = e.try(ctx, le, mode, free, thin)
	}
	if err == nil {
		if r.OnStop != nil {
			e.listen()
		}
		err = e.replicate(ctx, le)
	}
	return le, err
}

func (e *Engine) try(ctx context.Context, le *Lease, mode askMode, free, thin bool) error {
	for ; ; free, thin = false, false {
		a, sent, err := e.ask(ctx, le, mode, free, thin)
		switch {
		case err != nil:
			return err
		case a.Yours:
			e.mu.Lock()
			e.hold(le, a.Fence, a.Value, sent, false)
			e.mu.Unlock()
			return nil
		case !isStopped(a):
			return &Busy{Answer: a}
		case ctx.Err() != nil: // ask does not look at it if the request is Whole
			return &Busy{Answer: a, Cause: ctx.Err()}
		}
	}
}

// ask sends one ask by itself: first a SET or take, if the lock is probably free. What is unknown is given back.
func (e *Engine) ask(
	ctx context.Context, le *Lease, mode askMode, free, thin bool,
) (a Answer, sent time.Time, err error) {
	r := &le.request
	sent = time.Now()
	if r.Whole {
		ctx = e.conn.Whole(ctx)
	}
	if free || thin && mode == askTry {
		fat := uint32(0)
		if free && !r.Fenced {
			a.Yours, err = e.conn.SetNX(ctx, le.keyArg, &le.body, &le.ttlMS)
		} else {
			var reply any
			reply, err = e.conn.Run(ctx, takeScript, []string{r.Key}, &le.body, &le.ttlMS)
			var ok bool
			if a, ok = parseAsk(reply, false); !ok {
				a, fat = Answer{}, 1
			}
		}
		switch {
		case err != nil && !redisx.IsWrongType(err):
			e.loseReply(le, err)
			return a, sent, redisx.Failed("set", r.Key, err)
		case a.Yours:
			le.thin.Store(true)
			return a, sent, nil
		}
		e.contended.saw(r.Key, fat)
		if mode == askFree && !le.body.Resent() || thin && mode == askTry && a.Holder != "" {
			return a, sent, nil
		}
		sent = time.Now()
	}
	b := e.bounds(&r.Ref)
	c := e.askCall(le, mode, b, 0)
	reply, err := e.conn.Run(ctx, c.Script, c.Keys, c.Args...)
	if a, err = e.sawAsk(le, reply, err); err != nil {
		e.loseReply(le, err)
	}
	a.Pause = b.Pause
	return a, sent, err
}

func (e *Engine) sawAsk(le *Lease, reply any, err error) (a Answer, _ error) {
	r := &le.request
	if me := r.Line.Worker; me != nil {
		defer func() { me.Answered(a.Yours, a.Gate == 0 && r.borrows(e.bounds(&r.Ref))) }()
	}
	if refused := refusalOf(reply); refused != nil {
		return a, fmt.Errorf("%w: %q", refused, r.Name)
	}
	if err == nil {
		var ok bool
		if a, ok = parseAsk(reply, r.Pool); !ok {
			err = unexpected(reply)
		}
	}
	if err != nil {
		return a, redisx.Failed("ask", r.Key, err)
	}
	if (!a.Yours || a.Returned) && r.Line != noLine {
		e.contended.saw(r.Key, 1)
	}
	if a.Returned {
		parked, sinceCall := e.parking.sawReturn(r.Ref, r.Note, a)
		le.parked, le.sinceCall = max(le.parked, parked), max(le.sinceCall, sinceCall)
	}
	return a, nil
}

// loseReply gives back what an ask may have taken, whose reply was lost.
func (e *Engine) loseReply(le *Lease, err error) {
	if !redisx.IsNotRun(err) {
		e.life.Branch(func() {
			redisx.AwaitEnd(err, e.life.Closing.Done()) // else it may run after this
			e.releaseUnbegun(le, le.request.TTL)
		})
	}
}

// giveBack releases what no caller has seen. It waits a moment, and goes on in the background. Callers are counted in.
func (e *Engine) giveBack(le *Lease) {
	e.drop(le)
	done := make(chan struct{})
	e.life.Branch(func() {
		defer close(done)
		e.releaseUnbegun(le, le.request.TTL)
	})
	awaitSoon(done)
}

func awaitSoon(done <-chan struct{}) {
	timer := time.NewTimer(redisx.AnswerGrace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// releaseUnbegun releases a lease with which no handler has begun.
func (e *Engine) releaseUnbegun(le *Lease, within time.Duration) {
	le.End(OutcomeUnbegun)
	e.releaseUntil(le, time.Now().Add(within))
}

func (e *Engine) releaseUntil(le *Lease, until time.Time) {
	e.sendUntil(until, func() error {
		_, err := e.sendRelease(context.Background(), le)
		return err
	})
}

// sendUntil sends until Redis replies, that time is over, or the Engine closes.
func (e *Engine) sendUntil(until time.Time, send func() error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		if err := send(); err == nil || !redisx.IsTransient(err) || !time.Now().Before(until) {
			return
		}
		select {
		case <-time.After(pause):
		case <-e.life.Closing.Done():
			return
		}
	}
}

func (e *Engine) sendRelease(ctx context.Context, le *Lease) (released, error) {
	r := &le.request
	body, resent := &le.body, false
	cooldown := int64(0)
	if !le.cooldownEnd.IsZero() {
		cooldown = max(0, time.Until(le.cooldownEnd)+time.Millisecond-1).Milliseconds()
	}
	if taken, _ := e.contended.has(r.Key); le.thin.Load() && cooldown == 0 && !taken {
		deleted, err := e.conn.DeleteIfEqual(ctx, dropScript, le.keyArg, body)
		if err == nil && deleted {
			return released{named: named{free: int(e.limit(&r.Ref))}, held: true}, nil
		}
		resent = body.Resent() || err != nil && !redisx.IsNotRun(err)
	}
	inbound, life, lend := e.parking.wanted(r.Ref, true)
	c := &redisx.Call{Script: releaseScript, Keys: r.keys()}
	if r.Ordered {
		c.Script, c.Args = orderReleaseScript, []any{body, e.limit(&r.Ref), inbound, cooldown, r.Place.Nonce,
			outcomes[le.outcome.Load()]}
	} else {
		c.Args = []any{body, e.limit(&r.Ref), inbound, life, cooldown, lend, le.value}
		if !le.consumes {
			c.Args = shorten(c.Args[:6], 0, minCallLife.Milliseconds(), 0, 0)
		}
	}
	sent := time.Now()
	reply, err := e.conn.Run(ctx, c.Script, c.Keys, c.Args...)
	back := released{}
	if err == nil {
		back, err = parseRelease(reply)
	}
	if err != nil {
		return released{}, redisx.Failed("release", r.Key, err)
	}
	back.resent = resent || body.Resent()
	for _, msg := range back.grants {
		e.deliver(msg)
	}
	e.parking.sawNamed(r.Ref, back.named, sent)
	if back.grants != nil {
		runtime.Gosched() // the goroutine of the next holder runs before this one, which may go on for long
	}
	return back, nil
}

type entry struct {
	at     time.Time // when it is due
	place  int       // in the heap, counted from 1; 0: not in it
	waiter *waiter
	lease  *Lease
	line   *parkedLine
}

// agenda is a heap, the first due first. The mutex of its owner guards it.
type agenda []*entry //nolint:recvcheck // heap.Interface wants both

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i+1, j+1
}
func (a *agenda) Push(x any) {
	last, _ := x.(*entry) // set pushes nothing else
	last.place = len(*a) + 1
	*a = append(*a, last)
}

func (a *agenda) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	(*a)[last], *a = nil, (*a)[:last]
	x.place = 0
	return x
}

// set moves x to at; a zero at takes it out. It reports whether x is the first now.
func (a *agenda) set(x *entry, at time.Time) (first bool) {
	x.at = at
	switch {
	case at.IsZero() && x.place > 0:
		heap.Remove(a, x.place-1)
	case at.IsZero():
	case x.place > 0:
		heap.Fix(a, x.place-1)
	default:
		heap.Push(a, x)
	}
	return x.place == 1
}

// planAsk and planHold set what is due, and the alarm. Callers hold mu.
func (e *Engine) planAsk(w *waiter) { e.plan(&e.asks, &w.entry, w.turn.next()) }

func (e *Engine) planHold(le *Lease) { e.plan(&e.holds, &le.entry, le.next()) }

func (e *Engine) plan(a *agenda, x *entry, at time.Time) {
	if a.set(x, at) {
		e.alarm.Set(at)
	}
}

// ring handles what is due, for the alarm and at each sender's end. What finds no sender stays due, and is looked at
// again: all may hang, and leases end.
func (e *Engine) ring() {
	e.ringing.Lock()
	now := time.Now()
	// else nothing is taken to be sent: its waiter would have no reply, and send no leave
	open := e.life.Enter() == nil
	if open {
		defer e.life.Done()
	}
	most := maxSenders
	if e.conn.IsCluster() {
		most = maxSendersCluster
	}
	e.mu.Lock()
	ends, renewals := e.takeHolds(now, open && e.senders < most+2) // no crowd of waiters keeps a lease from being renewed
	var asks []*waiter
	if open && e.senders < most {
		asks = e.takeAsks(now)
	}
	next := time.Time{}
	for _, a := range []agenda{e.asks, e.holds} {
		if len(a) > 0 {
			next = life.Earliest(next, a[0].at)
		}
	}
	if !next.IsZero() && !next.After(now) {
		next = time.Now().Add(max(leastMargin/10, 10*time.Since(now))) // many may be due
	}
	e.mu.Unlock()
	e.alarm.Set(next)
	redisx.InBatches(e.conn, e.branch, renewals, func(le *Lease) string { return le.request.Key }, e.sendRenewals)
	redisx.InBatches(e.conn, e.branch, asks, func(w *waiter) string { return w.lease.request.Key }, e.sendAsks)
	e.ringing.Unlock()
	for _, end := range ends {
		end()
	}
}

// branch runs f on a goroutine that rings when it ends.
func (e *Engine) branch(f func()) {
	e.mu.Lock()
	e.senders++
	e.mu.Unlock()
	e.life.Branch(func() {
		f()
		e.mu.Lock()
		e.senders--
		e.mu.Unlock()
		e.ring()
	})
}

// takeAsks takes a batch of the waiters that are due. Callers hold mu.
func (e *Engine) takeAsks(now time.Time) (due []*waiter) {
	var early []*waiter
	for len(e.asks) > 0 && len(due) < redisx.MaxBatch && len(early) < redisx.MaxBatch &&
		e.asks[0].at.Before(now.Add(together)) {
		if e.asks[0].at.After(now) && len(due) == 0 {
			break
		}
		w := e.asks[0].waiter
		e.asks.set(&w.entry, time.Time{})
		if w.turn.due(now) {
			due = append(due, w)
		} else {
			early = append(early, w)
		}
	}
	for _, w := range early {
		e.asks.set(&w.entry, w.turn.next())
	}
	return due
}

// takeHolds takes leases that end, and a batch to be renewed. Callers hold mu, and call what ends.
func (e *Engine) takeHolds(now time.Time, mayRenew bool) (ends []func(), renewals []*Lease) {
	var early []*Lease
	for len(e.holds) > 0 && len(renewals) < redisx.MaxBatch && e.holds[0].at.Before(now.Add(together)) {
		le := e.holds[0].lease
		// what is due soon goes along: else one that was refused would be sent at once
		if le.at.After(now) && len(renewals) == 0 {
			break
		}
		switch end := e.endDue(le, now); {
		case end != nil:
			ends = append(ends, end)
			continue
		case mayRenew && e.life.Closing.Err() == nil && le.renewals < maxRenewals && !le.renewAt.IsZero() &&
			le.renewAt.Before(now.Add(together)):
			le.sawSent(now)
			renewals = append(renewals, le)
		}
		e.holds.set(&le.entry, time.Time{})
		early = append(early, le)
	}
	for _, le := range early {
		e.holds.set(&le.entry, le.next())
	}
	return ends, renewals
}

func jitter(d time.Duration) time.Duration { return d + mathrand.N(d) } //nolint:gosec // jitter, no secret

// contended remembers keys for which a SET would probably fail. Two may share a slot.
type contended struct {
	seed  maphash.Seed
	began time.Time
	slots [1024]atomic.Uint32 // twice the ticks of 100 ms since began, from 1 on, and 1 if the lock is fat; 0: never
}

func (c *contended) slot(key string) *atomic.Uint32 {
	return &c.slots[maphash.String(c.seed, key)%uint64(len(c.slots))]
}

func (c *contended) tick() uint32 { return uint32(time.Since(c.began)/(100*time.Millisecond)) + 1 } //nolint:gosec // 6 years until it wraps

func (c *contended) saw(key string, fat uint32) { c.slot(key).Store(c.tick()<<1 | fat) }

func (c *contended) has(key string) (taken, fat bool) {
	at := c.slot(key).Load()
	taken = at != 0 && c.tick()-at>>1 < 10
	return taken, taken && at&1 == 1
}

var errBroken = fmt.Errorf("%w: it was broken", ErrLost)

// The start of work that is to start in time is kept in a key of its own, so that who gets it again knows.

func (e *Engine) doStart(ctx context.Context, note, command string, more ...any) (any, error) {
	key := e.o.Prefix + ":start:" + note
	return e.do(ctx, command, key, func() (any, error) {
		return e.conn.Do(ctx, append([]any{command, key}, more...)...)
	})
}

// KeepStart keeps for so long that the work with that note has started. After an error that may be kept or not.
func (e *Engine) KeepStart(ctx context.Context, note string, keep time.Duration) error {
	_, err := e.doStart(ctx, note, "set", "1", "px", keep.Milliseconds())
	return err
}

// HasStarted reports it.
func (e *Engine) HasStarted(ctx context.Context, note string) (bool, error) {
	n, err := e.doStart(ctx, note, "exists")
	return n == any(int64(1)), err
}

// ForgetStart deletes it.
func (e *Engine) ForgetStart(ctx context.Context, note string) error {
	_, err := e.doStart(ctx, note, "del")
	return err
}

// The newest wins: of the work that comes to a lock with N slots the last N stay. Older work is overtaken: a message
// asks it to stop, which takes nothing away, and it is told so when it comes again.

// mostEnded bounds how many that have ended count: 100 kB.
const mostEnded = 1000

func (r *Ref) arrivals() []string { return []string{r.Key + ":arrivals", r.Key + ":newest"} }

// Arrive returns when the work with that note first came to the lock, and stores that with the first call, until Forget
// or for a month. A later arrival has a higher number, and no two have the same.
func (e *Engine) Arrive(ctx context.Context, r Ref, note string) (arrival int64, overtaken bool, err error) {
	if err := e.Know(ctx, r.Key); err != nil {
		return 0, false, err
	}
	reply, err := e.call(ctx, arriveScript, r.arrivals(), note, e.limit(&r))
	if err != nil {
		return 0, false, err
	}
	f := fieldsOf(reply)
	arrival, overtaken = f.num(0), f.num(1) == 1
	if f.wrong || arrival <= 0 {
		return 0, false, wrongReply("arrive", r.Key, reply)
	}
	return arrival, overtaken, nil
}

// Forget ends the work with that note and arrival (0: any): if it comes again it is new. If it counts it still
// overtakes older work. If Redis does not reply, it is told in the background, for a minute at most.
func (e *Engine) Forget(ctx context.Context, r Ref, note string, arrival int64, counts bool) error {
	keep := oneOrZero(counts) * mostEnded // an older one may have a higher limit
	send := func() error {
		_, err := e.code(ctx, 1, forgetScript, r.arrivals(), note, arrival, keep)
		return err
	}
	err := send()
	if ctx = context.WithoutCancel(ctx); redisx.IsTransient(err) {
		e.life.Spawn(func() { e.sendUntil(time.Now().Add(time.Minute), send) })
	}
	return err
}

// Stop asks overtaken holders and waiters to stop if all slots are taken, and reports whether the arrival is overtaken.
// The request may be lost, and new holders may come: a waiting caller calls Stop about once a second.
func (e *Engine) Stop(ctx context.Context, r Ref, arrival int64) (overtaken bool, err error) {
	if err := e.Know(ctx, r.Key); err != nil {
		return false, err
	}
	n, err := e.code(ctx, 1, stopScript, append(r.keys(), r.arrivals()...), e.limit(&r), arrival)
	return n == 1, err
}
