package engine

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redisx"
	"github.com/automutex/automutex/internal/turn"
)

// This file is what an attempt of an ordered task asks and says at its end; lua/order.lua has the records.

var (
	// ErrOrderDone: the task is marked as done.
	ErrOrderDone = errors.New("lock: the task is marked as done")
	// ErrOrderSpent: its last attempt has begun before, and did not return.
	ErrOrderSpent = errors.New("lock: the task's last attempt has begun before, and did not return")
)

// Order is an attempt of an ordered task.
type Order struct {
	inside.Place
	outcome atomic.Int32 // an inside.Outcome. It is set before the lease ends, and read by each release, also by one in the background
}

var outcomes = [...]string{inside.OutcomeStays: "stays", inside.OutcomeUnbegun: "unbegun", inside.OutcomeDone: "done", inside.OutcomeHeld: "held", inside.OutcomeLeft: "left"}

// End sets how the attempt that holds le has ended. It does nothing for a lock that is not ordered.
func (le *Lease) End(o inside.Outcome) {
	if le.request.Order != nil {
		le.request.Order.outcome.Store(int32(o))
	}
}

// endUnbegun says that the handler of a task, which had its turn, has not begun, if nothing else is known of its end.
func (o *Order) endUnbegun() {
	if o != nil {
		o.outcome.CompareAndSwap(int32(inside.OutcomeStays), int32(inside.OutcomeUnbegun))
	}
}

func (e *Engine) orderAsk(le *Lease, mode turn.Ask) *redisx.Call {
	r, park := &le.request, int64(0)
	switch mode {
	case turn.Try, turn.Join:
	case turn.JoinOrPark:
		park = 2
	case turn.Park:
		park = 1
	}
	p := &r.Order.Place
	return &redisx.Call{Script: orderAskScript, Keys: r.keys(), Args: []any{
		le.body, r.TTL.Milliseconds(), mode.Lifetime(), int64(e.limit(&r.Ref)), park, r.Every.Microseconds(), r.Spare.Microseconds(),
		r.grant().Milliseconds(), p.Nonce, p.Ticket, p.Retried, p.Most, oneOrZero(p.Continue), oneOrZero(p.Again),
	}}
}

func (e *Engine) orderRelease(r *Request, body any, inbound, cooldown int64) []any {
	return []any{body, int64(e.limit(&r.Ref)), inbound, cooldown, r.Order.Nonce, outcomes[r.Order.outcome.Load()]}
}

// refusalOf is the error of a reply that is neither the lock nor a place.
func refusalOf(reply any) error {
	if list, _ := reply.([]any); len(list) == 1 {
		switch list[0] {
		case "done":
			return ErrOrderDone
		case "spent":
			return ErrOrderSpent
		}
	}
	return nil
}

// Behind returns the reason of an asker that is behind a head which does not hold the lock, and in how long that head comes or is
// looked for. The reason is empty if the reply names no head.
func (b *Busy) Behind() (reason string, comes time.Duration) {
	head, ok := strings.CutPrefix(b.Holder, "o:")
	if !ok {
		return "", 0
	}
	record := parseRecord(head)
	switch {
	case record.state == "h":
		return inside.ReasonArchived, 0
	case record.state != "a":
		return inside.ReasonBehind, 0
	case record.begun > 0:
		reason = inside.ReasonFailed
	default:
		reason = inside.ReasonBehind
	}
	return reason, max(0, time.Duration(record.since-b.ServerUS/1000)*time.Millisecond)
}

// record is that of an ordered task, see lua/order.lua.
type record struct {
	state              string
	seen, begun, since int64 // us, attempts, ms
	token, owner, note string
}

func parseRecord(text string) (o record) {
	f := strings.SplitN(text, " ", 6)
	if len(f) != 6 {
		return o
	}
	o.state = f[0]
	o.seen, _ = strconv.ParseInt(f[1], 10, 64) // the script wrote numbers
	o.begun, _ = strconv.ParseInt(f[2], 10, 64)
	o.since, _ = strconv.ParseInt(f[4], 10, 64)
	if who := strings.SplitN(f[5], "|", 3); len(who) == 3 {
		o.token, o.owner, o.note = who[0], who[1], who[2]
	}
	return o
}

// holderOf reads a holder's body, or the head of an ordered key, before whom nobody holds the lock.
func holderOf(body string) inside.Holder {
	if head, ok := strings.CutPrefix(body, "o:"); ok {
		return inside.Holder{Note: parseRecord(head).note}
	}
	if f := strings.SplitN(body, "|", 3); len(f) == 3 {
		return inside.Holder{Token: f[0], Owner: keys.Unescape(f[1]), Note: f[2]}
	}
	return inside.Holder{}
}

// Who is the holder that a busy reply names, or the head of an ordered key.
func (b *Busy) Who() inside.Holder { return holderOf(b.Holder) }
