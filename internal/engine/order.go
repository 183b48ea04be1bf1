package engine

import (
	"context"
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redisx"
)

// This file is what is particular to ordered keys; lua/order.lua has what is stored.

// The errors of a skip, two, and of an ask.
var (
	ErrNotHead    = errors.New("lock: the task is not the next one of its key")
	ErrHeadRuns   = errors.New("lock: the task holds its lock")
	ErrOrderDone  = errors.New("lock: the task is marked as done")
	ErrOrderSpent = errors.New("lock: the task's last attempt has begun before, and did not return")
)

// Stamp gives the task with that note and nonce the next place in order. If most tasks of the key are not done, the
// ticket is 0, and it returns how many there are, and those of the first that should have come. deadline is when others
// may look whether the task was enqueued. After an error it may have a place. The reply is waited for if ctx ends.
func (e *Engine) Stamp(
	ctx context.Context, r Ref, note, nonce string, deadline time.Duration, most int,
) (ticket int64, queued int, look []OrderItem, err error) {
	r.Ordered = true
	reply, err := e.do(ctx, "order_stamp", r.Key, func() (any, error) {
		return e.conn.Run(e.conn.Whole(ctx), orderStampScript, r.keys(), nonce, note, deadline.Milliseconds(), int64(most))
	})
	if err != nil {
		return 0, 0, nil, err
	}
	if ticket, isNum := reply.(int64); isNum && ticket > 0 {
		return ticket, 0, nil, nil
	}
	f := fieldsOf(reply)
	queued = int(f.num(0))
	for i := 1; i < len(f.list); i++ {
		item, ok := ParseItem(f.text(i))
		f.wrong = f.wrong || !ok
		look = append(look, item)
	}
	if f.wrong {
		return 0, 0, nil, wrongReply("order_stamp", r.Key, reply)
	}
	return 0, queued, look, nil
}

// actOrder runs order_act, and has those called that it names. The error Is ErrHeadRuns or ErrNotHead, with the head as
// what is called, if a skip was refused.
func (e *Engine) actOrder(
	ctx context.Context, r Ref, act OrderAct, item OrderItem, after time.Duration,
) (n named, err error) {
	if err := e.Know(ctx, r.Key); err != nil {
		return n, err
	}
	r.Ordered, r.Pool = true, false
	inbound, _, _ := e.parking.wanted(r, false)
	sent := time.Now()
	reply, err := e.call(ctx, orderActScript, r.keys(), e.limit(&r), inbound, string(act), item.Nonce, item.Ticket,
		item.State, item.Seen, after.Milliseconds(), item.Note)
	if err != nil {
		return n, err
	}
	if list, _ := reply.([]any); len(list) > 0 && list[0] == "runs" {
		return n, ErrHeadRuns
	} else if len(list) == 2 && list[0] == "other" {
		head, _ := list[1].(string)
		return named{called: []string{head}}, ErrNotHead
	}
	if n, err = parseNamed(reply); err != nil {
		return n, redisx.Failed("order_act", r.Key, err)
	}
	e.parking.sawNamed(r, n, sent)
	return n, nil
}

// Act changes one task of an ordered key, and looks after the key. after is for ActPresent: when others look again.
func (e *Engine) Act(ctx context.Context, r Ref, act OrderAct, item OrderItem, after time.Duration) error {
	_, err := e.actOrder(ctx, r, act, item, after)
	return err
}

// Skip takes the head with that note and ticket out of the order, and calls the next. It does so once, however often
// the script is executed. A ticket of 0 is that of the head now. The error Is ErrHeadRuns if the head holds the lock,
// and ErrNotHead if the task is not the head; head is the head's note then, empty without one.
func (e *Engine) Skip(ctx context.Context, r Ref, note string, ticket int64) (head string, err error) {
	if ticket == 0 {
		now, err := e.Head(ctx, r)
		if err != nil {
			return "", err
		}
		ticket = now.Ticket // the script compares the note
	}
	n, err := e.actOrder(ctx, r, "skip", OrderItem{Note: note, Ticket: ticket}, 0)
	if errors.Is(err, ErrNotHead) {
		return n.called[0], err
	}
	return note, err
}

// Head returns the first task in order of the key. Its State is empty if no task is in order.
func (e *Engine) Head(ctx context.Context, r Ref) (Head, error) {
	r.Pool = false
	info, err := e.Inspect(ctx, r, MaxHolders)
	return info.Head, err
}

func parseHead(key string, info Info, f *fields) (h Head, wrong bool) {
	h = Head{Key: key, Queued: info.Queued, Nonce: f.text(0), Ticket: f.score(1)}
	if f.at(2) == nil { // its record was lost: see first_tasks in order.lua
		h.State, h.Since = "a", time.UnixMicro(h.Ticket)
		return h, f.wrong
	}
	t, ok := parseTask(f.text(2))
	h.State, h.Note, h.Since = t.state, t.note, time.UnixMicro(t.seen)
	switch {
	case t.state == "h":
		h.Since = time.UnixMilli(t.since)
	case t.seen == 0:
		h.Since = time.UnixMicro(h.Ticket)
	}
	h.Runs = slices.ContainsFunc(info.Holders, func(one Holder) bool { return one.Note == t.note }) // beside others
	h.Failed = t.state == "a" && t.begun > 0 && !h.Runs
	return h, f.wrong || !ok
}

// orderTask: see order.lua.
type orderTask struct {
	state              string
	seen, begun, since int64
	owner, note        string // the owner, unescaped, of one that waits in a worker, or of its last grant
}

var taskRecord = regexp.MustCompile(`(?s)^([a-z]) (\d+) (\d+) \d+ (\d+) [^|]*\|(?:\d+ \d+ )?([^|]*)\|(.*)$`)

func parseTask(record string) (t orderTask, ok bool) {
	f := taskRecord.FindStringSubmatch(record)
	if f == nil {
		return t, false
	}
	t = orderTask{state: f[1], owner: keys.Unescape(f[5]), note: f[6]}
	for i, n := range []*int64{&t.seen, &t.begun, &t.since} {
		*n, _ = strconv.ParseInt(f[i+2], 10, 64) // all digits; one too great is the greatest
	}
	return t, true
}

// ParseItem reads a task that a reply names, see lua/order_act.lua. ok is false for the note of a parked task.
func ParseItem(named string) (item OrderItem, ok bool) {
	f := strings.SplitN(named, "|", 7)
	if len(f) != 7 || f[0] != "" || f[1] != "c" && f[1] != "l" {
		return OrderItem{}, false
	}
	ticket, err := strconv.ParseInt(f[4], 10, 64)
	if err != nil || ticket <= 0 || ticket > math.MaxInt32*int64(math.MaxInt32) {
		return OrderItem{}, false
	}
	return OrderItem{Call: f[1] == "c", State: f[2], Nonce: f[3], Ticket: ticket, Seen: f[5], Note: f[6]}, true
}

var outcomes = [...]string{OutcomeStays: "stays", OutcomeUnbegun: "unbegun", OutcomeDone: "done", OutcomeHeld: "held",
	OutcomeLeft: "left"}

// End sets how the attempt that holds le has ended. It does nothing for a lock that is not ordered.
func (le *Lease) End(o Outcome) { le.outcome.Store(int32(o)) }

func (e *Engine) orderAsk(le *Lease, mode askMode, b control.Bounds) *redisx.Call {
	r, park := &le.request, oneOrZero(mode == askPark)+2*oneOrZero(mode == askJoinOrPark)
	p := r.Place
	return &redisx.Call{Script: orderAskScript, Keys: r.keys(), Args: []any{
		&le.body.Text, r.TTL.Milliseconds(), mode.lifetime(), int64(b.Slots), park, b.Every.Microseconds(),
		b.Spare.Microseconds(), r.grant().Milliseconds(), p.Nonce, p.Ticket, p.Retried, p.Most,
		oneOrZero(p.Continue), b.Known, r.cost(),
	}}
}

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

// Because returns why the lock is busy, and in how long that ends. The reason is empty if the caller left before Redis
// replied.
func (b *Busy) Because() (reason string, ends time.Duration) {
	head, isBehind := strings.CutPrefix(b.Holder, "o:")
	switch {
	case b.Gate > 0:
		return b.Reason, b.Gate
	case isBehind:
		return b.behind(head)
	case b.ServerUS > 0 || b.Holder != "":
		reason = ReasonHeld
	}
	return reason, max(0, b.Deadline)
}

// behind returns why an asker is behind a head that does not hold the lock, and in how long that comes or is looked
// for.
func (b *Busy) behind(head string) (reason string, comes time.Duration) {
	record, _ := parseTask(head) // the script wrote it
	switch {
	case record.state == "h":
		return ReasonArchived, 0
	case record.state != "a":
		return ReasonBehind, 0
	}
	if reason = ReasonBehind; record.begun > 0 {
		reason = ReasonFailed
	}
	return reason, max(0, time.Duration(record.since-b.ServerUS/1000)*time.Millisecond)
}

func holderOf(body string) Holder {
	if head, ok := strings.CutPrefix(body, "o:"); ok {
		task, _ := parseTask(head)
		return Holder{Note: task.note}
	}
	if f := strings.SplitN(body, "|", 3); len(f) == 3 {
		return Holder{Token: f[0], Owner: keys.Unescape(f[1]), Note: f[2]}
	}
	return Holder{}
}

// GateText says why nobody gets a lock whose gate is closed for that reason; empty: no reason of the gate.
func GateText(reason string) string { return gateTexts[reason] }

var gateTexts = map[string]string{
	ReasonRate: "its rate allows no start", ReasonClosed: "closed for now", ReasonCooldown: "cooling down",
}

// Who is the holder that a busy reply names, or the head of an ordered key.
func (b *Busy) Who() Holder { return holderOf(b.Holder) }
