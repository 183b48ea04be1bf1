package wire

import (
	"testing"

	"github.com/automutex/automutex/internal/inside"
)

// A reply that the scripts of ordered keys never give is an error, and names no task.
func TestOrderReplies_refused(t *testing.T) {
	t.Parallel()
	const member = "o:nonce|a|5|1|7|token|9|owner|default/id"
	if h, err := parseHead("k", 2, nil, []any{member, "8e15"}); err != nil || h.Note != "default/id" || h.Queued != 2 || !h.Failed {
		t.Errorf("%+v, %v", h, err)
	}
	for _, first := range [][]any{nil, {member}, {member, "8e15", "more"}, {int64(1), "8e15"}, {member, "no score"}, {"h:token", "1"}, {"o:nonce|a|5", "1"}} {
		if h, err := parseHead("k", 1, nil, first); err == nil {
			t.Errorf("%v is the head %+v", first, h)
		}
	}
	if item, ok := ParseOrderItem("|l|a|nonce|17|5|default/i|d"); !ok || item != (inside.OrderItem{State: "a", Nonce: "nonce", Ticket: 17, Seen: "5", Note: "default/i|d"}) {
		t.Errorf("%+v, %v", item, ok)
	}
	for _, named := range []string{"", "default/id", "|l|a|nonce|17|5", "x|l|a|nonce|17|5|note", "|x|a|nonce|17|5|note", "|l|a|nonce|0|5|note", "|l|a|nonce|-1|5|note", "|l|a|nonce|1e3|5|note", "|l|a|nonce|9223372036854775807|5|note"} {
		if item, ok := ParseOrderItem(named); ok {
			t.Errorf("%q is %+v", named, item)
		}
		if _, _, look, err := ParseStamp([]any{int64(3), named}); err == nil {
			t.Errorf("%q is to be looked for: %+v", named, look)
		}
	}
	if ticket, _, _, err := ParseStamp(int64(17)); err != nil || ticket != 17 {
		t.Errorf("%d, %v", ticket, err)
	}
	for _, reply := range []any{nil, int64(0), "17", []any{}, []any{"x"}} {
		if ticket, queued, _, err := ParseStamp(reply); err == nil {
			t.Errorf("%v is the ticket %d, %d queued", reply, ticket, queued)
		}
	}
}
