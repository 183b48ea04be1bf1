package fleet

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = 30 * time.Second

func raw(text string) json.RawMessage { return json.RawMessage(text) }

func rule(task, scope, limit string) Rule {
	return Rule{Name: task, Task: task, Scope: scope, Limit: raw(limit), TTL: Duration(30 * time.Second), Busy: raw(`"park"`)}
}

// start begins an Announcer that writes at once; heard gets what it hears.
func start(t *testing.T, rdb redis.UniversalClient, prefix, owner string, heard chan string, rules ...Rule) *Announcer {
	t.Helper()
	a := New(rdb, prefix, Process{Owner: owner, Rules: rules}, func() []string { return []string{owner + "'s"} }, func(d []Difference) { heard <- d[0].String() })
	a.firstAfter = 0
	a.Begin()
	a.Begin()
	t.Cleanup(func() { a.Close(context.Background()) })
	redistest.Eventually(t, patience, func() bool { return rdb.HExists(t.Context(), a.key, a.self.ID).Val() }, "it says what it is")
	return a
}

// What Guards write is read again until they end. The one that comes later hears that its rules differ, once.
func TestFleet(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, prefix, heard := t.Context(), s.Client(t), redistest.Name(t), make(chan string, 9)
		start(t, rdb, prefix, "a:1", heard, rule("report", "", "1"))
		start(t, rdb, prefix, "b:2", heard, rule("report", "", "1"), rule("mail", "", "1"))
		last := start(t, rdb, prefix, "c:3", heard, rule("report", "", "5"))
		const want = `rules for scope report differ: <type>, park, limit 5, lease 30s in c:3, and <type>, park, limit 1, lease 30s in a:1; deploy one version`
		if got := <-heard; !strings.Contains(got, want) || len(heard) > 0 {
			t.Errorf("heard %q, want %q; and %d more", got, want, len(heard))
		}
		other := start(t, rdb, prefix, "d:4", heard, rule("other", "", "1"))
		other.hear() // as its goroutine does
		other.Close(ctx)
		if len(heard) > 0 {
			t.Errorf("one that runs something else hears %q", <-heard)
		}
		all, err := Read(ctx, rdb, prefix)
		if err != nil || len(all) != 3 || all[0].Owner != "a:1" || all[0].Serves[0] != "a:1's" || time.Since(all[0].Seen).Abs() > time.Minute {
			t.Fatalf("%+v, %v", all, err)
		}
		if rules := Rules(all); len(rules) != 2 || rules[0].LimitShown() != "1" || rules[1].Name != "mail" {
			t.Errorf("rules by name: %v", rules)
		}
		if ttl := rdb.PTTL(ctx, last.key).Val(); ttl <= every || ttl > keepFor {
			t.Errorf("it stays for %s", ttl)
		}
		last.Close(ctx)
		if all, err := Read(ctx, rdb, prefix); err != nil || len(all) != 2 {
			t.Errorf("after the end of one: %+v, %v", all, err)
		}
	})
}

// What is old, or is none of ours, does not count, and goes when the next Guard begins.
func TestRead_whatDoesNotCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, prefix := t.Context(), s.Client(t), redistest.Name(t)
		old, _ := json.Marshal(Process{Owner: "gone:1", Seen: rdb.Time(ctx).Val().Add(-keepFor - time.Second)})
		rdb.HSet(ctx, Key(prefix), "old", old, "odd", "no JSON", "else", `{"owner": 7}`)
		if all, err := Read(ctx, rdb, prefix); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		start(t, rdb, prefix, "next:2", nil, rule("report", "", "1"))
		redistest.Eventually(t, patience, func() bool { return rdb.HLen(ctx, Key(prefix)).Val() == 1 }, "the next Guard alone")
		rdb.Set(ctx, Key(prefix), "text", time.Minute)
		if _, err := Read(ctx, rdb, prefix); err == nil {
			t.Error("a key of another type is no error")
		}
	})
}

// Where Redis hangs, Close waits for a moment and no longer. After Close, Begin begins nothing.
func TestAnnouncer_Close(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	proxy := redistest.NewProxy(t, s.Addr())
	rdb := proxy.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout, o.MaxRetries = 5*time.Minute, -1 })
	a := start(t, rdb, redistest.Name(t), "a:1", nil)
	proxy.Blackhole(true)
	a.Close(t.Context())
	select {
	case <-a.done:
		t.Error("Close has waited for Redis")
	default:
	}
	proxy.Heal() // what was sent is lost, and what is sent now is not
	proxy.Cut()
	<-a.done
	b := New(s.Client(t), redistest.Name(t), Process{}, nil, nil)
	b.firstAfter = 0
	b.Close(t.Context())
	select {
	case <-b.done:
	default:
		t.Error("there is something to wait for")
	}
	b.Begin()
	var none *Announcer
	none.Begin()
	none.Close(t.Context())
}

// Rules for one task have to be equal, those for two tasks of one scope to agree on its keys, and no others on anything.
func TestDifferences(t *testing.T) {
	t.Parallel()
	skips, other := rule("a", "s", "1"), rule("b", "s", "1")
	skips.Busy, other.Busy, other.On = raw(`"skip"`), raw(`{"retry_in":"5s"}`), []string{"id"}
	field := rule("b", "s", `{"field":"max","default":2}`)
	goesOn, full := rule("b", "s", "1"), rule("b", "s", "1")
	goesOn.OnArchive, full.MaxQueued = "continue", 5
	for what, c := range map[string]struct {
		one, other Process
		want       string // in the text; empty: they agree
	}{
		"equal":             {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{rule("a", "s", "1")}}, ""},
		"another policy":    {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{skips}}, "s, park, limit 1, lease 30s in"},
		"two of one task":   {Process{Rules: []Rule{rule("b", "s", "1"), other}}, Process{Rules: []Rule{rule("b", "s", "1"), other}}, ""},
		"two tasks":         {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{other}}, ""},
		"two tasks, limits": {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{field}}, "differ: limit 1, lease 30s in , and limit <max> (default 2), lease 30s in"},
		"two ends":          {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{goesOn}}, "lease 30s, on archive continue in"},
		"two bounds":        {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{full}}, "lease 30s, at most 5 queued in"},
		"two scopes":        {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{rule("b", "", "2")}}, ""},
		"one hashes":        {Process{Rules: []Rule{rule("a", "s", "1")}}, Process{Rules: []Rule{rule("a", "s", "1")}, Hashed: true}, "keys hashed"},
	} {
		got := Differences([]Process{c.one, c.other})
		if len(got) > 1 || len(got) == 0 != (c.want == "") || c.want != "" && !strings.Contains(got[0].String(), c.want) {
			t.Errorf("%s: %v, want %q", what, got, c.want)
		}
	}
}
