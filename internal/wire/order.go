package wire

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// ParseHolderOrHead reads a holder's member, or that of the head, before whom nobody holds the lock.
func ParseHolderOrHead(member string) (inside.Holder, bool) {
	if head, ok := parseOrderMember(member); ok {
		return inside.Holder{Note: head.note}, true
	}
	return ParseHolder(member)
}

// What an ordered task may be answered in place of the lock: see lua/order_ask.lua.
const (
	refusedDone  = "done"
	RefusedSpent = "spent"
)

// ParseOrderAsk reads a reply of the script order_ask.
func ParseOrderAsk(reply any) (a Answer, ok bool) {
	if f := listOf(reply); len(f.list) == 1 {
		a.Refused = f.text(0)
		return a, a.Refused == refusedDone || a.Refused == RefusedSpent
	}
	return ParseAsk(reply)
}

// ParseStamp reads a reply of the script order_stamp: the ticket or, if that is 0, how many tasks of the key
// are not done, and the stamps to look for.
func ParseStamp(reply any) (ticket int64, queued int, look []inside.OrderItem, err error) {
	if ticket, ok := reply.(int64); ok && ticket > 0 {
		return ticket, 0, nil, nil
	}
	f := listOf(reply)
	queued = int(f.num(0))
	for i := 1; i < len(f.list); i++ {
		item, ok := ParseOrderItem(f.text(i))
		if !ok {
			f.wrong = true
			break
		}
		look = append(look, item)
	}
	return 0, queued, look, f.err(reply)
}

// parseHead reads the first of a key's ordered members, with its score. ordered is how many there are.
func parseHead(key string, ordered int, holders []inside.Holder, first []any) (h inside.Head, err error) {
	if len(first) != 2 {
		return h, fmt.Errorf("unexpected first task %v", first)
	}
	member, _ := first[0].(string)
	text, _ := first[1].(string)
	score, err := strconv.ParseFloat(text, 64)
	o, ok := parseOrderMember(member)
	if err != nil || !ok {
		return h, fmt.Errorf("unexpected member %q with score %q", member, text)
	}
	h = inside.Head{Key: key, Queued: ordered, State: o.state, Note: o.note, Nonce: o.nonce, Ticket: int64(score - 8e15), Since: o.at(score)}
	h.Runs = len(holders) > 0 && holders[0].Note == o.note
	h.Failed = o.state == "a" && o.begun != "" && !h.Runs
	return h, nil
}

// orderMember is what a member of an ordered key says, see lua/order.lua.
type orderMember struct{ nonce, state, seen, begun, since, owner, note string }

func parseOrderMember(member string) (o orderMember, ok bool) {
	member, ordered := strings.CutPrefix(member, "o:")
	if !ordered {
		return o, false
	}
	f := strings.SplitN(member, "|", 9)
	if len(f) != 9 {
		return o, false
	}
	return orderMember{nonce: f[0], state: f[1], seen: f[2], begun: f[3], since: f[5], owner: f[7], note: f[8]}, true
}

// at is since when the task is held; of any other when it last came, or was stamped.
func (o orderMember) at(score float64) time.Time {
	if ms, err := strconv.ParseInt(o.since, 10, 64); o.state == "h" && err == nil {
		return time.UnixMilli(ms)
	}
	us, err := strconv.ParseInt(o.seen, 10, 64)
	if err != nil {
		us = int64(score - 8e15)
	}
	return time.UnixMicro(us + 16e14)
}

// waiter is the task's place as an operator sees it.
func (o orderMember) waiter(score float64) inside.Waiter {
	return inside.Waiter{
		Owner: Unescape(o.owner), Note: o.note, Since: time.UnixMicro(int64(score-8e15) + 16e14), Ordered: true,
		Parked: o.state == "p" || o.state == "c", Called: o.state == "c", Held: o.state == "h",
	}
}

// ParseOrderItem reads a task that a reply names, see lua/order.lua. ok is false for the note of a parked task.
func ParseOrderItem(named string) (item inside.OrderItem, ok bool) {
	f := strings.SplitN(named, "|", 7)
	if len(f) != 7 || f[0] != "" || f[1] != "c" && f[1] != "l" {
		return inside.OrderItem{}, false
	}
	ticket, err := strconv.ParseInt(f[4], 10, 64)
	if err != nil || ticket <= 0 || ticket > math.MaxInt32*int64(math.MaxInt32) {
		return inside.OrderItem{}, false
	}
	return inside.OrderItem{Call: f[1] == "c", State: f[2], Nonce: f[3], Ticket: ticket, Seen: f[5], Note: f[6]}, true
}
