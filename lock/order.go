package lock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// This file is the lock's side of tasks in order: their scripts, and what these reply. The tasks of
// an ordered key are members of the lock's own sorted set, so one script decides who is the head and
// gives it the lock; lua/order.lua has the members, docs/architecture.md the protocol.

// What an arrival of an ordered task may meet in place of the lock.
var (
	errOrderDone  = errors.New("lock: the task is marked as done")
	errOrderSpent = errors.New("lock: the task's last attempt has begun before, and did not return")
)

// errNotHead is the error of a skip of a task that is not the head; errHeadRuns of a head that holds the lock.
var (
	errNotHead  = errors.New("lock: the task is not the next one of its key")
	errHeadRuns = errors.New("lock: the task holds its lock")
)

// order is what an ordered task's lock knows of the task.
type order struct {
	inside.Place

	// outcome is how the attempt ended. It is set before the lease ends, and read by each release,
	// which may be sent again in the background.
	outcome atomic.Int32
}

// inOrder gives the lock to tasks in their order only. The lock needs the task's note.
func inOrder(p inside.Place) Option {
	return func(m *Lock) { m.kind, m.order = orderKind{}, &order{Place: p} }
}

// endOrder sets how the attempt that holds le has ended. It does nothing for a lock that is not ordered.
func (le *Lease) endOrder(o inside.Outcome) {
	if le.lock.order != nil {
		le.lock.order.outcome.Store(int32(o))
	}
}

// endUnbegun says that the handler of a task, which had its turn, has not begun, if nothing else is known of its end.
func (m *Lock) endUnbegun() {
	if m.order != nil {
		m.order.outcome.CompareAndSwap(int32(inside.OutcomeStays), int32(inside.OutcomeUnbegun))
	}
}

// orderKind is the kind of locks that are given in order. It is always that of a mutex.
type orderKind struct{}

func (orderKind) ask(le *Lease, mode turn.Ask) (*exchange.Script, []any) {
	m, park := le.lock, int64(0)
	switch mode {
	case turn.Try, turn.Join:
	case turn.JoinOrPark:
		park = 2
	case turn.Park:
		park = 1
	}
	p := m.order.Place
	return wire.OrderAskScript, []any{
		&le.asks, m.keepArg, mode.Lifetime(), int64(m.slots()), park, m.rate.every, m.rate.spare,
		p.Nonce, p.Ticket, p.Retried, p.Most, wire.Flag(p.Continue), wire.Flag(p.Again),
	}
}

func (orderKind) parse(reply any) (a wire.Answer, ok bool) {
	return wire.ParseOrderAsk(reply)
}

func (orderKind) release(le *Lease) (*exchange.Script, []any) {
	m := le.lock
	inbound, _ := m.locker.parking.WantedCalls(m.parked())
	outcome := [...]string{inside.OutcomeStays: "stays", inside.OutcomeUnbegun: "unbegun", inside.OutcomeDone: "done", inside.OutcomeHeld: "held", inside.OutcomeLeft: "left"}[m.order.outcome.Load()]
	return wire.OrderReleaseScript, []any{&le.releases, inbound, int64(m.slots()), le.cooldownArgument(), wire.Flag(!le.startCounts.Load()), m.order.Nonce, m.order.Ticket, outcome}
}

// wire.ParseHolder reads a holder's member, or that of the head, which nobody holds the lock before.
func (orderKind) parseHolder(member string) (inside.Holder, bool) {
	return wire.ParseHolderOrHead(member)
}

// setBehind sets the reason of an asker that is behind a head which does not hold the lock.
func setBehind(e *BusyError, a wire.Answer) {
	if reason, comes := a.Behind(); reason != "" && e.Reason == ReasonHeld {
		e.Reason, e.ExpiresIn = reason, comes
	}
}

func (m *Lock) isOrdered() bool { return m.kind == orderKind{} }

func (m *Lock) orderArgs(inbound any, act inside.OrderAct, item inside.OrderItem, after time.Duration) []any {
	return wire.OrderActArgs(m.slots(), inbound, act, item, after)
}

// handleOrder reads a reply of order_act to a command that was sent at sent. It calls the tasks that the reply
// names, and has the key checked as long as a task is kept waiting.
func (m *Lock) handleOrder(reply any, sent time.Time) bool {
	if _, nothing := reply.(int64); nothing {
		m.locker.parking.NoteNothingParked(m.parked(), sent)
		return true
	}
	_, ok := m.locker.parking.HandleCalls(m.parked(), reply)
	return ok
}

// byOrder returns the lock with that key, for the scripts of ordered keys.
func (l *Locker) byOrder(key string) *Lock {
	m := l.byKey(key)
	m.kind, m.keepsLimit = orderKind{}, false // a paused key calls nobody
	return m
}

// stamp gives the task with that note and nonce the next place in order. If most tasks of the key or more are
// not done, it gives none, and returns how many there are, and the stamps among the first ones to look for. The ticket is 0
// then. deadline is when others may look whether the task was enqueued. After an error the task may have a place.
func (m *Lock) stamp(ctx context.Context, note, nonce string, deadline time.Duration, most int) (ticket int64, queued int, look []inside.OrderItem, err error) {
	reply, err := m.operate(ctx, wire.OrderStampScript, []any{note, nonce, deadline.Milliseconds(), most})
	if err != nil {
		return 0, 0, nil, err
	}
	ticket, queued, look, err = wire.ParseStamp(reply)
	if err != nil {
		return 0, 0, nil, exchange.Failed("stamp", m.Key(), err)
	}
	return ticket, queued, look, nil
}

// actOrder changes one member of the key, and looks after the key.
func (m *Lock) actOrder(ctx context.Context, act inside.OrderAct, item inside.OrderItem, after time.Duration) error {
	inbound, _ := m.locker.parking.WantedCalls(m.parked())
	sent := time.Now()
	reply, err := m.operate(ctx, wire.OrderActScript, m.orderArgs(inbound, act, item, after))
	if err == nil && !m.handleOrder(reply, sent) {
		err = exchange.Failed("order_act", m.Key(), wire.Unexpected(reply))
	}
	return err
}

// skipHead takes the head with that note and ticket out of the order, and calls the next. It does so once, however often
// the script is executed: after that another task with the same note may be the head. A ticket of 0 is that of the head
// now. The error Is errHeadRuns if the head holds the lock, and errNotHead if the task is not the head; head is the
// head's note then, empty without one.
func (m *Lock) skipHead(ctx context.Context, note string, ticket int64) (head string, err error) {
	if ticket == 0 {
		now, err := m.head(ctx)
		if err != nil {
			return "", err
		}
		if now.Note != note {
			return now.Note, errNotHead
		}
		ticket = now.Ticket
	}
	inbound, _ := m.locker.parking.WantedCalls(m.parked())
	args := m.orderArgs(inbound, "skip", inside.OrderItem{Note: note, Ticket: ticket}, 0)
	sent := time.Now()
	reply, err := m.operate(ctx, wire.OrderActScript, args)
	if err != nil {
		return "", err
	}
	if f, _ := reply.([]any); len(f) > 0 {
		switch f[0] {
		case "runs":
			return note, errHeadRuns
		case "other":
			head, _ := f[len(f)-1].(string)
			return head, errNotHead
		}
	}
	if !m.handleOrder(reply, sent) {
		return "", exchange.Failed("order_act", m.Key(), wire.Unexpected(reply))
	}
	return note, nil
}

// head returns the first task in order of the key. Its State is empty if no task is in order.
func (m *Lock) head(ctx context.Context) (inside.Head, error) {
	info, err := m.inspect(ctx, 1, "")
	return info.Head, err
}

// What the other packages of this module use of ordered keys.

func (insider) InOrder(p inside.Place) Option               { return inOrder(p) }
func (insider) EndOrder(le *Lease, o inside.Outcome)        { le.endOrder(o) }
func (insider) IsOrderDone(err error) bool                  { return errors.Is(err, errOrderDone) }
func (insider) IsOrderSpent(err error) bool                 { return errors.Is(err, errOrderSpent) }
func (insider) IsNotHead(err error) bool                    { return errors.Is(err, errNotHead) }
func (insider) IsHeadRunning(err error) bool                { return errors.Is(err, errHeadRuns) }
func (insider) OrderItem(s string) (inside.OrderItem, bool) { return wire.ParseOrderItem(s) }

// ByOrder is the lock with that key, for the methods below.
func (insider) ByOrder(l *Locker, key string) *Lock { return l.byOrder(key) }

func (insider) Stamp(ctx context.Context, m *Lock, note, nonce string, deadline time.Duration, most int) (ticket int64, queued int, look []inside.OrderItem, err error) {
	return m.stamp(ctx, note, nonce, deadline, most)
}

func (insider) ActOrder(ctx context.Context, m *Lock, act inside.OrderAct, item inside.OrderItem, after time.Duration) error {
	return m.actOrder(ctx, act, item, after)
}

func (insider) SkipHead(ctx context.Context, m *Lock, note string, ticket int64) (head string, err error) {
	return m.skipHead(ctx, note, ticket)
}
func (insider) Head(ctx context.Context, m *Lock) (inside.Head, error) { return m.head(ctx) }

// refusal is the error of an answer that is neither the lock nor a place.
func refusal(m *Lock, a wire.Answer) error {
	err := errOrderDone
	if a.Refused == wire.RefusedSpent {
		err = errOrderSpent
	}
	return fmt.Errorf("%w: %q", err, m.name)
}
