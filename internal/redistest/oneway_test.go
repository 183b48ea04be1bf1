package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What is swallowed in one direction on one kind of connections, and nothing
// else is.
func TestProxy_swallow(t *testing.T) {
	RealTime(t)
	t.Parallel()
	eachProtocol(t, func(t *testing.T, p *Proxy, direct redis.UniversalClient, opt func(*redis.UniversalOptions)) {
		ctx := t.Context()
		rdb := p.Client(t, opt, onceOnly)
		channel, key := Name(t), Name(t)
		ps := subscribe(t, rdb, channel)
		incr := func(works bool, want string) {
			t.Helper()
			if err := rdb.Incr(ctx, key).Err(); (err == nil) != works {
				t.Errorf("INCR: %v", err)
			}
			if got := direct.Get(ctx, key).Val(); got != want {
				t.Errorf("the counter is %s, want %s", got, want)
			}
		}
		hears := func(want string) {
			t.Helper()
			dropped := p.DroppedMessages()
			direct.Publish(ctx, channel, "hello")
			if want == "nothing" {
				Eventually(t, within, func() bool { return p.DroppedMessages() > dropped }, "no message was swallowed")
			}
			patience := within
			if want == "nothing" {
				patience = 20 * time.Millisecond
			}
			if got := receive(t, ps, patience); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		incr(true, "1")
		p.Swallow(ToServer, Commands, true)
		incr(false, "1")
		hears("hello")
		p.Swallow(ToServer, Commands, false)
		if n := p.Swallowed("incr"); n != 1 {
			t.Errorf("%d INCR were swallowed, want 1", n)
		}
		incr(true, "2") // on another connection, which is there to swallow on
		p.Swallow(ToClient, Commands, true)
		incr(false, "3")
		hears("hello")
		p.Swallow(ToClient, Commands, false)
		p.Swallow(ToServer, Subscriptions, true)
		incr(true, "4")
		hears("hello")
		if err := ps.Ping(ctx); err != nil {
			t.Errorf("the connection is not open: %v", err)
		}
		if got := receive(t, ps, 20*time.Millisecond); got != "nothing" || p.Swallowed("PING") != 1 {
			t.Errorf("a ping was answered %q, %d were swallowed", got, p.Swallowed("PING"))
		}
		other := rdb.Subscribe(ctx, channel)
		t.Cleanup(func() { _ = other.Close() })
		if got := receive(t, other, 20*time.Millisecond); got != "nothing" || p.Swallowed("SUBSCRIBE") != 1 {
			t.Errorf("a SUBSCRIBE was answered %q, %d were swallowed", got, p.Swallowed("SUBSCRIBE"))
		}
		p.Swallow(ToServer, Subscriptions, false)
		p.Swallow(ToClient, Subscriptions, true)
		incr(true, "5")
		hears("nothing")
		p.Heal()
		hears("hello")
	})
}
