package fleet

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func rule(task, scope, limit string) Rule {
	return Rule{Name: task, Task: task, Scope: scope, Limit: limit, TTL: "30s", Busy: "park"}
}

// What Guards write is read again. The one that comes later hears that its rules differ, once.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, prefix := t.Context(), s.Client(t), redistest.Name(t)
		write := func(owner string, age time.Duration, rules ...Rule) {
			text, err := json.Marshal(Process{Owner: owner, Seen: time.Now().Add(-age), Rules: rules})
			redistest.Must(t, err)
			redistest.Must(t, rdb.HSet(ctx, Key(prefix), owner, text).Err())
		}
		write("gone:1", keepFor+time.Second, rule("report", "", "7"))
		redistest.Must(t, rdb.HSet(ctx, Key(prefix), "odd", "no JSON", "else", `{"owner": 7}`).Err())
		if all, err := Read(ctx, rdb, prefix); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		write("a:1", 0, rule("report", "", "1"))
		write("b:2", 0, rule("report", "", "1"), rule("mail", "", "1"))
		self, heard := Process{Owner: "c:3", Hashed: true, Rules: []Rule{rule("report", "", "5")}}, make(chan string, 9)
		until, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Announce(until, rdb, prefix, func() Process { return self }, func(how string) { heard <- how })
		}()
		const want = "scope report differs: limit 5, lease 30s, keys hashed in c:3, and limit 1, lease 30s in a:1; deploy " +
			"one version"
		if got := <-heard; !strings.Contains(got, want) {
			t.Errorf("heard %q, want %q", got, want)
		}
		hear(ctx, rdb, Key(prefix), Process{Owner: "d:4", Rules: []Rule{rule("other", "", "1")}},
			func(how string) { heard <- how })
		if len(heard) > 0 {
			t.Errorf("it is heard twice, or by one that runs something else: %q", <-heard)
		}
		all, err := Read(ctx, rdb, prefix)
		if err != nil || len(all) != 3 || all[0].Owner != "a:1" || !all[2].Hashed || time.Since(all[2].Seen).Abs() > keepFor {
			t.Fatalf("%+v, %v", all, err)
		}
		if rules := Rules(all); len(rules) != 2 || rules[0].Limit != "1" || rules[1].Name != "mail" {
			t.Errorf("rules by name: %v", rules)
		}
		stop()
		<-ended
		if n, ttl := rdb.HLen(ctx, Key(prefix)).Val(), rdb.PTTL(ctx, Key(prefix)).Val(); n != 2 || ttl <= 0 || ttl > keepFor {
			t.Errorf("%d fields stay for %s", n, ttl)
		}
		rdb.Set(ctx, Key(prefix), "text", time.Minute)
		if _, err := Read(ctx, rdb, prefix); err == nil {
			t.Error("a key of another type is no error")
		}
	})
}

// Rules of one name have to be equal, those of one scope to agree on its limit and lease, and no others on anything.
func TestDifferences(t *testing.T) {
	t.Parallel()
	skips, other, longer := rule("a", "s", "1"), rule("b", "s", "1"), rule("a", "s", "1")
	skips.Busy, other.Busy, other.On, longer.TTL = "skip", "retry in 5s", []string{"id"}, "1m"
	cools := rule("a", "s", "1")
	cools.Also = []string{"cooldown 1m"}
	goesOn := rule("b", "s", "1")
	goesOn.Shares = []string{"on archive continue"}
	of := func(r Rule) Process { return Process{Rules: []Rule{r}} }
	one := rule("a", "s", "1")
	hashes := of(one)
	hashes.Hashed = true
	for what, c := range map[string]struct {
		other Process
		want  string // in the text; empty: they agree
	}{
		"equal": {of(one), ""},
		"another policy": {of(skips),
			"rule a differs: s, park, limit 1, lease 30s in , and s, skip, limit 1, lease 30s in"},
		"a cooldown": {of(cools),
			"lease 30s, cooldown 1m in"},
		"another lease": {of(longer),
			"scope s differs: limit 1, lease 30s in , and limit 1, lease 1m in"},
		"two tasks": {of(other), ""},
		"two tasks, limits": {of(rule("b", "s", "2")),
			"scope s differs: limit 1, lease 30s in , and limit 2, lease 30s in"},
		"two ends": {of(goesOn),
			"lease 30s, on archive continue in"},
		"two scopes": {of(rule("b", "", "2")), ""},
		"one hashes": {hashes, "keys hashed"},
	} {
		got := Differences([]Process{of(one), c.other, c.other})
		if len(got) > 1 || len(got) == 0 != (c.want == "") || c.want != "" && !strings.Contains(got[0], c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
