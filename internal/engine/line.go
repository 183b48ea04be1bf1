package engine

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
)

// waiter is one caller that waits. Engine.mu guards all but lease, within and done, which never change. turn.mode and
// turn.ticket do not change while an ask is under way, so its sender reads them without mu.
type waiter struct {
	entry
	lease  *Lease
	within context.Context // with it the wait ends
	turn   turn
	first  chan struct{} // closed with the first reply, of an ask in a pipeline; then nil
	done   chan struct{} // closed when the wait has ended by itself
	ended  move          // with done: how
	err    error         // with failed: what Take returns

	leaveSent chan struct{}
}

// free and paused are how the lock seems now.
func (e *Engine) wait(ctx context.Context, le *Lease, free, paused bool) error {
	r, line := &le.request, le.request.Line
	began, grant, mayPark := time.Now(), r.grant(), line.Yield != nil
	w := &waiter{lease: le, within: cmp.Or(line.Within, ctx), done: make(chan struct{}), leaveSent: make(chan struct{})}
	w.waiter = w
	w.turn = newTurn(terms{
		gateBy: line.GateBy, mayPark: mayPark, atPause: line.AtPause,
		grant: grant, counted: believe(grant), short: grant < r.TTL && r.NoRenew,
	}, isClosed(line.Yield) || mayPark && paused)

	a, asked, err := e.askFirst(ctx, w, began, free)
	if err != nil {
		return err
	}
	// a head is another task with its ID
	own := r.Notes && r.Note != "" && holderOf(a.Holder).Note == r.Note && !strings.HasPrefix(a.Holder, "o:")
	if mayPark && !a.Yours && !a.Parked && own && !isClosed(w.done) {
		return &Busy{Answer: e.leave(w)} // its own earlier run: it returns
	}
	if isClosed(w.done) && w.ended != granted { // one that a message has granted meanwhile did wait
		return e.result(w, 0)
	}
	e.listen() // a grant that was published before the subscription stands is lost: then all ask again
	if r.Ordered {
		e.parking.checkOrder(r.Ref)
	}
	if line.OnWait != nil && asked {
		sinceCall := time.Duration(-1) // not the lease's: a sender may write that
		if a.Returned {
			sinceCall = a.SinceCall
		}
		returned := false
		defer func() {
			if !returned {
				e.leave(w)
			}
		}()
		line.OnWait(sinceCall)
		returned = true
	}
	return e.stand(w, began)
}

// askFirst sends the first ask of w: in a pipeline if many are under way.
func (e *Engine) askFirst(
	ctx context.Context, w *waiter, began time.Time, free bool,
) (a Answer, asked bool, err error) {
	le, r := w.lease, &w.lease.request
	e.mu.Lock()
	e.waiters[le.token] = w // before it asks: a grant may be published before the reply is read
	if e.firsts[r.Key] >= maxFirstAsks || len(e.firsts) >= maxFirstKeys {
		first := make(chan struct{})
		w.first = first
		w.turn.putOff(began)
		e.planAsk(w)
		e.mu.Unlock()
		bound, end := context.WithCancel(ctx)
		defer end()
		// A free lock is had, though the reply comes after Within.
		defer context.AfterFunc(w.within, func() { time.AfterFunc(redisx.Timeout, end) })()
		select { // it does not wait for the lock before Redis has said that others hold it
		case <-first:
		case <-bound.Done():
		case <-e.life.Closing.Done():
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		return w.turn.last, w.first == nil, nil
	}
	e.firsts[r.Key]++
	e.mu.Unlock()
	a, sent, err := e.ask(ctx, le, w.turn.mode, free, false)
	e.mu.Lock()
	if e.firsts[r.Key]--; e.firsts[r.Key] == 0 {
		delete(e.firsts, r.Key)
	}
	if err != nil {
		delete(e.waiters, le.token)
	}
	e.mu.Unlock()
	if err == nil {
		e.handleReply(w, askReply{Answer: a, sent: sent})
	}
	return a, true, err
}

func (e *Engine) stand(w *waiter, began time.Time) error {
	line := w.lease.request.Line
	yield := line.Yield
	for {
		change := (*turn).askAgain
		select {
		case <-line.Again:
		case <-yield:
			yield, change = nil, (*turn).parkSoon
		case <-w.done:
			return e.result(w, time.Since(began))
		case <-e.life.Closing.Done():
			if last := e.leave(w); last.Parked {
				return &Busy{Answer: last, Waited: time.Since(began), Cause: ErrClosed}
			}
			return ErrClosed
		case <-w.within.Done():
			return &Busy{Answer: e.leave(w), Waited: time.Since(began), Cause: w.within.Err()}
		}
		e.mu.Lock()
		change(&w.turn, time.Now())
		e.planAsk(w)
		e.mu.Unlock()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (e *Engine) result(w *waiter, waited time.Duration) error {
	switch w.ended {
	case won, granted:
		return nil
	case parkedOrRefused:
		return &Busy{Answer: w.turn.last, Waited: waited}
	case tooLate:
		return &Busy{Answer: e.leave(w), Waited: waited, Cause: context.DeadlineExceeded}
	case paused:
		return &Busy{Answer: e.leave(w), Waited: waited}
	}
	e.leave(w)
	return w.err
}

// leave takes w out of the line, and gives back what it was granted. It waits a moment for an ask under way, which may
// yet park w, and returns the last busy reply.
func (e *Engine) leave(w *waiter) Answer {
	e.mu.Lock()
	delete(e.waiters, w.lease.token)
	e.asks.set(&w.entry, time.Time{})
	e.act(w, w.turn.giveUp(), askReply{})
	e.mu.Unlock()
	awaitSoon(w.leaveSent)
	e.mu.Lock()
	defer e.mu.Unlock()
	return w.turn.last
}

func (e *Engine) sendAsks(batch []*waiter) {
	calls := make([]*redisx.Call, len(batch))
	for i, w := range batch {
		calls[i] = e.askCall(w.lease, w.turn.mode, e.bounds(&w.lease.request.Ref), w.turn.ticket)
	}
	sent := time.Now()
	e.conn.Pipeline(context.Background(), calls)
	for i, w := range batch {
		a, err := e.sawAsk(w.lease, calls[i].Reply, calls[i].Err)
		// that a task is done, or its attempts spent, stays so
		final := err != nil && (!errors.Is(err, redisx.ErrBackend) || !redisx.IsTransient(err))
		e.handleReply(w, askReply{Answer: a, err: err, final: final, sent: sent})
	}
}

func (e *Engine) handleReply(w *waiter, r askReply) {
	b := e.bounds(&w.lease.request.Ref) // a pause may have come since it was asked
	r.slots, r.Pause = b.Slots, b.Pause
	e.mu.Lock()
	now := time.Now()
	e.act(w, w.turn.replied(r, now), r)
	if w.first != nil {
		close(w.first)
		w.first = nil
	}
	if r.err == nil && isStopped(r.Answer) {
		w.turn.askAgain(now)
	}
	e.planAsk(w)
	e.mu.Unlock()
	if r.err == nil && r.Parked {
		e.parking.sawParked(w.lease.request.Ref, w.lease.request.Note, r.Answer, w.lease.sinceCall >= 0)
	}
}

func (e *Engine) act(w *waiter, next move, r askReply) {
	switch next {
	case stay:
		return
	case leave:
		e.life.Branch(func() { // callers are counted in: they are in Take, or in a sender
			e.drop(w.lease)
			e.releaseUnbegun(w.lease, entryLifetime)
			close(w.leaveSent)
		})
		return
	case won:
		e.hold(w.lease, r.Fence, r.Value, r.sent, false)
	case granted:
		e.hold(w.lease, w.turn.hint.fence, w.turn.hint.value, w.turn.askedAt, true)
	case failed:
		w.err = r.err
	}
	w.ended = next
	delete(e.waiters, w.lease.token)
	e.asks.set(&w.entry, time.Time{})
	close(w.done)
}

// deliver tells a waiter or lease of a message, or of a grant from a release.
func (e *Engine) deliver(msg message) {
	now := time.Now()
	e.mu.Lock()
	end := func() {}
	w, le := e.waiters[msg.token], e.leases[msg.token]
	switch {
	case msg.fence == stopFence && (w != nil || le != nil):
		if le == nil {
			le = w.lease
		}
		if le.request.OnStop != nil {
			end = func() { life.CallUser(e.o.Log, "OnStop", le.request.OnStop) }
		}
	case msg.fence == brokenFence && le != nil:
		bound := e.endLocked(le, lost)
		end = func() { endAll(bound, errBroken) }
	case msg.fence == brokenFence && w != nil:
		w.turn.sawBroken(msg, now)
		e.planAsk(w)
	case msg.fence == gateFence && w != nil:
		us, _ := strconv.ParseInt(msg.value, 10, 64) // what is no number asks at once
		w.turn.gateOpens(msg.serverUS, time.Duration(us)*time.Microsecond, now)
		e.planAsk(w)
	case msg.fence > 0 && w != nil:
		e.act(w, w.turn.sawGrant(msg, e.bounds(&w.lease.request.Ref).Pause != nil, now), askReply{})
		e.planAsk(w)
	}
	e.mu.Unlock()
	end()
}

const (
	pingEvery        = time.Second            // how long the subscription may be silent before it is pinged
	relisten         = 100 * time.Millisecond // the pause before one that broke is replaced
	subscribeTimeout = 3 * time.Second
)

// The subscription ends with the Engine.
func (e *Engine) listen() {
	e.listening.Do(func() { e.life.Spawn(e.receiveAll) })
}

func (e *Engine) receiveAll() {
	for broken := 0; ; {
		worked := e.receive()
		if e.life.Closing.Err() != nil {
			return
		}
		if worked {
			broken = 0
		}
		if broken++; broken == 1 && e.isInUse() { // once for each outage
			e.o.Log.Warn("automutex: the wake-up subscription broke and is being replaced; waiters ask once a second meanwhile",
				"channel", e.o.Prefix+":"+e.channel)
		}
		select {
		case <-time.After(relisten << min(broken, 4)):
		case <-e.life.Closing.Done():
		}
	}
}

// receive listens until the subscription fails, or Close. worked: it was confirmed. go-redis does not notice a
// connection that loses everything, so receive pings a silent one, if a message may come.
func (e *Engine) receive() (worked bool) {
	ctx, cancel := context.WithCancel(e.life.Closing)
	defer cancel()
	subscribing, subscribed := context.WithTimeout(ctx, subscribeTimeout)
	channels := []string{e.o.Prefix + ":" + e.channel}
	if e.controls != nil {
		channels = append(channels, e.controls.Channel)
	}
	sub := e.o.Client.Subscribe(subscribing, channels...)
	subscribed()
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // interrupts a receive when the Engine closes
	defer func() {
		if stop() {
			_ = sub.Close()
		}
	}()
	for pinged := false; ; {
		got, err := sub.ReceiveTimeout(ctx, pingEvery)
		var silent interface{ Timeout() bool }
		switch {
		case ctx.Err() != nil, err != nil && (pinged || !errors.As(err, &silent) || !silent.Timeout()):
			return worked
		case err != nil && worked && !e.isInUse():
		case err != nil:
			if pinged = true; sub.Ping(ctx) != nil {
				return worked
			}
		case worked:
			pinged = false // not before: Redis answers pings also where the SUBSCRIBE got lost
		}
		switch got := got.(type) {
		case *redis.Subscription:
			if got.Channel == channels[0] {
				worked, pinged = true, false
				e.AskAll()
			}
		case *redis.Message:
			if msg, ok := parseMessage(got.Payload); got.Channel != channels[0] {
				e.controls.ReadSoon()
			} else if ok {
				e.deliver(msg)
			}
		}
	}
}

func (e *Engine) isInUse() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiters)+len(e.leases) > 0
}

// AskAll has every waiter ask again: messages may have been missed, or the orders of operators have changed.
func (e *Engine) AskAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for _, w := range e.waiters {
		w.turn.askAgain(now)
		e.planAsk(w)
	}
}
