package redistest

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// world is a proxy to a redis-server, a client that goes through it, resends nothing and gives up soon, and one beside it.
type world struct {
	*testing.T
	p           *Proxy
	rdb, direct redis.UniversalClient
	key         string
}

// eachProtocol runs f in RESP2 and RESP3.
func eachProtocol(t *testing.T, f func(w world)) {
	RealTime(t)
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			s := Real(t)
			p := NewProxy(t, s.Addr())
			rdb := p.Client(t, onceOnly, func(o *redis.UniversalOptions) { o.Protocol = protocol })
			f(world{t, p, rdb, s.Client(t), Name(t)})
		})
	}
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
	eachProtocol(t, func(w world) {
		ctx := w.Context()
		w.p.DropReplyTo(func(command []string) bool { return command[0] == "INCR" && command[1] == w.key }, 1)
		w.rdb.Incr(ctx, Name(w)) // is not concerned
		w.incr(false, "1")
		w.p.DropReplies(1)
		if err := w.rdb.Ping(ctx).Err(); err != nil {
			w.Errorf("PING: %v", err)
		}
		w.incr(false, "2")
		w.incr(true, "3")
		if n := w.p.Count("incr"); n != 4 {
			w.Errorf("%d INCR were sent, want 4 (%v)", n, w.p.Commands())
		}
		// In a pipeline all replies after the lost one are lost as well.
		w.p.DropReplyTo(name("GET"), 1)
		pipe := w.rdb.Pipeline()
		a, b, c := pipe.Incr(ctx, w.key), pipe.Get(ctx, w.key), pipe.Incr(ctx, w.key)
		_, _ = pipe.Exec(ctx)
		if a.Val() != 4 || b.Err() == nil || c.Err() == nil {
			w.Errorf("pipeline: %v, %v, %v", a, b, c)
		}

		held := w.p.Hold(name("INCR"), 1)
		w.incr(false, "5")
		if held.Count() != 1 {
			w.Errorf("%d are held", held.Count())
		}
		Must(w, w.rdb.Set(ctx, w.key, 10, 0).Err())
		held.Release()
		Eventually(w, Patience, func() bool { return w.direct.Get(ctx, w.key).Val() == "11" },
			"the held command runs, though its client gave up")
		w.incr(true, "12")
	})
}

func TestProxy_connections(t *testing.T) {
	eachProtocol(t, func(w world) {
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
	})
}

// What is swallowed in one direction on one kind of connections, and nothing else is.
func TestProxy_swallow(t *testing.T) {
	eachProtocol(t, func(w world) {
		ctx, channel := w.Context(), Name(w)
		ps := w.rdb.Subscribe(ctx, channel)
		w.Cleanup(func() { _ = ps.Close() })
		_, err := ps.Receive(ctx)
		Must(w, err)
		receive := func(patience time.Duration, want string) {
			w.Helper()
			got, _ := ps.ReceiveTimeout(ctx, patience)
			text := "nothing"
			switch m := got.(type) {
			case *redis.Message:
				text = m.Payload
			case *redis.Pong:
				text = "pong"
			}
			if text != want {
				w.Errorf("got %q, want %q", text, want)
			}
		}
		hears := func(want string) {
			w.Helper()
			dropped, patience := w.p.DroppedMessages(), Patience
			w.direct.Publish(ctx, channel, "hello")
			if want == "nothing" {
				Eventually(w, Patience, func() bool { return w.p.DroppedMessages() > dropped }, "a message is swallowed")
				patience = 20 * time.Millisecond
			}
			receive(patience, want)
		}
		pings := func(patience time.Duration, want string) {
			w.Helper()
			Must(w, ps.Ping(ctx)) // the connection is open
			receive(patience, want)
		}
		w.incr(true, "1")
		w.p.Swallow(ToServer, Commands, true)
		w.incr(false, "1")
		hears("hello")
		w.p.Swallow(ToServer, Commands, false)
		if n := w.p.Swallowed("incr"); n != 1 {
			w.Errorf("%d INCR were swallowed, want 1", n)
		}
		w.incr(true, "2") // on another connection, which is there to swallow on
		w.p.Swallow(ToClient, Commands, true)
		w.incr(false, "3")
		hears("hello")
		w.p.Swallow(ToClient, Commands, false)
		w.p.Swallow(ToServer, Subscriptions, true)
		w.incr(true, "4")
		hears("hello")
		pings(20*time.Millisecond, "nothing")
		w.p.Swallow(ToServer, Subscriptions, false)
		w.p.BlackholePubSub(true)
		w.incr(true, "5")
		hears("nothing")
		w.p.Heal()
		hears("hello")
		w.p.DropMessages(true)
		hears("nothing")
		pings(Patience, "pong")
	})
}

func TestReadFrame(t *testing.T) {
	for _, test := range []struct {
		in    string
		kind  byte
		items string
	}{
		{"+OK\r\n", '+', "OK"},
		{":-7\r\n", ':', "-7"},
		{"$5\r\na\r\nbc\r\n", '$', "a\r\nbc"},
		{"$-1\r\n", '$', ""},
		{"*-1\r\n", '*', ""},
		{"*0\r\n", '*', ""},
		{"*3\r\n$1\r\na\r\n*2\r\n:1\r\n$1\r\nx\r\n:2\r\n", '*', "a||2"},
		{"%1\r\n+k\r\n~1\r\n#t\r\n", '%', "k|"},
		{">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", '>', "message|c|m"},
		{"*2\r\n|1\r\n+ttl\r\n:1\r\n+v\r\n_\r\n", '*', "v|"},
		{"=8\r\ntxt:some\r\n", '=', "txt:some"},
	} {
		r := bufio.NewReader(strings.NewReader(test.in + "rest"))
		f, err := readFrame(r)
		rest, _ := io.ReadAll(r)
		if err != nil || string(f.raw) != test.in || string(rest) != "rest" || f.kind != test.kind ||
			strings.Join(f.items, "|") != test.items {
			t.Errorf("%q: %q %c %q, rest %q, %v", test.in, f.raw, f.kind, f.items, rest, err)
		}
	}
	for _, bad := range []string{"", "\r\n", "?\r\n", "$x\r\n", "$?\r\n", "*-2\r\n", "$5\r\nab", "*2\r\n+a\r\n"} {
		if f, err := readFrame(bufio.NewReader(strings.NewReader(bad))); err == nil {
			t.Errorf("%q: read as %q", bad, f.raw)
		}
	}
}
