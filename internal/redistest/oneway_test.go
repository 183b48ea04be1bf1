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

// A throttled wire takes its time for what passes, and is free when it is not
// throttled any more.
func TestProxy_throttle(t *testing.T) {
	RealTime(t)
	t.Parallel()
	ctx := t.Context()
	s := Real(t)
	p := NewProxy(t, s.Addr())
	a, b := p.Client(t), p.Client(t)
	key := Name(t)
	value := make([]byte, 2000)
	for _, rdb := range []redis.UniversalClient{a, b} {
		if err := rdb.Set(ctx, key, value, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
	}
	p.Throttle(20_000)
	times := func(f func(rdb redis.UniversalClient) error) time.Duration {
		t.Helper()
		start := time.Now()
		errs := make(chan error, 2)
		for _, rdb := range []redis.UniversalClient{a, b} {
			go func() { errs <- f(rdb) }()
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		return time.Since(start)
	}
	set := func(rdb redis.UniversalClient) error { return rdb.Set(ctx, key, value, time.Minute).Err() }
	get := func(rdb redis.UniversalClient) error { return rdb.Get(ctx, key).Err() }
	// Two times 2,000 bytes: 200 ms, on one wire.
	for way, f := range map[string]func(redis.UniversalClient) error{"to the server": set, "to the client": get} {
		if took := times(f); took < 200*time.Millisecond || took > within {
			t.Errorf("4,000 bytes %s took %s at 20,000 a second", way, took)
		}
	}
	p.Heal()
	if took := min(times(set), times(set), times(set)); took > 150*time.Millisecond {
		t.Errorf("healed, they took %s", took)
	}
}
