package lock

import (
	"context"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// askPaths are the ways on which an ask is sent. Each sends one for a new lease of m.
// Over a transport the first two go through it; see TestTransport.
var askPaths = map[string]func(context.Context, *Lock) *Lease{
	"script": func(ctx context.Context, m *Lock) *Lease {
		le := m.newLease()
		_, _ = m.ask(ctx, le, turn.Try)
		return le
	},
	"SET": func(ctx context.Context, m *Lock) *Lease {
		le := m.newLease()
		_, _ = m.takeString(ctx, le)
		return le
	},
	"pipeline": func(_ context.Context, m *Lock) *Lease {
		w := hearing(m, 1000, 10*time.Millisecond)
		w.turn.Due(time.Now().Add(turn.RefreshEvery))
		m.locker.line.refresh([]*waiter{w})
		return w.lease
	},
}

// Each copy of an ask or a release is counted on every path on which one is sent: what
// was replied to is done, what was sent again or left behind may run yet, and a script
// that the server did not know has not run.
func TestResend_countsEveryCopy(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	for name, ask := range askPaths {
		t.Run(name, func(t *testing.T) {
			near, far, p := through(t, s)
			m := far.Mutex(redistest.Name(t))
			copies := func(what string, a *exchange.Counted, want int32) {
				t.Helper()
				if n := a.Copies(); n != want {
					t.Errorf("%s: %d copies count, want %d", what, n, want)
				}
			}
			release := func(le *Lease) {
				t.Helper()
				m.locker.renewer.drop(le, time.Now())
				if _, _, err := le.release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			redistest.Must(t, s.Client(t).ScriptFlush(t.Context()).Err())
			le := ask(t.Context(), m)
			copies("an ask that was replied to, at the second go", &le.asks, 0)
			release(le)
			copies("a release, at the second go", &le.releases, 0)

			warm(t, near.Mutex(m.name))
			le = ask(t.Context(), m)
			copies("an ask that was replied to", &le.asks, 0)
			release(le)
			copies("a release", &le.releases, 0)

			p.DropReplyTo(isTake(m), 1)
			le = ask(t.Context(), m)
			if copies("an ask that was sent again", &le.asks, 1); !le.asks.MayRunYet() {
				t.Error("an ask that was sent twice, and replied to once, cannot run any more")
			}
			p.DropReplyTo(isScript(wire.ReleaseScript, m), 1)
			release(le)
			if copies("a release that was sent again", &le.releases, 1); !le.releases.MayRunYet() {
				t.Error("a release that was sent twice, and replied to once, cannot run any more")
			}

			p.Blackhole(true)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			le = ask(ctx, m)
			want := int32(2) // the one that was written, and one that may be
			if name == "pipeline" {
				want = 1 // the client itself ends the exchange, and writes no more
			}
			if n := le.asks.Copies(); n < want {
				t.Errorf("an ask without a reply: %d copies count, want %d at least", n, want)
			}
			p.Heal()
		})
	}
}
