package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
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
		v := serve(t, s, Options{AsynqmonPath: "/asynq/", Rules: []automutex.Rule{{Task: "report:", Scope: "report",
			On: []string{"tenant"}}, {Task: "mail:"}}})
		quiet := v.locker.Mutex("mail:welcome")
		busy := v.locker.Mutex("report", lock.Parts("acme"), lock.Note("crit%25ical/id-7"))
		v.hold(quiet)
		time.Sleep(50 * time.Millisecond) // longer, by any clock
		v.hold(busy)
		v.wait(busy)
		v.wait(busy)
		v.find("/keys", "<b>2</b> in line").want(200,
			"<b>2</b> locks, <b>2</b> held", "report|acme", "worker-1:4242",
			`<a href="/asynq/queues/crit%25ical/tasks/id-7">crit%ical/id-7</a>`,
			`data-name="Rule"><bdi>report:</bdi></td>`, `data-name="Rule"><bdi>mail:</bdi></td>`)
		for _, query := range []string{"", "?sort=key", "?sort=held", "?sort=ends"} {
			body := v.get("/keys" + query).body
			if strings.Index(body, "report|acme</bdi>") < strings.Index(body, "mail:welcome</bdi>") != (query == "") {
				t.Errorf("%q: another order", query)
			}
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
			if isA, isB := strings.Contains(got.body, "<bdi>a|x/1</bdi></a>"),
				strings.Contains(got.body, "<bdi>b</bdi></a>"); isA != c.isA || isB != c.isB {
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

// One lock has its holder with a deadline, and its line in order.
func TestKey_holdersAndLine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{})
		m := v.locker.Mutex("room", lock.Parts("7"))
		v.get(keyPath(m.Key())).want(200, "Nobody holds this lock.", "Nobody is in line.")
		client, err := automutex.NewClient(s.Client(t), asynq.NewClientFromRedisClient(s.Client(t)),
			automutex.Config{Rules: []automutex.Rule{{Task: "work", StartWithin: time.Hour}}})
		redistest.Must(t, err)
		second := redistest.Name(t)
		_, err = client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID(second),
			automutex.StartBy(time.Now().Add(90*time.Minute)))
		redistest.Must(t, err)
		v.hold(v.locker.Mutex("room", lock.Parts("7"), lock.Note("default/task-1")))
		v.wait(v.locker.Mutex("room", lock.Parts("7"), lock.Note("default/"+second)))
		v.wait(v.locker.Mutex("room", lock.Parts("7"), lock.Note("default/task-3")))
		a := v.get(keyPath(m.Key())).want(200, ", late in 1h", "<dt>Held</dt><dd>1</dd>", "<dt>In line</dt><dd>2</dd>",
			"default/task-1", "<time datetime=")
		if first, second := strings.Index(a.body, "default/"+second), strings.Index(a.body, "default/task-3"); first < 0 ||
			second < first {
			t.Error("the line is not in order")
		}
	})
}

// With HashKeys the page shows hashes, and neither values nor the secret.
func TestKeys_hashed(t *testing.T) {
	t.Parallel()
	const secret = "sixteen bytes and more"
	rules := []automutex.Rule{{Task: "pay", On: []string{"account"}}}
	v := onMini(t, Options{HashKeys: secret, Rules: rules})
	key := keys.HashedKey(secret, v.prefix, "pay", "s:DE0012345")
	v.hold(v.byKey(key))
	v.find("/keys", "pay|~").want(200, `data-name="Rule"><bdi>pay</bdi></td>`).without("DE0012345", secret)
	v.get(keyPath(key)).want(200, "pay|~", "rule <bdi>pay</bdi>").without("DE0012345", secret)

	// A worker's keys are not made up without the secret.
	v = serve(t, redistest.StartMini(t), Options{})
	fleetOf(t, v.rdb, v.prefix, 1, func(p *fleet.Process, _ *fleet.Rule) { p.Hashed = true })
	_, err := asynq.NewClientFromRedisClient(v.rdb).Enqueue(asynq.NewTask("report", nil), asynq.TaskID("task-1"))
	redistest.Must(t, err)
	v.get("/keys?q=task-1").want(200, "its keys are hashed, and the page does not have the secret")
}

// A long line is shown as far as asynq tells the states of its tasks, and counted.
func TestKey_longLine(t *testing.T) {
	t.Parallel()
	v := onReal(t, Options{})
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

// Each rule stands with what it says and with what its locks do now.
func TestRules(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{RootPath: "/locks", Access: operates,
			Rules: []automutex.Rule{
				{Name: "reports", Task: "report:", Scope: "report", On: []string{"tenant"}, Limit: 3, TTL: time.Minute,
					Busy: automutex.Park},
				{Task: "mail:", Limit: 1, TTL: 90 * time.Second, Wait: time.Hour, Busy: automutex.RetryIn(5 * time.Minute),
					Cooldown: 2 * time.Hour, MaxHold: 10 * time.Minute, Rate: automutex.Rate{Starts: 100, Per: time.Minute}},
				{Task: "reindex"},
			}})
		m, reindex := v.locker.Mutex("report", lock.Parts("acme")), v.locker.Mutex("reindex")
		v.hold(reindex)
		v.hold(m)
		v.wait(m)
		v.wait(reindex)
		v.wait(reindex)
		v.hold(v.locker.Mutex("mail:welcome"))
		v.hold(v.locker.Mutex("mail:bye"))
		a := v.find("/locks/rules", "report|acme").want(200, "<bdi>reports</bdi>", "report|&lt;tenant&gt;", ">1m<", "park",
			"&lt;type&gt;", "(1)<br>", "Nothing is paused or limited.",
			">1m30s<", ">1h<", "retry in 5m<", "cooldown 2h<", "held for at most 10m<",
			"rate 100 per 1m, burst 1<").without("m0s")
		for sort, first := range map[string]string{"held": "mail:", "line": "reindex"} {
			v.get("/locks/rules?sort="+sort).want(200, "live?view=rules&amp;sort="+sort+`"`, "from=rules%3fsort%3d"+sort,
				`aria-sort="descending"><button form="sort" name="sort" value="`+sort+`"`).begins("<bdi>" + first + "</bdi>")
		}
		for _, other := range []string{"", "?sort=nothing"} {
			v.get("/locks/rules"+other).want(200, `live?view=rules&amp;"`).without("aria-sort").begins("<bdi>reports</bdi>")
		}
		// Each rule can be paused: one for all types that begin so, one with a scope, and one for a type.
		for _, target := range []string{"mail%3a&amp;", "report", "reindex"} {
			a.want(200, "action=pause&amp;target="+target)
		}
	})
}

// A pause, its end, and a limit reach the workers, stand on the page with who ordered each and why, and go to Audit.
func TestDo_controls(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, seen := operator(t, s, automutex.Rule{Task: "report", Scope: "report", On: []string{"tenant"}})
		order := func(action, target string, more ...string) answer {
			t.Helper()
			form := url.Values{"action": {action}, "target": {target}, "why": {"the API is down"}}
			for i := 0; i < len(more); i += 2 {
				form.Set(more[i], more[i+1])
			}
			return v.follow(v.post("/locks/do", form))
		}
		at := "/locks" + keyPath(keys.Key(v.prefix, "report", "acme"))
		v.get("/locks/do?action=pause&target=report").want(200, "Pause report?", "within two seconds", `name="for"`)
		order("pause", "report", "for", "1h").want(200, "report is paused for 1h.", ", ordered by ann at ", "the API is down",
			"resume")
		if all := v.controls(); len(all) != 1 || !all[0].Paused || all[0].PausedUntil.IsZero() || all[0].By != "ann" ||
			all[0].Why != "the API is down" {
			t.Errorf("controls: %+v", all)
		}
		v.get(at).want(200, "paused until ", "Resume its scope…").without("action=resume&amp;target=report%7cacme")
		order("limit", "report", "limit", "7")
		order("rate", "report|acme", "rate", "100/1m burst 10").want(200,
			"report|acme is limited to 100 starts per 1m, burst 10.")
		v.get(at).want(200, "limited to 100 starts per 1m, burst 10, ordered by ann at ")
		order("rate", "report|acme", "rate", "").want(200, "report|acme has the rate of its program.")
		redistest.Must(t, v.locker.Controls().Pause(t.Context(), "report", time.Time{}, "repair"))
		for _, path := range []string{"/locks/rules", at} {
			a := v.find(path, "repair").want(200)
			for _, pattern := range []string{
				`<bdi>report</bdi>(</b>)?:? paused until somebody resumes it, ordered by worker-1:4242 at [\dTZ:-]+ \(repair\)`,
				`<bdi>report</bdi>(</b>)?:? limited to 7, ordered by ann at [\dTZ:-]+ \(the API is down\)`,
			} {
				if !regexp.MustCompile(pattern).MatchString(a.body) {
					t.Errorf("%s: no %s in\n%s", path, pattern, a.body)
				}
			}
		}
		v.find("/locks/rules", "repair").want(200, `<span class="tag order">paused</span>`,
			`7 <b class="order">by an operator</b>`)
		order("resume", "report").want(200, "report is resumed.")
		order("limit", "report", "limit", "0")
		if a := seen.last(t); a.Do != "limit" || a.Target != "report" || a.Err != nil || a.By != "ann" {
			t.Errorf("Audit got %+v", a)
		}
		v.get("/locks/do?action=pause").want(400, "Name a target")
		if all := v.controls(); len(all) != 0 {
			t.Errorf("controls: %+v", all)
		}
		ask := v.get("/locks/do?action=resume&target=report")
		v.refuse(ask).want(409, "resume failed: nothing was done: report is not paused")
	})
}

// Keys have the hash of a scope of more than 200 bytes.
func TestRules_longScope(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	long := strings.Repeat("s", 300)
	v := serve(t, s, Options{Access: operates, Rules: []automutex.Rule{
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
func fleetOf(
	t testing.TB, rdb redis.UniversalClient, prefix string, n int, change ...func(*fleet.Process, *fleet.Rule),
) {
	t.Helper()
	now, fields := time.Now(), map[string]any{}
	for i := range n {
		rules := []fleet.Rule{{Name: "report", Task: "report", On: []string{"tenant"}, Limit: "1", TTL: "30s", Busy: "park"}}
		p := fleet.Process{Owner: fmt.Sprintf("<worker>-%d:1", i), Seen: now, Rules: rules}
		for _, f := range change {
			f(&p, &rules[0])
		}
		text, err := json.Marshal(p)
		redistest.Must(t, err)
		fields[p.Owner] = text
	}
	redistest.Must(t, rdb.HSet(t.Context(), fleet.Key(prefix), fields).Err())
}

// The page knows the rules that workers say they run: it names them in each view, and says which scopes they have.
func TestFleet(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{Access: operates})
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
		v.get("/do?action=pause&target=reprot").want(200, "No rule has the scope of reprot: did you mean report? There is "+
			"no such lock now either.", `name="anyway"`)
		form := url.Values{"action": {"pause"}, "target": {"reprot"}}
		v.post("/do", form).want(422, "There is no such lock now either.")
		if all := v.controls(); len(all) != 0 {
			t.Errorf("controls: %v", all)
		}
		form.Set("anyway", "1")
		v.post("/do", form).want(303)
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
	hook := &redistest.FailHook{}
	v := onReal(t, Options{})
	v.page.rdb.AddHook(hook)
	v.hold(v.locker.Mutex("a"))
	v.wait(v.locker.Mutex("a"))
	const refused = redistest.ReplyError("NOPERM this user has no permissions")
	for _, c := range []struct {
		path, command string
		err           error
		want          string
	}{
		{"/key?key=a", "evalsha", refused, string(refused)},
		{"/key?key=a", "xrevrange", refused, "were not read"},
		{"/", "zrevrangebyscore", refused, "Pauses and limits"},
		{"/keys", "scan", &net.OpError{Op: "dial", Err: errors.New("refused")},
			"Redis cannot be reached (dial: refused); the page tries again"},
		{"/keys", "scan", io.EOF, "Redis has closed the connection; the page tries again"},
	} {
		fail(hook, c.err, c.command)
		forget(&v.page.locks)
		v.find(c.path, c.want).want(200)
	}
	hook.Before(nil)
}

// An action that Redis refuses has failed, with the reason, and the lock is as it was.
func TestDo_refusedByRedis(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Real(t))
	hook := &redistest.FailHook{}
	v.page.rdb.AddHook(hook)
	m := v.locker.Mutex("a")
	v.hold(m)
	fail(hook, redistest.ReplyError("NOPERM no rights"), "eval", "evalsha", "script")
	for _, of := range []string{"token", "gate"} { // a break of a holder, and of all and the gate
		form := url.Values{"action": {"break"}, "key": {m.Key()}, of: {"1"}}
		v.post("/locks/do", form).want(502, "break failed: ", "NOPERM no rights")
		if seen.last(t).Err == nil {
			t.Error("Audit was told of a success")
		}
	}
	hook.Before(nil)
	if held, err := m.Locked(t.Context()); err != nil || !held {
		t.Errorf("held: %v, %v", held, err)
	}
}

// A key that another program has written to is told from a lock, with what to do; it keeps orders from being given.
func TestKey_ofAnotherProgram(t *testing.T) {
	t.Parallel()
	v, _ := operator(t, redistest.Real(t))
	a := v.locker.Mutex("a").Key()
	redistest.Must(t, v.rdb.RPush(t.Context(), a, "x").Err())
	redistest.Must(t, v.rdb.Set(t.Context(), v.prefix+":{control}", "x", time.Minute).Err())
	const text = "Another program has written to the key"
	v.get("/locks"+keyPath(a)).want(200, text, "until you DEL it in Redis", html.EscapeString(strconv.Quote(a)))
	v.get("/locks/do?action=break&key="+url.QueryEscape(a)).want(502, text, "Nothing was done.")
	v.post("/locks/do", url.Values{"action": {"resume"}, "target": {"b"}}).want(502, "resume failed: ",
		"something else than controls is stored")
}

// A paused lock, a lock with several holders and a rule that shares its scope are shown as such.
func TestViews_states(t *testing.T) {
	t.Parallel()
	rules := []automutex.Rule{{Name: "one", Task: "a", Scope: "shared"}, {Name: "two", Task: "other", Scope: "shared"}}
	v := onMini(t, Options{Rules: rules, Access: operates})
	v.hold(v.locker.Mutex("shared"))
	many := v.locker.Semaphore("many", 3)
	v.hold(many)
	v.hold(many)
	redistest.Must(t, v.hold(many).Cooldown(t.Context(), time.Hour))
	redistest.Must(t, v.locker.Controls().Pause(t.Context(), "many", time.Time{}, ""))
	rated := v.locker.Mutex("api", lock.Rate(1, time.Hour, 1))
	v.hold(rated)
	v.find("/keys", `<span class="tag">rate, `)
	v.get(keyPath(rated.Key())).want(200, "worker-1:4242", "Nobody starts: rate")
	v.find("/keys", "and 1 more").want(200, `<span class="tag order">paused</span>`)
	v.get("/keys?closed=1").want(200, ">many</bdi>").without(">shared</bdi>")
	v.get("/").want(200, "paused until somebody resumes it", "opens in ")
	v.get("/keys?rule=two").want(200, "<bdi>one, two</bdi>").without(">many</bdi>")
	v.get("/do?action=pause&target=many").want(200).without("There is no such lock now either.")
	v.hold(v.locker.Mutex("tenant", lock.Parts("x")))
	eventually(t, func() bool {
		return !strings.Contains(v.get("/do?action=pause&target=tenant").body, "There is no such lock now either.")
	}, "the scope of a lock is known")
	v.get("/do?action=pause&target=nobody").want(200, "There is no such lock now either.")
}

// While Redis hangs every view answers, says why it knows no more, and does not say that there is nothing: from the
// beginning, and after it knew something. When Redis answers again the page knows it.
func TestViews_redisHangs(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartReal(t)
	v := serve(t, s, Options{Rules: []automutex.Rule{{Task: "pay", On: []string{"id"}}}, Access: operates})
	v.page.within, v.page.rules.within = usualTimeouts, 0
	for range 2 {
		s.Pause(t)
		forget(&v.page.locks)
		forget(&v.page.rules)
		var viewers sync.WaitGroup
		for _, path := range []string{"/", "/keys?q=task-1", "/blocked", "/rules", keyPath(v.prefix + ":{a}")} {
			viewers.Go(func() {
				eventually(t, func() bool {
					a := v.get(path).want(200).without("deadline exceeded")
					return strings.Contains(a.body, "; the page tries again") && !strings.Contains(a.body, "No lock is held") &&
						!strings.Contains(a.body, "Nothing is paused")
				}, "%s says that Redis does not answer", path)
			})
		}
		viewers.Go(func() { v.get("/do?action=pause&target=nobody").want(200, "Pause nobody?") })
		viewers.Go(func() {
			v.get("/do?action=break&key=a").want(502, "Redis does not answer; reload to try again. Nothing was done.")
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
		_, err := client.Enqueue(asynq.NewTask(task, []byte(payload)), asynq.Queue(fmt.Sprintf("q%02d", queue)),
			asynq.TaskID(fmt.Sprintf("%s-%d", task, queue)))
		redistest.Must(t, err)
	}
	for i := range mostQueues + 2 {
		enqueue(i, "mail", `{"to":"a"}`)
	}
	enqueue(0, "other", `{}`)
	enqueue(0, "wrong", `{}`)
	to := []string{"to"}
	v := serve(t, s, Options{Rules: []automutex.Rule{{Task: "mail", On: to}, {Task: "wrong", On: to}}})
	last := fmt.Sprintf("q%02[1]d/mail-%[1]d", mostQueues+1)
	for search, want := range map[string]string{
		"mail-1": ": mail, pending in asynq; its key is", "q01/mail-1": "mail|a", last: "mail|a",
		"other-0": "no rule that the page knows gives it a key", "wrong-0": "field &#34;to&#34; is missing",
	} {
		v.get("/keys?q="+url.QueryEscape(search)).want(200, want)
	}
	// the last one: in a queue beyond those that are asked
	for _, search := range []string{"mail-99", "mail-*", "a b c", "m", last[4:]} {
		v.get("/keys?q=" + url.QueryEscape(search)).want(200).without("in asynq")
	}
}

// The page of a key that may borrow says how many workers of which server are idle.
func TestLends(t *testing.T) {
	t.Parallel()
	v := onMini(t, Options{})
	fleetOf(t, v.rdb, v.prefix, 1, func(_ *fleet.Process, r *fleet.Rule) { r.LeaveIdle = 2 })
	m := v.locker.Mutex("report", lock.Parts("acme"))
	v.hold(m)
	v.get(keyPath(m.Key())).want(200, "the limit is 1, and more while 2 workers", "does not say which workers are idle")
	server := asynq.NewServerFromRedisClient(v.rdb, asynq.Config{Concurrency: 5, Logger: redistest.Silent{}})
	redistest.Must(t, server.Start(asynq.NotFoundHandler()))
	t.Cleanup(server.Shutdown)
	v.find(keyPath(m.Key()), " 5 of 5, 3 to lend")
	v.get(keyPath(v.locker.Mutex("other").Key())).want(200).without("to lend")
}
