package lock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// walkOrder does everything that can be done with an ordered key, for two tasks whose notes are the
// words' own: each reply names the notes as they went in, and in the end nothing is left.
func (w words) walkOrder(t testing.TB, l *Locker, check checker) (key string) {
	ctx := t.Context()
	task := func(note, nonce string, ticket int64) *Lock {
		return l.Mutex(w.name, Parts(w.part, "order"), Note(note), TTL(time.Minute), inOrder(inside.Place{Nonce: nonce, Ticket: ticket, Most: -1}))
	}
	key = task("", "", 0).Key()
	m, first, second := l.byOrder(key), w.note, w.note+"'"

	ticket, _, _, err := m.stamp(ctx, first, "first", time.Hour, 2)
	check("the first stamp", err == nil && ticket > 0, ticket, err)
	again, _, _, err := m.stamp(ctx, first, "first", time.Hour, 2)
	check("the same stamp again", err == nil && again == ticket, again, ticket, err)
	a := task(first, "first", ticket)
	ticket, _, _, err = m.stamp(ctx, second, "second", 0, 2)
	check("the second stamp", err == nil && ticket > again, ticket, err)
	b := task(second, "second", ticket)
	none, queued, look, err := m.stamp(ctx, first, "third", time.Hour, 2)
	check("a stamp too many", err == nil && none == 0 && queued == 2 && len(look) == 1 && look[0].Note == second, none, queued, look, err)

	head := func(state, note string, runs bool) {
		t.Helper()
		h, err := m.head(ctx)
		check("the head", err == nil && h.State == state && h.Note == note && h.Runs == runs, h, err)
	}
	run := func(m *Lock, outcome inside.Outcome) {
		t.Helper()
		le, err := m.TryLock(ctx)
		check("TryLock of the head", err == nil, err)
		h, err := m.Holders(ctx)
		check("Holders", err == nil && len(h) == 1 && h[0].Owner == w.owner && h[0].Note == m.note, h, err)
		head("a", m.note, true)
		le.endOrder(outcome)
		check("Unlock of the head", le.Unlock(ctx) == nil)
	}
	head("i", first, false)
	_, err = b.TryLock(ctx)
	busy, ok := asBusy(err)
	check("TryLock behind the head", ok && busy.Reason == inside.ReasonBehind && busy.Note == first && busy.Holder == "", err)
	parked, err := b.ask(ctx, b.newLease(), turn.Park)
	check("park", err == nil && parked.Parked && parked.Place == 1, parked, err)
	run(a, inside.OutcomeStays)
	check("confirm", m.actOrder(ctx, inside.ActConfirm, inside.OrderItem{Nonce: "first", Ticket: again, Note: first}, 0) == nil)
	before, err := m.skipHead(ctx, second, ticket)
	check("a skip of another than the head", errors.Is(err, errNotHead) && before == first, before, err)
	run(a, inside.OutcomeHeld)
	head("h", first, false)
	_, err = m.skipHead(ctx, first, 0)
	check("skip", err == nil, err)

	reply, err := l.conn.Run(ctx, wire.OrderActScript, m.keys, m.orderArgs(1, inside.ActNone, inside.OrderItem{}, 0))
	named, _ := reply.([]any)
	check("a check", err == nil && len(named) == 4, reply, err)
	item, ok := wire.ParseOrderItem(named[3].(string))
	check("a call", ok && item.Call && item.Nonce == "second" && item.Ticket == ticket && item.Note == second, item)
	check("present", m.actOrder(ctx, inside.ActPresent, item, time.Minute) == nil)
	head("a", second, false)

	// The head waits in its worker, and gets the lock of one that does not follow the order.
	held, err := l.byKey(key).TryLock(ctx)
	check("TryLock out of order", err == nil, err)
	waiter := b.newLease()
	waits, err := b.ask(ctx, waiter, turn.Join)
	check("join", err == nil && !waits.Yours, waits, err)
	head("w", second, false)
	_, _, err = held.release(ctx)
	check("release out of order", err == nil, err)
	check("a look after the key", m.actOrder(ctx, inside.ActNone, inside.OrderItem{}, 0) == nil)
	head("a", second, true)
	waiter.endOrder(inside.OutcomeDone)
	_, was, err := waiter.release(ctx)
	check("release of the waiter", err == nil && was, was, err)
	_, err = b.TryLock(ctx)
	check("a redelivery", errors.Is(err, errOrderDone), err)

	// A task without a stamp joins at its arrival.
	plain := task(first, "~"+strings.Repeat("0", 8), 0)
	run(plain, inside.OutcomeLeft)
	head("", "", false)
	check("Delete", m.Delete(ctx) == nil)
	return key
}
