package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

// What New refuses of two fields or two rules together; TestCompile_refuses has the fields by themselves.
func TestNew_mistakes(t *testing.T) {
	t.Parallel()
	of, field := func(context.Context, *asynq.Task) (int, error) { return 1, nil },
		&automutex.LimitField{Path: "n", Default: 1}
	second := automutex.Rate{Starts: 1, Per: time.Second}
	rateOf := func(context.Context, *asynq.Task) (automutex.Rate, error) { return second, nil }
	ordered := func(change func(*automutex.Rule)) []automutex.Rule {
		rule := automutex.Rule{Task: "work", InOrder: true}
		change(&rule)
		return []automutex.Rule{rule}
	}
	limited := func(l automutex.LimitField) []automutex.Rule { return []automutex.Rule{{Task: "work", LimitField: &l}} }
	for want, rules := range map[string][]automutex.Rule{
		"LimitOf: excludes Limit":                         {{Task: "work", Limit: 2, LimitOf: of}},
		"LimitField: excludes Limit, which is 2":          {{Task: "work", Limit: 2, LimitField: field}},
		"LimitField: excludes LimitOf":                    {{Task: "work", LimitOf: of, LimitField: field}},
		`rule "work" (Rules[0]): LimitField: "" is empty`: limited(automutex.LimitField{Default: 1}),
		`LimitField: "." is the whole payload`:            limited(automutex.LimitField{Path: "."}),
		"none may be below 0":                             limited(automutex.LimitField{Path: "max", Default: -1, Most: 2}),
		"which is more than Most, 2":                      limited(automutex.LimitField{Path: "max", Default: 9, Most: 2}),
		"one scope has one LimitField": {{Task: "a", Scope: "s", LimitField: field},
			{Task: "b", Scope: "s", Limit: 3}},
		"one scope has one Limit":                      {{Task: "a", Scope: "s", LimitOf: of}, {Task: "b", Scope: "s"}},
		"Fence: needs a Limit of 1":                    {{Task: "work", LimitOf: of, Fence: true}},
		"Fence: needs a Limit of 1: fences of holders": {{Task: "work", Limit: 2, Fence: true}},
		"one scope has one Fence":                      {{Task: "a", Scope: "s", Fence: true}, {Task: "b", Scope: "s"}},
		"automutex.Unlimited":                          {{Task: "work", Rate: second}},
		"RateOf: excludes Rate, which is 1 per 1s":     {{Task: "work", Limit: 1, RateOf: rateOf, Rate: second}},
		"the rule has a Rate: say 1":                   {{Task: "work", RateOf: rateOf}},
		"one scope has one RateOf": {{Task: "a", Scope: "s", Limit: 1, RateOf: rateOf},
			{Task: "b", Scope: "s", Limit: 1}},
		"Cost: counts starts of a rate":            {{Task: "work", Cost: of}},
		"InOrder: needs a Limit of 1":              ordered(func(r *automutex.Rule) { r.LimitField = field }),
		"InOrder: needs the policy park, not skip": ordered(func(r *automutex.Rule) { r.Busy = automutex.Skip }),
		"MaxQueued: -1 is negative":                ordered(func(r *automutex.Rule) { r.MaxQueued = -1 }),
		"InOrder: is set in": {{Task: "a", Scope: "x", InOrder: true},
			{Task: "a", Scope: "y", InOrder: true}},
		"one scope has one InOrder": {{Task: "a", Scope: "x", InOrder: true}, {Task: "b", Scope: "x"}},
	} {
		if _, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{Rules: rules}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	for want, cfg := range map[string]automutex.Config{
		"Config.History: 1001 is not from 0 to 1000":  {History: history.Most + 1},
		"Config.MinReplicas: lock: MinReplicas is -1": {MinReplicas: -1}, "MinReplicas is 1001": {MinReplicas: 1001},
	} {
		if _, err := automutex.New(redistest.Mini(t).Client(t), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
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

func TestNew_noIO(t *testing.T) {
	t.Parallel()
	dialled := false
	rdb := redis.NewClient(&redis.Options{Addr: "203.0.113.1:1",
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			dialled = true
			return nil, errors.New("no")
		}})
	defer func() { _ = rdb.Close() }()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{{Task: "work", On: onID}}})
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
	if _, err := guard.Keys(t.Context(), nil); err == nil {
		t.Error("a nil task has keys")
	}
	guard.ServerConfig(asynq.Config{})
	redistest.Must(t, guard.Close(t.Context()))
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
	each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{{Task: "work", Busy: automutex.Retry}}
		prefix := redistest.Name(t)
		var made any
		opt := connOpt{func() any { return redis.NewUniversalClient(s.Options()) }, &made}
		guard, err := automutex.NewFromConnOpt(opt, automutex.Config{Rules: rules, Prefix: prefix})
		redistest.Must(t, err)
		ended, end := context.WithCancel(t.Context())
		end()
		late := errors.New("late")
		handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			return errors.Join(late, guard.Close(ended))
		}))
		if err := handler.ProcessTask(t.Context(), asynq.NewTask("work", nil)); !errors.Is(err, late) ||
			!errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		rdb := s.Client(t)
		if n, err := rdb.Exists(t.Context(), prefix+":{work}").Result(); n != 0 || err != nil {
			t.Errorf("a late handler keeps its key: %v", err)
		}
		for range 2 {
			redistest.Must(t, guard.Close(t.Context()))
		}
		if err := made.(redis.UniversalClient).Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
			t.Errorf("its own client is not closed: %v", err)
		}

		// A mistake leaves no client behind.
		if _, err := automutex.NewFromConnOpt(opt, automutex.Config{Rules: []automutex.Rule{{}}}); err == nil ||
			strings.Contains(err.Error(), "closed") {
			t.Errorf("got %v", err)
		}
		if err := made.(redis.UniversalClient).Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
			t.Errorf("the client is not closed: %v", err)
		}

		// New's is left open.
		guard, err = automutex.New(rdb, automutex.Config{Rules: rules, Prefix: prefix})
		redistest.Must(t, err)
		redistest.Must(t, guard.Close(t.Context()))
		redistest.Must(t, rdb.Ping(t.Context()).Err())
	})
}

// asynq's own kinds of RedisConnOpt are taken, and what makes no client is refused. NewClient and unique.New take what
// they make.
func TestNew_fromAsynqConnOpt(t *testing.T) {
	t.Parallel()
	var made any
	for opt, taken := range map[asynq.RedisConnOpt]bool{
		asynq.RedisClientOpt{Addr: "localhost:1"}:                                              true,
		&asynq.RedisClusterClientOpt{Addrs: []string{"localhost:1"}}:                           true,
		&asynq.RedisFailoverClientOpt{MasterName: "m", SentinelAddrs: []string{"localhost:1"}}: true,
		nil:                                      false,
		&connOpt{func() any { return 7 }, &made}: false,
		&connOpt{func() any { return nil }, &made}: false,
	} {
		guard, err := automutex.NewFromConnOpt(opt, automutex.Config{Rules: []automutex.Rule{{Task: "work"}}})
		if (err == nil) != taken || (guard != nil) != taken {
			t.Errorf("%T: %v", opt, err)
		}
		if guard == nil {
			continue
		}
		redistest.Must(t, guard.Close(t.Context()))
		rdb := opt.MakeRedisClient().(redis.UniversalClient)
		client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb),
			automutex.Config{Rules: []automutex.Rule{{Task: "work"}}})
		redistest.Must(t, err)
		_, err = unique.New(client, asynq.NewInspectorFromRedisClient(rdb), rdb,
			unique.Config{Rules: []unique.Rule{{Task: "work"}}})
		redistest.Must(t, errors.Join(err, rdb.Close()))
	}
}

// NewClient says every mistake at once, and asks nobody.
func TestNewClient_everyMistake(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "203.0.113.1:1",
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("NewClient dials")
			return nil, errors.New("dialed")
		}})
	defer rdb.Close()
	ordered := automutex.Config{Rules: []automutex.Rule{{Task: "work", On: onID, InOrder: true}}}
	wrong := automutex.Config{Rules: []automutex.Rule{{Task: "work", TTL: -1}}}
	inspected := ordered
	inspected.Inspector = asynq.NewInspectorFromRedisClient(rdb)
	for what, c := range map[string]struct {
		rdb    lock.Client
		client *asynq.Client
		cfg    automutex.Config
		want   []string
	}{
		"all at once": {nil, nil, wrong, []string{"client is nil", "asynq.Client is nil", "Rules[0]): TTL: "}},
		"no inspector": {bare{rdb}, asynq.NewClientFromRedisClient(rdb), ordered, []string{
			"Inspector: is nil, and none can be made from a e2e.bare for InOrder of Rules[0]",
		}},
		"another's": {bare{rdb}, asynq.NewClientFromRedisClient(rdb), inspected, nil},
		"unordered": {bare{rdb}, asynq.NewClientFromRedisClient(rdb), automutex.Config{}, nil},
	} {
		got, err := automutex.NewClient(c.rdb, c.client, c.cfg)
		if (err == nil) != (len(c.want) == 0) || (got == nil) != (err != nil) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
		for _, part := range c.want {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in\n%v", what, part, err)
			}
		}
	}
}

// What asynq itself refuses stays asynq's refusal, and leaves no place in order behind. A task that go-redis has sent
// twice is enqueued.
func TestClient_asynqRefuses(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{})
		work := asynq.NewTask("work", []byte(`{"id":1}`))
		_, err := c.Enqueue(work, asynq.Queue(" "))
		says(t, fmt.Sprint(err), "queue name")
		if _, err := c.Enqueue(nil); err == nil {
			t.Error("no task is enqueued")
		}
		first := r.enqueueInOrder(c, 1)
		run := r.next()
		if _, err := c.Enqueue(work, nil, asynq.Queue(r.queue), asynq.TaskID(first)); !errors.Is(err,
			asynq.ErrTaskIDConflict) || !strings.Contains(err.Error(), first) {
			t.Errorf("an ID that is taken: %v", err)
		}
		rdb := s.Client(t)
		rdb.AddHook(redistest.Resend(func(cmd redis.Cmder) bool { // as go-redis does after a lost reply
			args := cmd.Args()
			return len(args) > 4 && strings.HasSuffix(fmt.Sprint(args[4]), ":pending")
		}))
		twice, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), r.cfg)
		redistest.Must(t, err)
		second, third := r.enqueueInOrder(twice, 1), r.enqueueInOrder(c, 1) // whose ID is taken by itself
		r.ends(run)
		r.finish(second) // nothing stands between them
		r.finish(third)
	})
}
