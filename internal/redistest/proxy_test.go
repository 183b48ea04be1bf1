package redistest

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// world is a proxy to a redis-server, a client that goes through it, resends nothing and gives up soon, and one beside
// it.
type world struct {
	*testing.T
	p           *Proxy
	rdb, direct redis.UniversalClient
	key         string
}

func newWorld(t *testing.T) world {
	t.Helper()
	s := Real(t)
	p := NewProxy(t, s.Addr())
	return world{t, p, p.Client(t, onceOnly), s.Client(t), Name(t)}
}

func name(want string) func([]string) bool {
	return func(command []string) bool { return command[0] == want }
}

// incr counts up through the proxy, and holds what is counted then.
func (w world) incr(works bool, want string) {
	w.Helper()
	if err := w.rdb.Incr(w.Context(), w.key).Err(); (err == nil) != works {
		w.Errorf("INCR: %v", err)
	}
	if got, _ := w.direct.Get(w.Context(), w.key).Result(); got != want {
		w.Errorf("the counter is %s, want %s", got, want)
	}
}

func TestProxy_commands(t *testing.T) {
	RealTime(t)
	t.Parallel()
	w := newWorld(t)
	ctx := w.Context()
	w.p.DropReplyTo(func(command []string) bool { return command[0] == "INCR" && command[1] == w.key }, 1)
	w.rdb.Incr(ctx, Name(w)) // is not concerned
	w.incr(false, "1")
	w.p.DropReplyTo(name("INCR"), 1)
	w.incr(false, "2")
	w.incr(true, "3")
	if n := w.p.Count("incr"); n != 4 {
		w.Errorf("%d INCR were sent, want 4 (%v)", n, w.p.Commands())
	}
	// In a pipeline all replies after the lost one are lost as well.
	w.p.DropReplyTo(name("GET"), 1)
	pipe := w.rdb.Pipeline()
	a, b, c := pipe.Incr(ctx, w.key), pipe.Get(ctx, w.key), pipe.Exists(ctx, w.key)
	_, _ = pipe.Exec(ctx)
	if a.Val() != 4 || b.Err() == nil || c.Err() == nil {
		w.Errorf("pipeline: %v, %v, %v", a, b, c)
	}

	held := w.p.Hold(name("INCR"), 1)
	w.incr(false, "4")
	if held.Count() != 1 {
		w.Errorf("%d are held", held.Count())
	}
	Must(w, w.rdb.Set(ctx, w.key, 10, 0).Err())
	held.Release()
	Eventually(w, Patience, func() bool { return w.direct.Get(ctx, w.key).Val() == "11" },
		"the held command runs, though its client gave up")
	w.incr(true, "12")
}

func TestProxy_connections(t *testing.T) {
	RealTime(t)
	t.Parallel()
	w := newWorld(t)
	w.incr(true, "1")
	w.p.Refuse(true)
	w.incr(true, "2") // on the connection that exists
	w.p.Cut()
	w.incr(false, "2")
	w.p.Refuse(false)
	w.incr(true, "3")
	w.p.Blackhole(true)
	w.incr(false, "3")
	w.p.Heal()
	w.incr(true, "4")

	const delay = 30 * time.Millisecond
	w.p.Delay(delay)
	start, pipe := time.Now(), w.rdb.Pipeline()
	for range 20 {
		pipe.Ping(w.Context())
	}
	if _, err := pipe.Exec(w.Context()); err != nil || time.Since(start) < delay {
		w.Errorf("20 delayed pings took %v, %v", time.Since(start), err)
	}
}

// What is swallowed of a subscription, and nothing else is.
func TestProxy_subscriptions(t *testing.T) {
	RealTime(t)
	t.Parallel()
	w := newWorld(t)
	ctx, channel, count := w.Context(), Name(w), 0
	ps := w.rdb.Subscribe(ctx, channel)
	w.Cleanup(func() { _ = ps.Close() })
	_, err := ps.Receive(ctx)
	Must(w, err)
	// receives reports whether the text is received soon. A message that was published before may come late.
	receives := func(text string, patience time.Duration) bool {
		for {
			got, err := ps.ReceiveTimeout(ctx, patience)
			m, isMessage := got.(*redis.Message)
			_, isPong := got.(*redis.Pong)
			if err != nil || isPong && text == "pong" || isMessage && m.Payload == text {
				return err == nil
			}
		}
	}
	hears := func(want bool) {
		w.Helper()
		count++
		text, patience := fmt.Sprint("message ", count), Patience
		if !want {
			patience = 20 * time.Millisecond
		}
		w.direct.Publish(ctx, channel, text)
		if receives(text, patience) != want {
			w.Errorf("%q: heard is not %t", text, want)
		}
	}
	w.incr(true, "1")
	w.p.BlackholePubSub(true)
	w.incr(true, "2")
	hears(false)
	w.p.Heal()
	hears(true)
	w.p.DropMessages(true)
	hears(false)
	Must(w, ps.Ping(ctx))
	if !receives("pong", Patience) {
		w.Error("there is no pong")
	}
}
