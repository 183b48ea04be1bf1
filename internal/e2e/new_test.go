package e2e

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Every mistake at once, each naming its rule and field.
func TestNew_everyMistake(t *testing.T) {
	t.Parallel()
	_, err := automutex.New(nil, automutex.Config{
		Prefix: "a{b}", MinReplicas: -1, History: -1,
		Rules: []automutex.Rule{
			{Name: "blank"},
			{Task: "a", Limit: -1, Wait: -1, On: []string{"x..y"}},
			{Task: "b", TTL: time.Millisecond, Busy: automutex.RetryIn(-1)},
			{Task: "c", Name: "both", On: []string{"x"}, Key: automutex.Fields("y")},
			{Task: "d", Rate: automutex.Rate{Starts: -1}, Busy: automutex.AfterFailure(nil)},
			{Task: "e", On: []string{"nosuch"}, Payload: struct{ Such string }{}},
			{Task: "f"}, {Task: "f", Name: "second", Busy: automutex.RetryIn(0)},
			{Task: "g", Name: "second", MaxHold: -1},
		},
	})
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	for _, want := range [][]string{
		{"client", "nil"},
		{"Config.Prefix"},
		{"Config.MinReplicas"}, {"Config.History"},
		{`"blank"`, "Task"},
		{`"a"`, "Limit"}, {`"a"`, "Wait"}, {`"a"`, "On[0]"},
		{`"b"`, "TTL"}, {`"b"`, "Busy", "RetryIn"},
		{`"both"`, "Key"},
		{`"d"`, "Rate"}, {`"d"`, "Busy"},
		{`"e"`, "On[0]", "nosuch"},
		{`"f"`, "Scope"}, {`"second"`, "Scope"}, {`"second"`, "Busy"},
		{`"second"`, "Rules[8]", "MaxHold"}, {`"second"`, "Rules[8]", "Name"},
	} {
		if !slices.ContainsFunc(lines, func(line string) bool {
			for _, part := range want {
				if !strings.Contains(line, part) {
					return false
				}
			}
			return strings.HasPrefix(line, "automutex: ")
		}) {
			t.Errorf("no line names %q in\n%s", want, err)
		}
	}
}

func TestNew_clients(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "localhost:1"}})
	defer func() { _ = ring.Close() }()
	for name, client := range map[string]lock.Client{
		"nil":                      nil,
		"nil *redis.Client":        (*redis.Client)(nil),
		"nil *redis.ClusterClient": (*redis.ClusterClient)(nil),
		"Ring":                     ring,
	} {
		guard, err := automutex.New(client, automutex.Config{Rules: []automutex.Rule{{Task: "work"}}})
		if err == nil || guard != nil || !strings.Contains(err.Error(), strings.TrimPrefix(name, "nil ")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if guard, err := automutex.New(redis.UniversalClient(nil), automutex.Config{}); err == nil || guard != nil {
		t.Error("a nil UniversalClient is accepted")
	}
}

// What New lets pass, the engine takes: a rule that only fails once tasks come
// would send them round for ever.
func TestNew_whatTheEngineRefuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	for field, cfg := range map[string]automutex.Config{
		"Prefix": {Prefix: "a b", Rules: []automutex.Rule{{Task: "work"}}},
		"TTL":    {Rules: []automutex.Rule{{Task: "work", TTL: time.Microsecond}}},
	} {
		guard, err := automutex.New(rdb, cfg)
		if err == nil {
			_ = guard.Close(t.Context())
			t.Errorf("%s: accepted", field)
			continue
		}
		if !strings.Contains(err.Error(), field) && !strings.Contains(err.Error(), strings.ToLower(field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// New does no I/O.
func TestNew_noIO(t *testing.T) {
	t.Parallel()
	dialled := false
	rdb := redis.NewClient(&redis.Options{Addr: "203.0.113.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		dialled = true
		return nil, errors.New("no")
	}})
	defer func() { _ = rdb.Close() }()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{{Task: "work", On: []string{"id"}}}})
	redistest.Must(t, err)
	keys, err := guard.Keys(t.Context(), asynq.NewTask("work", []byte(`{"id":1}`)))
	if err != nil || !slices.Equal(keys, []string{"automutex:{work|1}"}) {
		t.Errorf("got %v, %v", keys, err)
	}
	if keys, err := guard.Keys(t.Context(), asynq.NewTask("play", nil)); err != nil || keys != nil {
		t.Errorf("got %v, %v", keys, err)
	}
	var unkeyed *automutex.KeyError
	if _, err := guard.Keys(t.Context(), asynq.NewTask("work", nil)); !errors.As(err, &unkeyed) {
		t.Errorf("got %v", err)
	}
	guard.ServerConfig(asynq.Config{})
	if err := guard.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if dialled {
		t.Error("Redis was dialled")
	}
}

// connOpt is an asynq.RedisConnOpt that keeps what it made.
type connOpt struct {
	make func() any
	made *any
}

func (o connOpt) MakeRedisClient() any {
	*o.made = o.make()
	return *o.made
}

func TestNew_fromConnOpt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{{Task: "work", Busy: automutex.Retry}}
		prefix := redistest.Name(t)
		var made any
		opt := connOpt{func() any { return redis.NewUniversalClient(s.Options()) }, &made}
		guard, err := automutex.NewFromConnOpt(opt, automutex.Config{Rules: rules, Prefix: prefix})
		redistest.Must(t, err)
		ran := false
		handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { ran = true; return nil }))
		if err := handler.ProcessTask(t.Context(), asynq.NewTask("work", nil)); err != nil || !ran {
			t.Errorf("%v, ran %v", err, ran)
		}
		for range 2 {
			if err := guard.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := made.(redis.UniversalClient).Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
			t.Errorf("its own client is not closed: %v", err)
		}

		// A mistake leaves no client behind.
		if _, err := automutex.NewFromConnOpt(opt, automutex.Config{Rules: []automutex.Rule{{}}}); err == nil || strings.Contains(err.Error(), "closed") {
			t.Errorf("got %v", err)
		}
		if err := made.(redis.UniversalClient).Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
			t.Errorf("the client is not closed: %v", err)
		}

		// New's is left open.
		rdb := s.Client(t)
		if guard, err = automutex.New(rdb, automutex.Config{Rules: rules, Prefix: prefix}); err != nil {
			t.Fatal(err)
		}
		if err := guard.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestNew_fromConnOptMistakes(t *testing.T) {
	t.Parallel()
	var made any
	for _, opt := range []asynq.RedisConnOpt{nil, connOpt{func() any { return 7 }, &made}, connOpt{func() any { return nil }, &made}} {
		if guard, err := automutex.NewFromConnOpt(opt, automutex.Config{}); err == nil || guard != nil {
			t.Errorf("%v is accepted", opt)
		}
	}
}

// asynq's own kinds of RedisConnOpt.
func TestNew_fromAsynqConnOpt(t *testing.T) {
	t.Parallel()
	for _, opt := range []asynq.RedisConnOpt{
		asynq.RedisClientOpt{Addr: "localhost:1"},
		asynq.RedisClusterClientOpt{Addrs: []string{"localhost:1"}},
		asynq.RedisFailoverClientOpt{MasterName: "m", SentinelAddrs: []string{"localhost:1"}},
	} {
		guard, err := automutex.NewFromConnOpt(opt, automutex.Config{Rules: []automutex.Rule{{Task: "work"}}})
		if err != nil {
			t.Errorf("%T: %v", opt, err)
			continue
		}
		if err := guard.Close(t.Context()); err != nil {
			t.Errorf("%T: %v", opt, err)
		}
	}
}
