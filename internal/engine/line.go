package engine

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
	"github.com/automutex/automutex/internal/turn"
)

// waiter is one caller that waits. Engine.mu guards its fields but lease and done, which never change. turn.Asks does not change while an
// ask is under way, so who sends it reads it without mu.
type waiter struct {
	entry
	lease  *Lease
	turn   turn.Wait
	unsent bool          // its first ask waits for a sender
	first  chan struct{} // closed with the first reply, if that ask goes in a pipeline; then nil
	done   chan struct{} // closed when the wait has ended by itself
	left   chan struct{} // closed when the leave was sent
	paused chan struct{} // with Request.Leaves: closed when the lock is paused
	ended  turn.Step     // with done: how
	err    error         // with turn.Failed: what Take returns
}

// wait takes the lock of le, in line until ctx ends.
func (e *Engine) wait(ctx context.Context, le *Lease) error {
	r := &le.request
	began, grant := time.Now(), r.grant()
	until, _ := r.Within.Deadline()
	w := &waiter{lease: le, done: make(chan struct{}), left: make(chan struct{})}
	w.waiter = w
	if r.Leaves {
		w.paused = make(chan struct{})
	}
	parkNow := r.Park && (!r.Wait || isClosed(r.Yield) || e.limit(&r.Ref) == 0)
	w.turn = turn.New(turn.Terms{
		Until: until, InTime: r.InTime, MayPark: r.Park, Grant: grant, Counted: believe(grant), Short: grant < r.TTL && r.NoRenew,
	}, parkNow)

	a, err := e.askFirst(ctx, w, began)
	if err != nil {
		return err
	}
	own := r.Note != "" && holderOf(a.Holder).Note == r.Note && !strings.HasPrefix(a.Holder, "o:") // a head is another task with its ID
	if r.Park && !a.Yours && !a.Parked && own && !isClosed(w.done) {
		return &Busy{Answer: e.leave(w)} // its own earlier run: it returns
	}
	select {
	case <-w.done:
		if w.ended != turn.Granted { // one that a message has granted meanwhile did wait
			return e.result(w, 0)
		}
	default:
	}
	e.listen() // a grant that was published before the subscription stands is lost: then all ask again
	if r.Ordered {
		e.parking.checkOrder(r.Ref)
	}
	if r.OnWait != nil {
		returned := false
		defer func() {
			if !returned {
				e.leave(w)
			}
		}()
		r.OnWait()
		returned = true
	}
	return e.stand(w, began)
}

// askFirst sends the first ask of w, and returns its answer. The waiter is known before: a grant may be published before the reply is
// read. With many first asks under way, this one goes in a pipeline.
func (e *Engine) askFirst(ctx context.Context, w *waiter, began time.Time) (a turn.Answer, err error) {
	le, r := w.lease, &w.lease.request
	e.mu.Lock()
	e.waiters[le.token] = w
	alone := e.firsts[r.Key] < maxFirstAsks && len(e.firsts) < maxFirstKeys
	if alone {
		e.firsts[r.Key]++
	} else {
		w.unsent, w.first = true, make(chan struct{})
		e.asks.set(&w.entry, began)
		e.alarm.Set(began)
	}
	first := w.first
	e.mu.Unlock()
	if !alone { // it does not wait for the lock before Redis has said that others hold it
		select {
		case <-first:
		case <-r.Within.Done():
		case <-e.life.Closing.Done():
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		return w.turn.Last(), nil
	}
	a, sent, err := e.ask(ctx, le, w.turn.Asks())
	e.mu.Lock()
	if e.firsts[r.Key]--; e.firsts[r.Key] == 0 {
		delete(e.firsts, r.Key)
	}
	if err != nil {
		delete(e.waiters, le.token)
	}
	e.mu.Unlock()
	if err == nil {
		e.handleReply(w, turn.Reply{Answer: a, Sent: sent})
	}
	return a, err
}

// stand waits until the waiter has its lock, or leaves the line.
func (e *Engine) stand(w *waiter, began time.Time) error {
	r := &w.lease.request
	yield := r.Yield
	e.mu.Lock()
	e.endPaused(w) // what was ordered before the waiter was known
	e.mu.Unlock()
	for {
		select {
		case <-w.done:
			return e.result(w, time.Since(began))
		case <-w.paused:
			return &Busy{Answer: e.leave(w), Waited: time.Since(began), Left: true}
		case <-yield:
			yield = nil
			e.mu.Lock()
			w.turn.ParkSoon(time.Now())
			e.planAsk(w)
			e.mu.Unlock()
		case <-e.life.Closing.Done():
			if last := e.leave(w); last.Parked {
				return &Busy{Answer: last, Waited: time.Since(began), Cause: ErrClosed}
			}
			return ErrClosed
		case <-r.Within.Done():
			return &Busy{Answer: e.leave(w), Waited: time.Since(began), Cause: r.Within.Err(), Paused: e.limit(&r.Ref) == 0}
		}
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

// result is what Take returns for w, whose done is closed.
func (e *Engine) result(w *waiter, waited time.Duration) error {
	switch w.ended {
	case turn.Won, turn.Granted:
		return nil
	case turn.ParkedOrRefused:
		return &Busy{Answer: w.turn.Last(), Waited: waited, Paused: e.limit(&w.lease.request.Ref) == 0}
	case turn.TooLate:
		e.leave(w)
		return &Busy{Answer: w.turn.Last(), Waited: waited, Cause: context.DeadlineExceeded}
	}
	e.leave(w)
	return w.err
}

// leave takes w out of the line, and gives back a slot that it may have been granted. It waits a moment for the reply of an ask that is
// under way, which may yet park w, and returns the last busy reply.
func (e *Engine) leave(w *waiter) turn.Answer {
	e.mu.Lock()
	delete(e.waiters, w.lease.token)
	e.asks.set(&w.entry, time.Time{})
	step := w.turn.GiveUp()
	if w.unsent {
		w.unsent, step = false, w.turn.Replied(turn.Reply{Err: ErrClosed}, time.Now())
	}
	e.act(w, step, turn.Reply{})
	e.mu.Unlock()
	timer := time.NewTimer(redisx.AnswerGrace)
	defer timer.Stop()
	select {
	case <-w.left:
	case <-timer.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return w.turn.Last()
}

// sendAsks asks for a batch of waiters in one pipeline.
func (e *Engine) sendAsks(batch []*waiter) {
	calls := make([]*redisx.Call, len(batch))
	for i, w := range batch {
		calls[i] = e.askCall(w.lease, w.turn.Asks())
	}
	sent := time.Now()
	e.conn.Pipeline(context.Background(), calls)
	for i, w := range batch {
		a, err := e.noteAsk(w.lease, calls[i].Reply, calls[i].Err)
		// That the task is done, or its attempts spent, is no error of Redis, and stays so.
		final := err != nil && (!errors.Is(err, redisx.ErrBackend) || !redisx.IsTransient(err))
		e.handleReply(w, turn.Reply{Answer: a, Err: err, Final: final, Sent: sent})
	}
}

// handleReply handles the reply to the ask of w that is under way.
func (e *Engine) handleReply(w *waiter, r turn.Reply) {
	if r.Err == nil && !r.Yours {
		r.Slots = e.limit(&w.lease.request.Ref)
	}
	e.mu.Lock()
	now := time.Now()
	e.act(w, w.turn.Replied(r, now), r)
	if w.first != nil {
		close(w.first)
		w.first = nil
	}
	if r.Err == nil && isStopped(r.Answer) {
		w.turn.AskAgain(now)
	}
	e.planAsk(w)
	e.mu.Unlock()
	if r.Err == nil && r.Parked {
		e.parking.noteParked(w.lease.request.Ref, w.lease.request.Note, r.Answer, w.lease.called)
	}
}

// act carries out a step of w. Callers hold mu.
func (e *Engine) act(w *waiter, step turn.Step, r turn.Reply) {
	switch step {
	case turn.Stay:
		return
	case turn.Leave:
		e.life.Branch(func() { // callers are counted in: they are in Take, or in a sender
			e.drop(w.lease)
			e.releaseUntil(w.lease, time.Now().Add(turn.EntryLifetime))
			close(w.left)
		})
		return
	case turn.Won:
		e.holdLocked(w.lease, r.Fence, r.Value, r.Sent, w.lease.request.TTL, false)
	case turn.Granted:
		grant, since := w.turn.Grant()
		e.holdLocked(w.lease, grant.Fence, grant.Value, since, w.lease.request.grant(), true)
	case turn.Failed:
		w.err = r.Err
	case turn.ParkedOrRefused, turn.TooLate:
	}
	w.ended = step
	delete(e.waiters, w.lease.token)
	e.asks.set(&w.entry, time.Time{})
	close(w.done)
}

// note takes a message, or a grant in the reply of a release.
func (e *Engine) note(msg turn.Message) {
	now := time.Now()
	e.mu.Lock()
	end := func() {}
	w, le := e.waiters[msg.Token], e.leases[msg.Token]
	switch {
	case msg.Fence == turn.StopFence && (w != nil || le != nil):
		if le == nil {
			le = w.lease
		}
		if le.request.OnStop != nil {
			end = func() { life.CallUser(e.o.Log, "OnStop", le.request.OnStop) }
		}
	case msg.Fence == turn.BrokenFence && le != nil:
		bound := e.endLocked(le, lost)
		end = func() { endAll(bound, errBroken) }
	case msg.Fence == turn.BrokenFence && w != nil:
		w.turn.NoteBroken(msg, now)
		e.planAsk(w)
	case msg.Fence == turn.GateFence && w != nil:
		w.turn.GateOpens(msg.ServerUS, waitOf(msg), now)
		e.planAsk(w)
	case msg.Fence > 0 && w != nil:
		e.act(w, w.turn.NoteGrant(msg, now), turn.Reply{})
		e.planAsk(w)
	}
	e.mu.Unlock()
	end()
}

const (
	pingEvery        = time.Second            // how long the subscription may be silent before it is pinged
	idleListen       = 10 * time.Second       // how long it outlives its last use
	relisten         = 100 * time.Millisecond // the pause before one that broke is replaced
	subscribeTimeout = 3 * time.Second
)

// listen makes sure that the subscription is there or on its way. It ends by itself when nobody has waited for a while.
func (e *Engine) listen() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.listening {
		e.listening = e.life.Spawn(e.receiveAll)
	}
}

func (e *Engine) receiveAll() {
	lastUse := time.Now()
	for broken := 0; ; {
		idle, worked := e.receive(&lastUse)
		e.mu.Lock() // a waiter that comes now either finds listening false, or is found here
		if e.closed || e.life.Closing.Err() != nil || idle && !e.isListening() {
			e.listening = false
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
		if worked {
			broken = 0
		}
		if !idle {
			if broken++; broken == 1 { // once for each outage
				e.o.Log.Warn("automutex: the wake-up subscription broke and is being replaced; waiters ask once a second meanwhile",
					"channel", e.o.Prefix+":"+e.channel)
			}
		}
		select {
		case <-time.After(relisten << min(broken, 4)):
		case <-e.life.Closing.Done():
		}
	}
}

// receive subscribes and listens until the subscription fails, nobody has waited for idleListen (idle), or Close. worked: it was
// confirmed. go-redis by itself does not notice a connection that loses everything, so receive pings a silent one.
func (e *Engine) receive(lastUse *time.Time) (idle, worked bool) {
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
			return false, worked
		case err != nil:
			if pinged = true; sub.Ping(ctx) != nil {
				return false, worked
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
			if msg, ok := turn.ParseMessage(got.Payload); got.Channel != channels[0] {
				e.controls.ReadSoon()
			} else if ok {
				e.note(msg)
			}
		}
		e.mu.Lock()
		used := e.isListening()
		e.mu.Unlock()
		if used {
			*lastUse = time.Now()
		} else if time.Since(*lastUse) > idleListen {
			return true, worked
		}
	}
}

// isListening reports whether messages may come. Callers hold mu.
func (e *Engine) isListening() bool { return len(e.waiters)+e.stoppable > 0 }

// AskAll has every waiter ask again: messages may have been missed, or the orders of operators have changed.
func (e *Engine) AskAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for _, w := range e.waiters {
		w.turn.AskAgain(now)
		e.planAsk(w)
		e.endPaused(w)
	}
}

// endPaused ends the wait of w if its lock is paused, and it is to leave then. Callers hold mu.
func (e *Engine) endPaused(w *waiter) {
	if w.paused == nil || e.controls == nil || isClosed(w.paused) {
		return
	}
	if pause, _ := e.controls.PauseOf(w.lease.request.Key); pause != nil {
		close(w.paused)
	}
}
