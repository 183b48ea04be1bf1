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

func name(want string) func([]string) bool {
	return func(command []string) bool { return command[0] == want }
}

// eachProtocol runs f over a proxy to each single server, in RESP2 and RESP3.
func eachProtocol(t *testing.T, f func(t *testing.T, p *Proxy, direct redis.UniversalClient, opt func(*redis.UniversalOptions))) {
	for _, get := range []func(testing.TB) *Server{Mini, Real} {
		for _, protocol := range []int{2, 3} {
			t.Run("", func(t *testing.T) {
				s := get(t)
				t.Logf("%s, RESP%d", s.Kind(), protocol)
				f(t, NewProxy(t, s.Addr()), s.Client(t), func(o *redis.UniversalOptions) { o.Protocol = protocol })
			})
		}
	}
}

func TestProxy_dropReplyTo(t *testing.T) {
	RealTime(t)
	t.Parallel()
	eachProtocol(t, func(t *testing.T, p *Proxy, direct redis.UniversalClient, opt func(*redis.UniversalOptions)) {
		ctx := t.Context()
		rdb := p.Client(t, opt)
		key := Name(t)
		p.DropReplyTo(func(command []string) bool { return command[0] == "INCR" && command[1] == key }, 1)
		rdb.Incr(ctx, Name(t)) // is not concerned
		if n, err := rdb.Incr(ctx, key).Result(); n != 2 || err != nil {
			t.Errorf("INCR gave %d, %v: want 2, because go-redis resent it", n, err)
		}
		if got := p.Count("incr"); got != 3 || p.Commands()["INCR"] != 3 {
			t.Errorf("%d INCR were sent, want 3 (%v)", got, p.Commands())
		}
		// Without resending: an error, and the command has run.
		once := p.Client(t, opt, onceOnly)
		p.DropReplies(1)
		if err := once.Incr(ctx, key).Err(); err == nil {
			t.Error("no error although the reply was lost")
		}
		if got := direct.Get(ctx, key).Val(); got != "3" {
			t.Errorf("n is %s, want 3", got)
		}
		if err := once.Ping(ctx).Err(); err != nil {
			t.Errorf("after the loss: %v", err)
		}
		// In a pipeline all replies after the lost one are lost as well.
		p.DropReplyTo(name("GET"), 1)
		pipe := once.Pipeline()
		a, b, c := pipe.Incr(ctx, key), pipe.Get(ctx, key), pipe.Incr(ctx, key)
		_, _ = pipe.Exec(ctx)
		if a.Val() != 4 || b.Err() == nil || c.Err() == nil {
			t.Errorf("pipeline: %v, %v, %v", a, b, c)
		}
	})
}

func TestProxy_hold(t *testing.T) {
	RealTime(t)
	t.Parallel()
	eachProtocol(t, func(t *testing.T, p *Proxy, direct redis.UniversalClient, opt func(*redis.UniversalOptions)) {
		ctx := t.Context()
		rdb := p.Client(t, opt, onceOnly)
		key := Name(t)
		held := p.Hold(name("INCR"), 1)
		if err := rdb.Incr(ctx, key).Err(); err == nil || held.Count() != 1 {
			t.Errorf("err = %v, %d held", err, held.Count())
		}
		if err := rdb.Set(ctx, key, 10, 0).Err(); err != nil {
			t.Fatal(err)
		}
		held.Release()
		Eventually(t, within, func() bool { return direct.Get(ctx, key).Val() == "11" },
			"the held command has not run after its client gave up")
		if n, err := rdb.Incr(ctx, key).Result(); n != 12 || err != nil {
			t.Errorf("after Release: %d, %v", n, err)
		}
	})
}

// subscribe gives a subscription through the proxy that has been confirmed.
func subscribe(t *testing.T, rdb redis.UniversalClient, channel string) *redis.PubSub {
	t.Helper()
	ps := rdb.Subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = ps.Close() })
	if _, err := ps.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	return ps
}

// receive gives the next message's or pong's payload, or "nothing".
func receive(t *testing.T, ps *redis.PubSub, timeout time.Duration) string {
	t.Helper()
	got, err := ps.ReceiveTimeout(t.Context(), timeout)
	switch m := got.(type) {
	case *redis.Message:
		return m.Payload
	case *redis.Pong:
		return "pong " + m.Payload
	}
	t.Logf("receive: %v, %v", got, err)
	return "nothing"
}

func TestProxy_dropMessages(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, p *Proxy, direct redis.UniversalClient, opt func(*redis.UniversalOptions)) {
		ctx := t.Context()
		channel := Name(t)
		ps := subscribe(t, p.Client(t, opt), channel)
		direct.Publish(ctx, channel, "first")
		if got := receive(t, ps, within); got != "first" {
			t.Errorf("got %q, want the first message", got)
		}
		p.DropMessages(true)
		direct.Publish(ctx, channel, "second")
		Eventually(t, within, func() bool { return p.DroppedMessages() == 1 }, "no message was dropped")
		// Pongs and confirmations pass.
		if err := ps.Ping(ctx, "there?"); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, ps, within); got != "pong there?" {
			t.Errorf("got %q, want the pong", got)
		}
		if err := ps.Subscribe(ctx, Name(t)); err != nil {
			t.Fatal(err)
		}
		got, err := ps.ReceiveTimeout(ctx, within)
		if s, ok := got.(*redis.Subscription); !ok || s.Kind != "subscribe" {
			t.Errorf("got %v, %v, want a confirmation", got, err)
		}
		p.DropMessages(false)
		direct.Publish(ctx, channel, "third")
		if got := receive(t, ps, within); got != "third" {
			t.Errorf("got %q, want the third message", got)
		}
		if passed, dropped := p.Messages(), p.DroppedMessages(); passed != 2 || dropped != 1 {
			t.Errorf("%d messages passed and %d were dropped, want 2 and 1", passed, dropped)
		}
	})
}

func TestProxy_blackholePubSub(t *testing.T) {
	RealTime(t)
	t.Parallel()
	eachProtocol(t, func(t *testing.T, p *Proxy, direct redis.UniversalClient, opt func(*redis.UniversalOptions)) {
		ctx := t.Context()
		rdb := p.Client(t, opt, onceOnly)
		channel := Name(t)
		ps := subscribe(t, rdb, channel)
		p.BlackholePubSub(true)
		direct.Publish(ctx, channel, "lost")
		if err := ps.Ping(ctx); err != nil {
			t.Errorf("the connection is not open: %v", err)
		}
		if got := receive(t, ps, 50*time.Millisecond); got != "nothing" {
			t.Errorf("got %q out of a black hole", got)
		}
		Eventually(t, within, func() bool { return p.DroppedMessages() == 1 }, "no message was swallowed")
		if err := rdb.Ping(ctx).Err(); err != nil {
			t.Errorf("another connection: %v", err)
		}
		p.BlackholePubSub(false)
		direct.Publish(ctx, channel, "found")
		if got := receive(t, ps, within); got != "found" {
			t.Errorf("got %q, want found", got)
		}
	})
}

func TestProxy_connections(t *testing.T) {
	RealTime(t)
	t.Parallel()
	s := Real(t)
	ctx := t.Context()
	p := NewProxy(t, s.Addr())
	rdb := p.Client(t, onceOnly)
	ping := func() error { return rdb.Ping(ctx).Err() }
	step := func(what string, works bool) {
		t.Helper()
		if err := ping(); (err == nil) != works {
			t.Errorf("%s: err = %v", what, err)
		}
	}
	step("at first", true)
	p.Refuse(true)
	step("the connection that exists", true)
	p.Cut()
	Eventually(t, within, func() bool { return ping() != nil }, "no error although the connection was cut")
	step("no connection can be had", false)
	p.Refuse(false)
	step("accepted again", true)
	p.Blackhole(true)
	key := Name(t)
	if err := rdb.Incr(ctx, key).Err(); err == nil {
		t.Error("an answer out of a black hole")
	}
	p.Heal()
	step("healed", true)
	if n := rdb.Exists(ctx, key).Val(); n != 0 {
		t.Error("a command came through the black hole")
	}

	const delay = 30 * time.Millisecond
	p.Delay(delay)
	start := time.Now()
	pipe := rdb.Pipeline()
	for range 20 {
		pipe.Ping(ctx)
	}
	_, err := pipe.Exec(ctx)
	if took := time.Since(start); err != nil || took < delay || took > 20*delay {
		t.Errorf("20 delayed pings took %v, %v", took, err)
	}
}

func TestProxy_noTarget(t *testing.T) {
	RealTime(t)
	t.Parallel()
	s := StartReal(t)
	p := NewProxy(t, s.Addr())
	rdb := p.Client(t, onceOnly)
	s.Kill(t)
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("an answer from nobody")
	}
	s.Start(t)
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestReadFrame(t *testing.T) {
	for _, test := range []struct {
		in    string
		kind  byte
		items string
	}{
		{"+OK\r\n", '+', "OK"},
		{"-ERR no\r\n", '-', "ERR no"},
		{":-7\r\n", ':', "-7"},
		{"$5\r\na\r\nbc\r\n", '$', "a\r\nbc"},
		{"$-1\r\n", '$', ""},
		{"$0\r\n\r\n", '$', ""},
		{"*-1\r\n", '*', ""},
		{"*0\r\n", '*', ""},
		{"*3\r\n$1\r\na\r\n*2\r\n:1\r\n$1\r\nx\r\n:2\r\n", '*', "a||2"},
		{"%1\r\n+k\r\n~1\r\n#t\r\n", '%', "k|"},
		{">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", '>', "message|c|m"},
		{"|1\r\n+ttl\r\n:1\r\n*1\r\n+v\r\n", '*', "v"},
		{"*2\r\n|1\r\n+ttl\r\n:1\r\n+v\r\n_\r\n", '*', "v|"},
		{",1.5\r\n", ',', "1.5"},
		{"(123\r\n", '(', "123"},
		{"=8\r\ntxt:some\r\n", '=', "txt:some"},
		{"!3\r\nERR\r\n", '!', "ERR"},
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
	f, err := readCommand(bufio.NewReader(strings.NewReader("SET a  b\r\nGET a\r\n")))
	if got := fmt.Sprintf("%q", f.items); err != nil || got != `["SET" "a" "b"]` || string(f.raw) != "SET a  b\r\n" {
		t.Errorf("a line: %s, %q, %v", got, f.raw, err)
	}
}
