package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// The replies are what the headers say, in every state.
func TestScriptReplies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		run := func(s *exchange.Script, args ...any) any {
			t.Helper()
			reply, err := m.locker.conn.Run(t.Context(), s, m.keys, args)
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			audit(t, m)
			return reply
		}
		a, b, c, d := m.newLease(), m.newLease(), m.newLease(), m.newLease()
		ask := func(le *Lease, mode turn.Ask) any {
			s, args := m.kind.ask(le, mode)
			return run(s, args...)
		}
		release := func(le *Lease) any { return run(wire.ReleaseScript, le.body, 1, 2) }
		equal := func(what string, got, want any) {
			t.Helper()
			if got != want {
				t.Errorf("%s is answered %v (%T), want %v", what, got, got, want)
			}
		}
		number := func(what string, got any, from, to int64) {
			t.Helper()
			if n, ok := got.(int64); !ok || n < from || n > to {
				t.Errorf("%s is answered %v (%T), want %d to %d", what, got, got, from, to)
			}
		}
		year := time.Now().UnixMicro()
		equal("release of nothing", release(a), int64(-1-2))
		equal("renew of nothing", run(wire.RenewScript, a.body, 1000), int64(wire.RenewLost))
		number("ask of a free lock", ask(a, turn.Try), year-1e12, year+1e12)
		equal("renew", run(wire.RenewScript, a.body, 1000), int64(wire.RenewRenewed))
		number("ask again", ask(a, turn.Try), year-1e12, year+1e12)
		number("ask of the second slot", ask(b, turn.Try), year-1e12, year+1e12)
		for i, le := range []*Lease{c, d, c, d} { // who asks again keeps the place
			r, ok := ask(le, turn.Join).([]any)
			if !ok || len(r) != 4 {
				t.Fatalf("ask of a busy lock is answered %v", r)
			}
			number("server time", r[0], year-1e12, year+1e12)
			number("first deadline", r[1], 1, m.ttl.Milliseconds()+1)
			equal("place", r[2], int64(i%2))
			equal("holder", r[3], "h:"+a.body)
		}
		granted := func(what string, got any, le *Lease, code int64) {
			t.Helper()
			r, ok := got.([]any)
			if !ok || len(r) != 2 || r[0] != code {
				t.Fatalf("%s is answered %v, want %d and a grant", what, got, code)
			}
			text, _ := r[1].(string)
			if msg, ok := wire.ParseMessage(text); !ok || msg.Token != le.token || msg.Fence < year-1e12 || msg.ServerUS > msg.Fence {
				t.Errorf("%s tells %q, want a grant of %s", what, text, le.token)
			}
		}
		granted("release with two in line", release(a), c, 0)
		equal("release again", release(a), int64(-1))
		granted("release with one in line", release(b), d, 0)
		r, ok := run(wire.InspectScript, 10, "", 0).([]any)
		if !ok || len(r) != 12 {
			t.Fatalf("inspect is answered %v", r)
		}
		equal("holders", r[1], int64(2))
		equal("waiters", r[2], int64(0))
		if list, ok := r[7].([]any); !ok || len(list) != 4 || list[0] != "h:"+c.body {
			t.Errorf("inspect lists %v", r[7])
		}
		equal("release with nobody in line", release(c), int64(1))
		equal("the last release", release(d), int64(2))
		if n := raw(m).Exists(t.Context(), m.Key()).Val(); n != 0 {
			t.Errorf("something is left: %s", dump(m))
		}
	})
}
