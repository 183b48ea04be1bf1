package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func has(all []Finding, level, what, text string) bool {
	for _, f := range all {
		if f.Level == level && f.What == what && strings.Contains(f.Text, text) {
			return true
		}
	}
	return false
}

// What a server says of itself that loses locks is bad, and what it does not say is no praise.
func TestInfo(t *testing.T) {
	t.Parallel()
	good := map[string]string{"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "role": "master"}
	for _, c := range []struct{ field, value, level, what, text string }{
		{"redis_version", "6.2", Fine, "Redis", "version 6.2"},
		{"redis_version", "10.0.1", Fine, "Redis", "version 10.0.1"},
		{"redis_version", "6.0.16", Bad, "Redis", "6.2 or later"},
		{"redis_version", "x", Bad, "Redis", "too old"},
		{"role", "slave", Bad, "Redis", "connect to that"},
		{"maxmemory_policy", "", Bad, "eviction", "set noeviction"},
	} {
		d := &doctor{}
		info := map[string]string{c.field: c.value}
		for field, value := range good {
			if field != c.field {
				info[field] = value
			}
		}
		d.info("Redis", "eviction", info)
		if len(d.findings) != 2 || !has(d.findings, c.level, c.what, c.text) {
			t.Errorf("%s %s: %+v, want %s: %s", c.field, c.value, d.findings, c.level, c.text)
		}
	}
	d := &doctor{}
	d.info("Redis", "eviction", map[string]string{"maxmemory_policy": "allkeys-lru", "maxmemory": "0"})
	if !has(d.findings, Note, "eviction", "were there a maxmemory") {
		t.Errorf("without a maxmemory: %+v", d.findings)
	}
}

// A command that a check needs and whose answer does not come ends the examination, with the findings until then.
func TestExamine_commandFails(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	for _, c := range []struct {
		command    string
		after      int // so many times it goes well
		what, text string
	}{{"zadd", 0, "clock", "from this machine's"}, {"hgetall", 1, "rights", "each of"}, {"scan", 2, "rights", "each of"}, {"smembers", 0, "rights", "each of"}} {
		rdb, hook, calls, prefix := s.Client(t), &redistest.FailHook{}, 0, redistest.Name(t)
		rdb.AddHook(hook)
		hook.Before(func(cmd redis.Cmder) error {
			if cmd.Name() != c.command {
				return nil
			}
			if calls++; calls <= c.after {
				return nil
			}
			return io.EOF
		})
		all, err := Examine(t.Context(), rdb, Options{Prefix: prefix, Config: &automutex.Config{Prefix: prefix, Rules: []automutex.Rule{{Task: "pay"}}}})
		if !has(all, Fine, c.what, c.text) || !errors.Is(err, lock.ErrBackend) {
			t.Errorf("%s: %v; want %s %q in %+v", c.command, err, c.what, c.text, all)
		}
	}
}

// What no check can begin with is refused.
func TestExamine_refuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Real(t).Client(t)
	if _, err := Examine(t.Context(), struct{ redis.UniversalClient }{rdb}, Options{Prefix: "x"}); err == nil || !strings.Contains(err.Error(), "is not known") {
		t.Errorf("a client of another kind: %v", err)
	}
	_, err := Examine(t.Context(), rdb, Options{Prefix: redistest.Name(t), Config: &automutex.Config{Rules: []automutex.Rule{{}}}})
	if wrong := (*automutex.FieldError)(nil); !errors.As(err, &wrong) {
		t.Errorf("a rule with a mistake: %v", err)
	}
}

// A clock that is off is found.
func TestServer_clock(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	for off, level := range map[time.Duration]string{0: Fine, time.Minute: Bad, -time.Minute: Bad} {
		s.Mini().SetTime(time.Now().Add(off))
		d := &doctor{}
		redistest.Must(t, d.server(t.Context(), s.Client(t).(*redis.Client), ""))
		if !has(d.findings, level, "clock", "from this machine's") {
			t.Errorf("off by %s: %+v", off, d.findings)
		}
	}
}

// Rules that do not fit together, and a rule that nothing serves, are found in what Guards say.
func TestFleet(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	say := func(prefix string, serves []string, rules ...automutex.Rule) {
		self := fleet.Process{Owner: "host:1", Rules: inspect.Describe(rules)}
		a := fleet.New(rdb, prefix, self, func() []string { return serves }, func([]fleet.Difference) {})
		a.Begin()
		t.Cleanup(func() { a.Close(context.Background()) })
		before := rdb.HLen(t.Context(), fleet.Key(prefix)).Val()
		redistest.Eventually(t, time.Minute, func() bool { return rdb.HLen(t.Context(), fleet.Key(prefix)).Val() > before }, "it says what it runs")
	}
	examine := func(prefix string) []Finding {
		all, err := Examine(t.Context(), rdb, Options{Prefix: prefix})
		redistest.Must(t, err)
		return all
	}
	served := []string{"cron:nightly", "mail:welcome", "sync:eu", "bill:eu", "bill:us"}
	say("shop", served, automutex.Rule{Task: "cron:nigtly"}, automutex.Rule{Task: "mial:"}, automutex.Rule{Task: "sync:eu"}, automutex.Rule{Task: "sync:us"},
		automutex.Rule{Task: "bill:eu"}, automutex.Rule{Task: "of-another-worker"})
	all := examine("shop")
	if !has(all, Fine, "rules", "1 Guard; what they run fits together") || !has(all, Bad, "tasks", `no rule is for "cron:nightly": did you mean that?`) || !has(all, Bad, "tasks", `no rule is for "mail:welcome"`) || CountBad(all) != 2 {
		t.Errorf("%+v", all)
	}
	for _, scope := range []string{"", "shared"} {
		say("exclude", nil, automutex.Rule{Name: "rule of " + scope, Task: "x", Scope: scope})
	}
	if all := examine("exclude"); !has(all, Note, "rules", "make no one set") {
		t.Errorf("%+v", all)
	}
}

// Of many blocked keys, and of many reasons why tasks have no key, some are named and the others counted.
func TestExamine_many(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	rdb, prefix := s.Client(t), redistest.Name(t)
	e := engine.New(engine.Options{Client: rdb, Prefix: prefix})
	t.Cleanup(e.Close)
	for i := range most + 2 {
		key, note := engine.Ref{Key: e.Key("orders", fmt.Sprint(i)), Limit: 1, Ordered: true}, fmt.Sprintf("default/%s-%d", prefix, i)
		ticket, _, _, err := e.Stamp(t.Context(), key, note, "n", 0, 0)
		redistest.Must(t, err)
		place := engine.Place{Nonce: "n", Ticket: ticket, Most: -1}
		lease, err := e.Take(t.Context(), engine.Request{Ref: key, Note: note, TTL: time.Minute, Order: &engine.Order{Place: place}})
		redistest.Must(t, err)
		lease.End(engine.OutcomeHeld)
		_, err = lease.Release(t.Context(), engine.Ending{})
		redistest.Must(t, err)
	}
	client := asynq.NewClientFromRedisClient(rdb)
	var rules []automutex.Rule
	for i := range most + 2 {
		rules = append(rules, automutex.Rule{Task: fmt.Sprintf("%s-%d", prefix, i), On: []string{"id"}})
		for range i + 1 {
			_, err := client.Enqueue(asynq.NewTask(rules[i].Task, []byte(`{}`)), asynq.Queue(prefix))
			redistest.Must(t, err)
		}
	}
	all, err := Examine(t.Context(), rdb, Options{Prefix: prefix, Config: &automutex.Config{Prefix: prefix, Rules: rules}})
	redistest.Must(t, err)
	if CountBad(all) != 2*most+1 || !has(all, Bad, "order", "and 2 more keys; automutex blocked lists all") || !has(all, Bad, "keys", "(7 tasks)") || has(all, Bad, "keys", "(2 tasks)") {
		t.Errorf("%+v", all)
	}
}
