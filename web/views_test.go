package web

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func keyPath(key string) string { return "/key?key=" + url.QueryEscape(key) }

// The list shows the most contended key first, with its holder, its task and its rule.
func TestKeys_byContention(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{AsynqmonPath: "/asynq/", Rules: []automutex.Rule{{Task: "report:", Scope: "report", On: []string{"tenant"}}, {Task: "mail:"}}})
		quiet := v.locker.Mutex("mail:welcome")
		busy := v.locker.Mutex("report", lock.Parts("acme"), lock.Note("crit%25ical/id-7"))
		v.hold(quiet)
		v.hold(busy)
		v.wait(busy)
		v.wait(busy)
		v.find("/keys", "<b>2</b> in line").want(200,
			"<b>2</b> locks, <b>2</b> held", "report|acme", "worker-1:4242", `<a href="/asynq/queues/crit%25ical/tasks/id-7">crit%ical/id-7</a>`,
			`data-name="Rule"><bdi>report:</bdi></td>`, `data-name="Rule"><bdi>mail:</bdi></td>`)
		body := v.get("/keys").body
		if strings.Index(body, "report|acme</bdi>") > strings.Index(body, "mail:welcome</bdi>") {
			t.Error("the key with a line does not come before the one without")
		}
	})
}

// A filter passes the keys that it names and no others, and says so when it is wrong.
func TestKeys_filters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{Rules: []automutex.Rule{{Task: "a"}, {Task: "b", Name: "second"}}})
		a, b := v.locker.Mutex("a", lock.Parts("x/1")), v.locker.Mutex("b")
		v.hold(a)
		v.hold(b)
		v.wait(b)
		v.find("/keys", "<b>1</b> in line")
		for _, c := range []struct {
			query      string
			isA, isB   bool
			alsoExpect string
		}{
			{"", true, true, ""},
			{"?q=x/1", true, false, `value="x/1"`},
			{"?q=a|*1", true, false, ""},
			{"?q=nothing", false, false, "No lock passes the filter."},
			{"?rule=second", false, true, ""},
			{"?rule=sec", false, false, ""},
			{"?waiting=1", false, true, ""},
			{"?longer=1h", false, false, ""},
			{"?longer=0s", true, true, ""},
			{"?longer=soon", true, true, "is not a duration"},
			{"?longer=-1s", true, true, "is not a duration"},
			{"?page=7", false, false, ""},
			{"?page=9223372036854775807", false, false, ""},
			{"?page=x", true, true, ""},
		} {
			got := v.get("/keys"+strings.ReplaceAll(c.query, "|", "%7C")).want(200, c.alsoExpect)
			if isA, isB := strings.Contains(got.body, "<bdi>a|x/1</bdi></a>"), strings.Contains(got.body, "<bdi>b</bdi></a>"); isA != c.isA || isB != c.isB {
				t.Errorf("%q shows a: %v, b: %v; want %v, %v", c.query, isA, isB, c.isA, c.isB)
			}
		}
	})
}

// A long list comes in pages that leave nothing out.
func TestKeys_pages(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	v := serve(t, s, Options{RootPath: "/locks"})
	const locks = 2*perPage + 3
	for i := range locks {
		v.hold(v.locker.Mutex(fmt.Sprintf("lock-%03d", i)))
	}
	v.find("/locks/keys", fmt.Sprintf("<b>%d</b> locks", locks))
	seen := map[string]bool{}
	next := regexp.MustCompile(`<a href="([^"]*)" rel="next">`)
	name := regexp.MustCompile(`<bdi>(lock-\d+)</bdi></a>`)
	pages := 0
	for path := "/locks/keys"; path != ""; pages++ {
		body := v.get(path).want(200).body
		for _, m := range name.FindAllStringSubmatch(body, -1) {
			seen[m[1]] = true
		}
		path = ""
		if m := next.FindStringSubmatch(body); m != nil {
			path = m[1]
		}
	}
	if len(seen) != locks || pages != 3 {
		t.Errorf("%d of %d locks on %d pages, want all on 3", len(seen), locks, pages)
	}
}

// A key that is held and closed by its rate shows both, in the list and on its own page.
func TestKeys_heldAndClosed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{})
		m := v.locker.Mutex("api", lock.Rate(1, time.Hour, 1))
		v.hold(m)
		v.find("/keys", "worker-1:4242").want(200, `<span class="tag">rate, `)
		v.get(keyPath(m.Key())).want(200, "worker-1:4242", "Nobody starts: rate")
	})
}

// One lock has its holder with a deadline, and its line in order.
func TestKey_holdersAndLine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{})
		m := v.locker.Mutex("room", lock.Parts("7"))
		v.get(keyPath(m.Key())).want(200, "Nobody holds this lock.", "Nobody is in line.")
		v.hold(v.locker.Mutex("room", lock.Parts("7"), lock.Note("default/task-1")))
		v.wait(v.locker.Mutex("room", lock.Parts("7"), lock.Note("default/task-2")))
		v.wait(v.locker.Mutex("room", lock.Parts("7"), lock.Note("default/task-3")))
		a := v.get(keyPath(m.Key())).want(200, "<dt>Held</dt><dd>1</dd>", "<dt>In line</dt><dd>2</dd>", "default/task-1", "<time datetime=")
		if first, second := strings.Index(a.body, "default/task-2"), strings.Index(a.body, "default/task-3"); first < 0 || second < first {
			t.Error("the line is not in order")
		}
	})
}

// What is no key of a lock is refused in words, not with an empty page.
func TestKey_refusesOtherKeys(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	for _, key := range []string{"", "asynq:{default}:pending", v.prefix + ":{}", v.prefix + ":{a}:pool", v.prefix + ":{a b}", "a b", "control", strings.Repeat("x}", 2500)} {
		v.get(keyPath(key)).want(400, "This is no key of a lock")
		v.get("/live?view=key&key=" + url.QueryEscape(key)).want(404)
	}
}

// With HashKeys the page shows hashes, and neither values nor the secret.
func TestKeys_hashed(t *testing.T) {
	t.Parallel()
	const secret = "sixteen bytes and more"
	rules := []automutex.Rule{{Task: "pay", On: []string{"account"}}}
	v := serve(t, redistest.Mini(t), Options{HashKeys: secret, Rules: rules})
	key := keys.HashedKey(secret, v.prefix, "pay", "s:DE0012345")
	m := inner.ByKey(v.locker, key)
	v.hold(m)
	v.find("/keys", "pay|~").want(200, `data-name="Rule"><bdi>pay</bdi></td>`).without("DE0012345", secret)
	v.get(keyPath(key)).want(200, "pay|~", "rule <bdi>pay</bdi>").without("DE0012345", secret)
}

// A key that another program has written to is told from a lock, with what to do.
func TestKey_ofAnotherProgram(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	key := v.locker.Mutex("report").Key()
	redistest.Must(t, v.rdb.RPush(t.Context(), key, "x").Err())
	v.get(keyPath(key)).want(200, "Another program has written to the key", "until you DEL it in Redis", html.EscapeString(strconv.Quote(key)))
}

// A page whose Redis does not answer says so and comes back with it.
func TestKeys_outage(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	v := serve(t, s, Options{})
	v.find("/keys", "No lock is held or waited for.")
	s.Stop(t)
	v.find("/keys", `class="error"`).want(200, "; the page tries again").without("EOF")
	v.get(keyPath(v.prefix+":{a}")).want(200, `class="error"`, "; the page tries again")
	s.Start(t)
	redistest.Eventually(t, patience, func() bool {
		return !strings.Contains(v.get("/keys").body, `class="error"`)
	}, "the page comes back with Redis")
}

// A long line is shown as far as asynq tells the states of its tasks, and counted.
func TestKey_longLine(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	m := v.locker.Mutex("report")
	v.hold(m)
	for range mostShown + 5 {
		v.wait(m)
	}
	a := v.get(keyPath(m.Key())).want(200, fmt.Sprintf("<dt>In line</dt><dd>%d</dd>", mostShown+5), "and 5 more</p>")
	if n := strings.Count(a.body, `data-name="Waits as"`); n != mostShown {
		t.Errorf("%d rows, want %d", n, mostShown)
	}
}

// The page takes nothing: a lock that it shows is as free as before.
func TestKey_takesNothing(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	m := v.locker.Mutex("free")
	v.find("/keys", "No lock is held")
	v.get(keyPath(m.Key())).want(200)
	if n, err := v.rdb.Exists(context.Background(), m.Key()).Result(); err != nil || n != 0 {
		t.Errorf("%d keys, %v; want none", n, err)
	}
}

// Each rule stands with what it says and with what its locks do now.
func TestRules(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{RootPath: "/locks", Access: func(*http.Request) Access { return AccessOperate }, Rules: []automutex.Rule{
			{Name: "reports", Task: "report:", Scope: "report", On: []string{"tenant"}, Limit: 3, TTL: time.Minute, Busy: automutex.Park},
			{Task: "mail:", Limit: 1, TTL: 90 * time.Second, Wait: time.Hour, Busy: automutex.RetryIn(5 * time.Minute), Cooldown: 2 * time.Hour, MaxHold: 10 * time.Minute, Rate: automutex.Rate{Starts: 100, Per: time.Minute}},
			{Task: "reindex"},
		}})
		m := v.locker.Mutex("report", lock.Parts("acme"))
		v.hold(m)
		v.wait(m)
		v.hold(v.locker.Mutex("mail:welcome"))
		a := v.find("/locks/rules", "report|acme").want(200, "<bdi>reports</bdi>", "report|&lt;tenant&gt;", ">1m<", "park", "&lt;type&gt;", "(1)<br>", "Nothing is paused or limited.",
			">1m30s<", ">1h<", "retry in 5m<", "cooldown 2h<", "held for at most 10m<", "rate 100 per 1m, burst 1<").without("m0s")
		if !strings.Contains(a.body, "action=pause&amp;target=mail%3a&amp;") || !strings.Contains(a.body, "action=pause&amp;target=report") || !strings.Contains(a.body, "action=pause&amp;target=reindex") {
			t.Errorf("a rule cannot be paused: one for all types that begin so, one with a scope, or one for a type:\n%s", a.body)
		}
	})
}

// A pause, its end, and a limit reach the workers, stand on the page, and go to Audit.
func TestDo_controls(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		seen := &audit{}
		v := serve(t, s, Options{
			RootPath: "/locks", Audit: seen.note, User: func(*http.Request) string { return "ann" }, Access: func(*http.Request) Access { return AccessOperate },
			Rules: []automutex.Rule{{Task: "report", Scope: "report", On: []string{"tenant"}}},
		})
		ctx := context.Background()
		list := func() []lock.Control {
			all, err := v.locker.Controls().List(ctx)
			redistest.Must(t, err)
			return all
		}
		v.get("/locks/do?action=pause&target=report").want(200, "Pause report?", "within two seconds", `name="for"`)
		form := func(fields ...string) url.Values {
			f := url.Values{"why": {"the API is down"}}
			for i := 0; i < len(fields); i += 2 {
				f.Set(fields[i], fields[i+1])
			}
			return f
		}
		sent := v.post("/locks/do", form("action", "pause", "target", "report", "for", "1h")).want(303)
		v.get(sent.header.Get("Location")).want(200, "report is paused for 1h.", "; ordered by ann at ", "the API is down", "resume")
		if all := list(); len(all) != 1 || !all[0].Paused || all[0].PausedUntil.IsZero() || all[0].Why != "the API is down" || all[0].By != "ann" {
			t.Errorf("controls: %+v", all)
		}
		key := keys.Key(v.prefix, "report", "acme")
		v.get("/locks"+keyPath(key)).want(200, "paused until ", "; ordered by ann at ", "report is paused for 1h.", "Resume its scope…").without("action=resume&amp;target=report%7cacme")
		v.post("/locks/do", form("action", "limit", "target", "report|acme", "limit", "5")).want(303)
		v.get("/locks"+keyPath(key)).want(200, "limited to 5", "report|acme is limited to 5 at once.")
		v.post("/locks/do", form("action", "resume", "target", "report")).want(303)
		v.post("/locks/do", form("action", "limit", "target", "report|acme", "limit", "0")).want(303)
		if all := list(); len(all) != 0 {
			t.Errorf("controls: %+v", all)
		}
		if a := seen.last(t); a.Do != "limit" || a.Target != "report|acme" || a.Err != nil || a.By != "ann" {
			t.Errorf("Audit got %+v", a)
		}
		v.get("/locks/do?action=pause").want(400, "Name a target")
		if all := list(); len(all) != 0 {
			t.Errorf("controls: %+v", all)
		}
	})
}

// A target that is paused and limited stands on the page with who ordered each, and why.
func TestRules_pauseAndLimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{RootPath: "/locks", Access: func(*http.Request) Access { return AccessOperate }, Rules: []automutex.Rule{
			{Task: "report", Scope: "report", On: []string{"tenant"}},
		}})
		controlsOf := func(owner string) *lock.Controls {
			l := lock.New(s.Client(t), lock.Options{Prefix: v.prefix, Owner: owner})
			t.Cleanup(func() { _ = l.Close() })
			return l.Controls()
		}
		redistest.Must(t, controlsOf("ann").Pause(t.Context(), "report", time.Time{}, "repair"))
		redistest.Must(t, controlsOf("bob").SetLimit(t.Context(), "report", 7, "a larger plan"))
		for _, path := range []string{"/locks/rules", "/locks" + keyPath(keys.Key(v.prefix, "report", "acme"))} {
			a := v.find(path, "bob").want(200)
			for _, pattern := range []string{
				`<bdi>report</bdi>(</b>)?:? paused until somebody resumes it; ordered by ann at \d\d:\d\d: repair`,
				`<bdi>report</bdi>(</b>)?:? limited to 7; ordered by bob at \d\d:\d\d: a larger plan`,
			} {
				if !regexp.MustCompile(pattern).MatchString(a.body) {
					t.Errorf("%s: no %s in\n%s", path, pattern, a.body)
				}
			}
		}
		v.find("/locks/rules", "bob").want(200, `<span class="tag order">paused</span>`, `7 <b class="order">by an operator</b>`)
	})
}

// An operator's limit is not in force for ordered keys, so their rule does not show it.
func TestRules_limitOfOrderedKeys(t *testing.T) {
	t.Parallel()
	orders := []lock.Control{{Target: "report", Limit: 7}}
	for ordered, limited := range map[bool]bool{false: true, true: false} {
		rule := fleet.Rule{Name: "report", Task: "report", InOrder: ordered}
		if r := newRuleRow(rule, orders); r.Limited != limited || (r.Limit == "7") != limited {
			t.Errorf("in order: %v: limit %s, by an operator: %v", ordered, r.Limit, r.Limited)
		}
	}
}

// Keys have the hash of a scope of more than 200 bytes. The page knows the rule of such a key, and shows its pause, for a
// Scope and for a task type.
func TestRules_longScope(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	long := strings.Repeat("s", 300)
	v := serve(t, s, Options{Access: func(*http.Request) Access { return AccessOperate }, Rules: []automutex.Rule{
		{Name: "by scope", Task: "report", Scope: long, On: []string{"id"}},
		{Name: "by type", Task: "t" + long, On: []string{"id"}},
	}})
	for name, scope := range map[string]string{"by scope": long, "by type": "t" + long} {
		m := v.locker.Mutex(scope, lock.Parts("7"))
		v.hold(m)
		v.get(keyPath(m.Key())).want(200, "rule <bdi>"+name+"</bdi>")
		v.get("/do?action=pause&target=" + url.QueryEscape(scope)).want(200).without("anyway")
		redistest.Must(t, v.locker.Controls().Pause(t.Context(), scope, time.Time{}, ""))
		v.find("/rules", `<bdi>`+name+`</bdi></a> <span class="tag order">paused</span>`)
	}
}

// fleetOf writes processes as they write themselves.
func fleetOf(t testing.TB, rdb redis.UniversalClient, prefix string, n int, change ...func(*fleet.Process, *fleet.Rule)) {
	t.Helper()
	now, fields := rdb.Time(t.Context()).Val(), map[string]any{}
	for i := range n {
		rules := []fleet.Rule{{Name: "report", Task: "report", On: []string{"tenant"}, Limit: json.RawMessage("1"), TTL: fleet.Duration(30 * time.Second), Busy: json.RawMessage(`"park"`)}}
		p := fleet.Process{ID: fmt.Sprintf("process-%d", i), Owner: fmt.Sprintf("<worker>-%d:1", i), Started: now, Seen: now, Rules: rules}
		for _, f := range change {
			f(&p, &rules[0])
		}
		text, err := json.Marshal(p)
		redistest.Must(t, err)
		fields[p.ID] = text
	}
	redistest.Must(t, rdb.HSet(t.Context(), fleet.Key(prefix), fields).Err())
}

// The page knows the rules that workers say they run: it names them in each view, and finds the target that was meant.
func TestFleet(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{Access: func(*http.Request) Access { return AccessOperate }})
		fleetOf(t, v.rdb, v.prefix, 101)
		m := v.locker.Mutex("report", lock.Parts("acme"), lock.Note("default/task-7"))
		v.hold(m)
		v.find("/keys", `data-name="Rule"><bdi>report</bdi>`)
		v.get("/keys?q=task-7").want(200, "report|acme")
		v.get("/keys?q=worker-1").want(200, "report|acme")
		v.get("/keys?q=task-8").want(200, "No lock passes the filter.")
		v.get("/rules").want(200, "&lt;type&gt;|&lt;tenant&gt;", "park")
		v.get("/").want(200, "Most waited for", "report|acme")
		v.get(keyPath(m.Key())).want(200, "rule <bdi>report</bdi>").without("Resume")

		// A target that nobody has is asked about, and refused without the tick.
		v.get("/do?action=pause&target=reprot").want(200, "No rule has the scope of reprot. Nor is there such a lock now.", `target=report&amp;`, `name="anyway"`)
		form := url.Values{"action": {"pause"}, "target": {"reprot"}}
		v.post("/do", form).want(http.StatusUnprocessableEntity, "Did you mean")
		if all, err := v.locker.Controls().List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("controls: %v, %v", all, err)
		}
		form.Set("anyway", "1")
		v.post("/do", form).want(http.StatusSeeOther)
		v.get("/do?action=pause&target=report").want(200, "Pause report?").without("anyway")
	})
}

// fail makes the named commands fail with an error.
func fail(hook *redistest.FailHook, err error, names ...string) {
	hook.Before(func(cmd redis.Cmder) error {
		if slices.Contains(names, cmd.Name()) {
			return err
		}
		return nil
	})
}

// A view shows why Redis refused a command that it needs.
func TestViews_refusedCommand(t *testing.T) {
	t.Parallel()
	const refused = "NOPERM this user has no permissions"
	for name, c := range map[string]struct {
		path, command string
		before        func(*testing.T, *site)
		error         error
		want          string
	}{
		"key, time":       {"/key?key=a", "time", func(t *testing.T, v *site) { t.Helper(); v.hold(v.locker.Mutex("a")); v.wait(v.locker.Mutex("a")) }, redistest.ReplyError(refused), refused},
		"keys, closed":    {"/keys", "scan", nil, io.EOF, "Redis has closed the connection; the page tries again"},
		"overview, fleet": {"/", "zrevrangebyscore", nil, redistest.ReplyError(refused), "Pauses and limits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &redistest.FailHook{}
			v := serve(t, redistest.Real(t), Options{})
			v.page.rdb.AddHook(hook)
			if c.before != nil {
				c.before(t, v)
			}
			fail(hook, c.error, c.command)
			t.Cleanup(func() { hook.Before(nil) })
			v.get(c.path).want(200, c.want)
		})
	}
}

// An action that Redis refuses has failed, with the reason, and the lock is as it was.
func TestDo_refusedByRedis(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]url.Values{
		"break of a holder": {"action": {"break"}, "token": {"some"}},
		"break of a gate":   {"action": {"break"}, "gate": {"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, seen := operator(t, redistest.Real(t))
			hook := &redistest.FailHook{}
			v.page.rdb.AddHook(hook)
			m := v.locker.Mutex("a")
			v.hold(m)
			fail(hook, redistest.ReplyError("NOPERM no rights"), "eval", "evalsha", "script")
			t.Cleanup(func() { hook.Before(nil) })
			form.Set("key", m.Key())
			v.post("/locks/do", form).want(502, form.Get("action")+" failed: ", "NOPERM no rights")
			hook.Before(nil)
			if seen.last(t).Err == nil {
				t.Error("Audit was told of a success")
			}
			if held, err := m.Locked(t.Context()); err != nil || !held {
				t.Errorf("held: %v, %v", held, err)
			}
		})
	}
}

// A key of another program is named where an operator asks about it, and keeps orders from being given.
func TestDo_keyOfAnotherProgram(t *testing.T) {
	t.Parallel()
	v, _ := operator(t, redistest.Real(t))
	a := v.locker.Mutex("a").Key()
	redistest.Must(t, v.rdb.RPush(t.Context(), a, "x").Err())
	redistest.Must(t, v.rdb.Set(t.Context(), v.prefix+":{control}", "x", time.Minute).Err())
	v.get("/locks/do?action=break&key="+url.QueryEscape(a)).want(http.StatusBadGateway, "Another program has written to the key", "Nothing was done.")
	v.post("/locks/do", url.Values{"action": {"resume"}, "target": {"b"}}).want(502, "resume failed: ", "something else than controls is stored")
	v.get("/locks/key?key=b").want(200, "resume: failed: ")
}

// A form that cannot be read does nothing, and a long reason is cut.
func TestDo_hostileForms(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Mini(t))
	v.do(http.MethodPost, "/locks/do", strings.NewReader("key=%zz"), func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}).want(400, "The form could not be read. Nothing was done.")
	v.post("/locks/do", url.Values{"action": {"sweep"}, "why": {strings.Repeat("é", maxWhy+1)}}).want(303)
	if why := seen.last(t).Why; why != strings.Repeat("é", maxWhy) {
		t.Errorf("the reason is %q", why)
	}
}

// What a worker of hashed keys does is found, and its keys are not made up without the secret.
func TestKeys_hashedElsewhere(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.StartMini(t), Options{})
	fleetOf(t, v.rdb, v.prefix, 1, func(p *fleet.Process, _ *fleet.Rule) { p.Hashed = true })
	_, err := asynq.NewClientFromRedisClient(v.rdb).Enqueue(asynq.NewTask("report", nil), asynq.TaskID("task-1"))
	redistest.Must(t, err)
	v.get("/keys?q=task-1").want(200, "its keys are hashed, and the page does not have the secret")
}

// A paused lock, a lock with several holders and a rule that shares its scope are shown as such.
func TestViews_states(t *testing.T) {
	t.Parallel()
	rules := []automutex.Rule{{Name: "one", Task: "a", Scope: "shared"}, {Name: "two", Task: "other", Scope: "shared"}}
	v := serve(t, redistest.Mini(t), Options{Rules: rules, Access: func(*http.Request) Access { return AccessOperate }})
	v.hold(v.locker.Mutex("shared"))
	many := v.locker.Semaphore("many", 3)
	v.hold(many)
	v.hold(many)
	redistest.Must(t, v.hold(many).Cooldown(t.Context(), time.Hour))
	redistest.Must(t, v.locker.Controls().Pause(t.Context(), "many", time.Time{}, ""))
	v.find("/keys", "and 1 more").want(200, `<span class="tag order">paused</span>`)
	v.get("/keys?closed=1").want(200, ">many</bdi>").without(">shared</bdi>")
	v.get("/").want(200, "paused until somebody resumes it", "opens in ")
	v.get("/keys?rule=two").want(200, "<bdi>one, two</bdi>").without(">many</bdi>")
	v.get("/do?action=pause&target=many").want(200).without("Nor is there such a lock now.")
	v.hold(v.locker.Mutex("tenant", lock.Parts("x")))
	redistest.Eventually(t, patience, func() bool {
		return !strings.Contains(v.get("/do?action=pause&target=tenant").body, "Nor is there such a lock now.")
	}, "the scope of a lock is known")
	v.get("/do?action=pause&target=nobody").want(200, "Nor is there such a lock now.")
}

// While Redis hangs every view answers, says why it knows no more, and does not say that there is nothing: from the
// beginning, and after it knew something. When Redis answers again the page knows it.
func TestViews_redisHangs(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	v := serve(t, s, Options{Rules: []automutex.Rule{{Task: "pay", On: []string{"id"}}}, Access: func(*http.Request) Access { return AccessOperate }})
	v.page.within, v.page.orders.within, v.page.rules.within = usualBounds, 0, 0
	for range 2 {
		s.Pause(t)
		v.page.locks.forget()
		v.page.rules.forget()
		v.page.orders.forget()
		var viewers sync.WaitGroup
		for _, path := range []string{"/", "/keys?q=task-1", "/blocked", "/rules", keyPath(v.prefix + ":{a}")} {
			viewers.Go(func() {
				redistest.Eventually(t, patience, func() bool {
					a := v.get(path).want(200).without("deadline exceeded")
					return strings.Contains(a.body, "; the page tries again") && !strings.Contains(a.body, "No lock is held") && !strings.Contains(a.body, "Nothing is paused")
				}, "%s says that Redis does not answer", path)
			})
		}
		viewers.Go(func() { v.get("/do?action=pause&target=nobody").want(200, "Pause nobody?") })
		viewers.Go(func() {
			v.get("/do?action=break&key=a").want(http.StatusBadGateway, "Redis does not answer; reload to try again. Nothing was done.")
		})
		viewers.Wait()
		s.Resume(t)
		v.find("/keys", "No lock is held")
		v.find("/rules", "Nothing is paused")
	}
}

// A task is found by its ID, with and without its queue, wherever that is among the queues, and its keys are named.
func TestKeys_findsTask(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	client := asynq.NewClientFromRedisClient(s.Client(t))
	enqueue := func(queue int, task, payload string) {
		_, err := client.Enqueue(asynq.NewTask(task, []byte(payload)), asynq.Queue(fmt.Sprintf("q%02d", queue)), asynq.TaskID(fmt.Sprintf("%s-%d", task, queue)))
		redistest.Must(t, err)
	}
	for i := range mostQueues + 2 {
		enqueue(i, "mail", `{"to":"a"}`)
	}
	enqueue(0, "other", `{}`)
	enqueue(0, "wrong", `{}`)
	v := serve(t, s, Options{Rules: []automutex.Rule{{Task: "mail", On: []string{"to"}}, {Task: "wrong", On: []string{"to"}}}})
	last := fmt.Sprintf("q%02[1]d/mail-%[1]d", mostQueues+1)
	for search, want := range map[string]string{
		"mail-1": ": mail, pending in asynq; its key is", "q01/mail-1": "mail|a", last: "mail|a",
		"other-0": "no rule that the page knows gives it a key", "wrong-0": "field &#34;to&#34; is missing",
	} {
		v.get("/keys?q="+url.QueryEscape(search)).want(200, want)
	}
	for _, search := range []string{"mail-99", "mail-*", "a b c", "m", last[4:]} { // the last one: in a queue beyond those that are asked
		v.get("/keys?q=" + url.QueryEscape(search)).want(200).without("in asynq")
	}
}
