package lock

import (
	"context"
	"errors"
	"time"

	"github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// TryLock takes the lock, or returns a *BusyError at once. It never overtakes a waiter: with
// others in line the lock is busy even if a slot is free. If an operator has paused the
// lock, the BusyError says so; see [Controls].
//
// After an error the caller holds nothing. If the reply was lost, so that the outcome is
// unknown, TryLock releases the lock in the background. If Redis does not answer, TryLock
// returns after about 5 s, or within a quarter of a second after ctx ended; the error then Is
// ErrBackend, and ctx.Err() if ctx ended. If ctx has ended when the lease arrives, TryLock
// gives the lease back and returns ctx.Err().
func (m *Lock) TryLock(ctx context.Context) (*Lease, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.locker.life.Done()
	looked := time.Now()
	if err := m.knowControls(ctx); err != nil {
		return nil, err
	}
	if busy := m.pausedError(); busy != nil {
		return nil, busy
	}
	le := m.newLease()
	answer, sent, err := m.take(ctx, le, turn.Try)
	if err != nil {
		return nil, err
	}
	if !answer.Yours {
		m.locker.releaseLater(le)
		return nil, m.busy(answer, 0, nil)
	}
	m.won(le, answer, sent)
	le, err = m.handOut(ctx, le)
	return m.inTime(ctx, looked, le, err)
}

// Lock takes the lock. If the lock is busy, Lock waits in line until ctx ends; the error then
// Is both ErrBusy and ctx.Err(). Waiters are served first come, first served. ctx bounds the
// wait only: the lease outlives ctx. After ctx has ended Lock never succeeds: it gives back a
// lease that arrives later.
//
// After an error the caller holds nothing, and has no place in line: Lock gives back a slot
// that was granted at the last moment. If Redis cannot be reached at first, the error Is
// ErrBackend, and also ctx.Err() if ctx ended meanwhile. A call that is in line already waits
// through an outage of up to about 15 s. If too few replicas acknowledge
// ([Options].MinReplicas), Lock returns ErrNotReplicated.
func (m *Lock) Lock(ctx context.Context) (*Lease, error) {
	return m.lockBefore(ctx, ctx, nil)
}

// lockBefore is Lock with two bounds: waiting ends the time in line, and a lease that
// arrives after ctx has ended is given back. The first ask is sent however short waiting
// is. For parkNow see lockOrPark.
func (m *Lock) lockBefore(ctx, waiting context.Context, parkNow <-chan struct{}) (*Lease, error) {
	if m.err != nil {
		return nil, m.err
	}
	if err := ctx.Err(); err != nil {
		return nil, &BusyError{Name: m.name, cause: err}
	}
	if err := m.locker.life.Enter(); err != nil {
		return nil, err
	}
	defer m.locker.life.Done()
	began := time.Now()
	if err := m.knowControls(ctx); err != nil {
		return nil, err
	}
	le, err := m.locker.line.wait(ctx, waiting, m, parkNow)
	if err != nil {
		return nil, err
	}
	le, err = m.inTime(ctx, began, le, nil)
	switch paused := (*BusyError)(nil); {
	case errors.As(err, &paused): // TryLock returns that; Lock waits until somebody resumes the lock
		calm := *m
		calm.onWait = nil // it is called once at most
		return calm.lockBefore(ctx, waiting, parkNow)
	case ctx.Err() != nil && err != nil:
		return nil, &BusyError{Name: m.name, Waited: time.Since(began), cause: err}
	}
	return le, err
}

// inTime returns le if ctx has not ended, and no pause has come since the controls were looked at.
// Otherwise it gives le back and returns the error of ctx, as x/sync/semaphore does, or the *BusyError
// of the pause. It is called last, so that a caller never starts work on a context that has ended.
//
// A process may be stopped at any point between its look at the controls and here. So one that comes
// here late looks again: an operator who orders a pause and waits for controls.Delay sees nothing start.
func (m *Lock) inTime(ctx context.Context, looked time.Time, le *Lease, err error) (*Lease, error) {
	if err != nil {
		return nil, err
	}
	if controls.Old(looked, time.Now()) && ctx.Err() == nil {
		err = m.knowControls(ctx)
		if busy := m.pausedError(); err == nil && busy != nil {
			err = busy
		}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		m.giveBack(le)
		return nil, err
	}
	return le, nil
}

// giveBack releases a lease that no caller has seen. It waits for at most leaveGrace; the
// release goes on in the background, and Close waits for it. Callers are counted in.
func (m *Lock) giveBack(le *Lease) {
	done := make(chan struct{})
	m.locker.life.Branch(func() {
		defer close(done)
		_ = le.giveBack(context.Background()) // an error: it is released again later, or frees itself
	})
	timer := time.NewTimer(leaveGrace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// take takes m for le: as a string if that is possible, else by an ask with mode.
// sent is when the command was sent that took it.
func (m *Lock) take(ctx context.Context, le *Lease, mode turn.Ask) (a wire.Answer, sent time.Time, err error) {
	sent = le.takenAt // the lease was made just now
	if m.mayTakeString() {
		ok, err := m.takeString(ctx, le)
		if ok || err != nil {
			return wire.Answer{Yours: ok}, sent, err
		}
		m.locker.contended.note(m.keys[0])
		sent = time.Now()
	}
	a, err = m.ask(ctx, le, mode)
	return a, sent, err
}

// ask runs the script ask for le. If the outcome is unknown it abandons le, so that nothing
// stays held.
func (m *Lock) ask(ctx context.Context, le *Lease, mode turn.Ask) (wire.Answer, error) {
	s, args := m.kind.ask(le, mode)
	before := le.asks.Copies()
	reply, err := m.locker.conn.RunBounded(m.boundsOf(ctx, time.Now()), s, m.keys, args)
	mayHaveRun := le.asks.NoteReply(before, err)
	if err != nil {
		if mayHaveRun && !exchange.NotRun(err) || le.asks.MayRunYet() {
			m.locker.abandon(le)
		}
		return wire.Answer{}, exchange.Failed("ask", m.Key(), err)
	}
	a, err := m.parseAnswer(reply)
	if errors.Is(err, ErrBackend) { // the script may have taken the lock
		m.locker.abandon(le)
	}
	if !a.Yours || a.Returned {
		m.locker.contended.note(m.keys[0])
	}
	return a, err
}

// boundsOf returns the bounds of an operation's first exchange, which begins now.
func (m *Lock) boundsOf(ctx context.Context, now time.Time) exchange.Bounds {
	if m.uninterrupted {
		return toItsEnd(ctx, now)
	}
	return exchange.Bounds{Leave: ctx, Values: ctx, Now: now}
}

// toItsEnd returns the bounds of an exchange that begins now and goes on after the end of ctx.
func toItsEnd(ctx context.Context, now time.Time) exchange.Bounds {
	return exchange.Bounds{Leave: context.Background(), Values: ctx, Now: now}
}

// parseAnswer reads the reply to an ask.
func (m *Lock) parseAnswer(reply any) (wire.Answer, error) {
	a, ok := m.kind.parse(reply)
	if ok && a.Refused != "" {
		return wire.Answer{}, refusal(m, a)
	}
	if !ok || a.Yours && a.Fence <= 0 || !a.Yours && a.ServerUS <= 0 {
		return wire.Answer{}, exchange.Failed("ask", m.Key(), wire.Unexpected(reply))
	}
	return a, nil
}

// busy returns the error for a busy answer. cause is what ended the wait, or nil.
func (m *Lock) busy(a wire.Answer, waited time.Duration, cause error) *BusyError {
	e := &BusyError{Name: m.name, Reason: ReasonHeld, Waited: waited, Place: a.Place, Parked: a.Parked, cause: cause}
	if a.Deadline > 0 {
		e.ExpiresIn = a.Deadline
	}
	if a.Parked {
		e.TakenFor, e.InLine = max(0, a.SinceTaken), max(0, a.InLine)
	}
	if a.Gate > 0 {
		e.Reason, e.ExpiresIn = a.Reason, a.Gate
	}
	if paused := m.pausedError(); paused != nil {
		e.Reason, e.Pause, e.ExpiresIn, e.TakenFor = paused.Reason, paused.Pause, paused.ExpiresIn, 0
	}
	if h, ok := m.kind.parseHolder(a.Holder); ok {
		e.Holder, e.Note = h.Owner, h.Note
	}
	setBehind(e, a)
	return e
}

// Every acquisition ends here, in two steps. First won, or act of the line, gives the
// lease to the renewer; the line does so under its mutex. Then handOut, on the goroutine of the
// caller, does what takes an exchange with Redis.

// won gives le to the renewer after the reply a, "yours", to an ask that was sent at
// sent. It does no I/O.
func (m *Lock) won(le *Lease, a wire.Answer, sent time.Time) {
	m.noteReturn(le, a)
	m.locker.renewer.add(le, a.Fence, a.Value, sent, m.ttl, false)
}

// noteReturn notes the reply to an ask whose note was parked before. It reports whether it was called.
func (m *Lock) noteReturn(le *Lease, a wire.Answer) (called bool) {
	parked, called := m.locker.parking.NoteReturn(m.parked(), m.note, a)
	if parked > 0 {
		le.parked = parked
	}
	return called
}

// handOut returns le to the caller that acquired it. Before, it subscribes to messages if
// le has OnStop, and waits for replicas if Options.MinReplicas says so. On an error le has
// been released.
func (m *Lock) handOut(ctx context.Context, le *Lease) (*Lease, error) {
	m.listen()
	return m.handOutReplicated(ctx, le)
}
