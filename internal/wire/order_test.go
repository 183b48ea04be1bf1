package wire

import (
	"testing"
	"time"

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

// A member that no script writes is an error of a look at its lock, and no holder.
func TestInspectReplies_refused(t *testing.T) {
	t.Parallel()
	const second = int64(1_000_000)
	inspect := func(members ...any) []any {
		return []any{20 * second, int64(1), int64(0), int64(0), int64(0), int64(0), int64(-1), members, "", int64(0), int64(0), []any{}}
	}
	if info, err := ParseInspect("k", inspect("h:token|owner|note", "30000")); err != nil || len(info.Holders) != 1 || info.Holders[0].ExpiresIn != 10*time.Second {
		t.Errorf("%+v, %v", info, err)
	}
	pool := func(members ...any) []any { return []any{20 * second, int64(0), int64(1), int64(0), []any{}, members} }
	if p, err := ParsePool(pool("h:value|token|owner|note", "30000")); err != nil || len(p.Holders) != 1 || p.Holders[0].Value != "value" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, members := range [][]any{{"h:token|owner|note", "soon"}, {"h:token|owner", "30000"}, {"p:token|owner|note", "30000"}, {"token", "30000"}, {int64(1), "30000"}} {
		if info, err := ParseInspect("k", inspect(members...)); err == nil {
			t.Errorf("%v is the lock %+v", members, info)
		}
	}
	for _, members := range [][]any{{"h:value|token|owner|note", "soon"}, {"h:value|token", "30000"}, {"h:value", "30000"}, {int64(1), "30000"}} {
		if p, err := ParsePool(pool(members...)); err == nil {
			t.Errorf("%v is the pool %+v", members, p)
		}
	}
}

// A mutex that is a string was taken when its token was made. Of a token that does not say when, nobody knows.
func TestInspect_takenSince(t *testing.T) {
	t.Parallel()
	made := Token{Channel: "c", Grant: 3 * time.Second, Nonce: 19_000_000}
	apart := made
	apart.Apart, apart.TTL, apart.Arrival = true, time.Hour, 7
	text := func(tok Token) string {
		body, size := tok.Body("owner", "note")
		return string(body[:size])
	}
	for token, want := range map[string]time.Duration{
		text(made): time.Second, text(apart): time.Second, "token": 0, "c.3000": 0, "c.3000.~": 0, "c.3000.no!number": 0,
	} {
		reply := []any{int64(20_000_000), int64(1), int64(0), int64(0), int64(0), int64(0), int64(-1), []any{"h:" + token + "|owner|note", "30000"}, "", int64(0), int64(0), []any{}}
		if info, err := ParseInspect("k", reply); err != nil || info.Granted != want {
			t.Errorf("%s: taken %s ago, %v; want %s", token, info.Granted, err, want)
		}
	}
}
