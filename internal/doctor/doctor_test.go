package doctor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// count tells how many findings are bad.
func count(all []Finding) int { return strings.Count(fmt.Sprint(all), "{"+Bad+" ") }

// What a server says of itself that loses locks is bad, and what it does not say is no praise.
func TestServer_info(t *testing.T) {
	t.Parallel()
	rdb, hook := redistest.StartMini(t).Client(t), &redistest.FailHook{}
	rdb.AddHook(hook)
	for _, c := range []struct{ section, field, value, level, what, text string }{
		{"Server", "redis_version", "6.2", Fine, "Redis", "version 6.2"},
		{"Server", "redis_version", "10.0.1", Fine, "Redis", "version 10.0.1"},
		{"Server", "redis_version", "6.0.16", Bad, "Redis", "6.2 or later"},
		{"Server", "redis_version", "x", Bad, "Redis", "too old"},
		{"Replication", "role", "slave", Bad, "Redis", "connect to that"},
		{"Memory", "maxmemory_policy", "", Bad, "eviction", "set noeviction"},
		{"Memory", "maxmemory_policy", "allkeys-lru", Bad, "eviction", "set noeviction"},
		{"Memory", "used_memory", "999", Fine, "eviction", "is noeviction"},
		{"Memory", "used_memory", "1001", Bad, "eviction", "Redis is full"},
	} {
		info := map[string]map[string]string{
			"Server": {"redis_version": "7.0.15"}, "Replication": {"role": "master"},
			"Memory": {"maxmemory_policy": "noeviction", "maxmemory": "1000", "used_memory": "100"},
		}
		info[c.section][c.field] = c.value
		hook.After(func(cmd redis.Cmder) error {
			if of, is := cmd.(*redis.InfoCmd); is {
				of.SetVal(info)
			}
			return nil
		})
		d := &doctor{node: rdb.(*redis.Client)}
		redistest.Must(t, d.server(t.Context()))
		if len(d.findings) != 2 || !has(d.findings, c.level, c.what, c.text) {
			t.Errorf("%s %s: %+v, want %s: %s", c.field, c.value, d.findings, c.level, c.text)
		}
	}
}

// What a Redis says of its memory: a policy that evicts may do no harm as long as there is no limit, and one that is
// full refuses writes.
func TestServer_memory(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartReal(t).Client(t)
	for _, c := range [][4]string{{"allkeys-lru", "0", Note, "were there a maxmemory"}, {"noeviction", "0", Fine,
		"is noeviction"}, {"noeviction", "1kb", Bad, "Redis is full"}} {
		redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", c[0]).Err())
		redistest.Must(t, rdb.ConfigSet(t.Context(), "maxmemory", c[1]).Err())
		all, err := Examine(t.Context(), rdb, redistest.Name(t), nil)
		if err != nil || !has(all, c[2], "eviction", c[3]) || !has(all, Fine, "rights", "") {
			t.Errorf("%v: %+v, %v", c, all, err)
		}
	}
}

// Every command that a script or the engine sends is tried.
func TestTrials(t *testing.T) {
	t.Parallel()
	tried := []string{"multi", "exec"} // of go-redis, not of ours
	for trial := range strings.SplitSeq(trials, ";") {
		tried = append(tried, strings.Fields(trial)[0])
	}
	files, err := filepath.Glob("../*/lua/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`call\('(\w+)'`)
	for _, f := range files {
		source, err := os.ReadFile(f)
		redistest.Must(t, err)
		for _, m := range call.FindAllStringSubmatch(string(source), -1) {
			if !slices.Contains(tried, strings.ToLower(m[1])) {
				t.Errorf("%s is called by %s, and not tried", m[1], f)
			}
		}
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
	}{{"zadd", 0, "clock", "from this machine's"}, {"hgetall", 1, "rights", "each of"}, {"scan", 2, "rights", "each of"},
		{"smembers", 0, "rights", "each of"}} {
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
		all, err := Examine(t.Context(), rdb, prefix, &automutex.Config{Prefix: prefix,
			Rules: []automutex.Rule{{Task: "pay"}}})
		if !has(all, Fine, c.what, c.text) || !errors.Is(err, lock.ErrBackend) {
			t.Errorf("%s: %v; want %s %q in %+v", c.command, err, c.what, c.text, all)
		}
	}
}

// Rules with a mistake are refused.
func TestExamine_refuses(t *testing.T) {
	t.Parallel()
	_, err := Examine(t.Context(), redistest.Real(t).Client(t), redistest.Name(t),
		&automutex.Config{Rules: []automutex.Rule{{}}})
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
		d := &doctor{node: s.Client(t).(*redis.Client)}
		redistest.Must(t, d.clock(t.Context()))
		if !has(d.findings, level, "clock", "from this machine's") {
			t.Errorf("off by %s: %+v", off, d.findings)
		}
	}
}

// Rules that fit together, or make no one set, are found in what Guards say.
func TestFleet(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	say := func(prefix string, rules ...automutex.Rule) {
		self := fleet.Process{Owner: "host:1", Rules: inspect.Describe(rules)}
		go fleet.Announce(t.Context(), rdb, prefix, func() fleet.Process { return self }, func(string) {})
	}
	say("shop", automutex.Rule{Task: "sync:eu"}, automutex.Rule{Task: "sync:us"})
	for _, scope := range []string{"", "shared"} {
		say("exclude", automutex.Rule{Name: "rule of " + scope, Task: "x", Scope: scope})
	}
	said := func(prefix string) int64 { return rdb.HLen(t.Context(), fleet.Key(prefix)).Val() }
	redistest.Eventually(t, time.Minute, func() bool { return said("shop")+said("exclude") == 3 }, "all say")
	_, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("x", nil))
	redistest.Must(t, err)
	for prefix, want := range map[string]Finding{
		"shop": {Fine, "rules", "1 Guard; what they run fits together"}, "exclude": {Note, "rules", "make no one set"},
		"other": {Note, "rules", "no Guard says which it runs"},
	} {
		all, err := Examine(t.Context(), rdb, prefix, nil)
		if err != nil || !has(all, want.Level, want.What, want.Text) || count(all) != 0 {
			t.Errorf("%s: %+v, %v", prefix, all, err)
		}
	}
	for text, rules := range map[string][]automutex.Rule{
		"what they run fits together": {{Task: "sync:eu"}, {Task: "sync:us"}}, "no rule sync:us, which": {{Task: "sync:eu"}},
		"limit 2, lease 30s in the file, and limit 1": {{Task: "sync:us", Limit: 2}}, "it runs mail, which": {{Task: "mail"}},
	} {
		all, err := Examine(t.Context(), rdb, "shop", &automutex.Config{Rules: rules})
		if err != nil || !strings.Contains(fmt.Sprint(all), text) {
			t.Errorf("a file with %+v: no %q in %+v, %v", rules, text, all, err)
		}
	}
}

// Of many blocked keys, and of many reasons why tasks have no key, some are named.
func TestExamine_many(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	rdb, prefix := s.Client(t), redistest.Name(t)
	e := engine.New(engine.Options{Client: rdb, Prefix: prefix})
	t.Cleanup(e.Close)
	for i := range 2 {
		key, note := engine.Ref{Key: e.Key("orders", fmt.Sprint(i)), Limit: 1, Ordered: true},
			fmt.Sprintf("default/%s-%d", prefix, i)
		ticket, _, _, err := e.Stamp(t.Context(), key, note, "n", 0, 0)
		redistest.Must(t, err)
		place := engine.Place{Nonce: "n", Ticket: ticket, Most: -1}
		lease, err := e.Take(t.Context(), &engine.Request{Ref: key, Note: note, TTL: time.Minute, Place: &place})
		redistest.Must(t, err)
		lease.End(engine.OutcomeHeld)
		_, err = lease.Release(t.Context(), engine.Ending{})
		redistest.Must(t, err)
	}
	client := asynq.NewClientFromRedisClient(rdb)
	var rules []automutex.Rule
	for i := range 12 {
		rules = append(rules, automutex.Rule{Task: fmt.Sprintf("%s-%d", prefix, i), On: []string{"id"}})
		for range i + 1 {
			_, err := client.Enqueue(asynq.NewTask(rules[i].Task, []byte(`{}`)), asynq.Queue(prefix))
			redistest.Must(t, err)
		}
	}
	all, err := Examine(t.Context(), rdb, prefix, &automutex.Config{Prefix: prefix, Rules: rules})
	redistest.Must(t, err)
	if count(all) != 10+1 || !has(all, Bad, "order", "; automutex blocked lists all") ||
		!has(all, Bad, "keys", "(12 tasks)") || has(all, Bad, "keys", "(2 tasks)") {
		t.Errorf("%+v", all)
	}
}
