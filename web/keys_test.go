package web

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex"
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

// A page that began while Redis hung knows of no lock and of no order, and does not say that
// there are none.
func TestKeys_hangsFromTheBeginning(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartReal(t)
	v := serve(t, s, Options{Rules: []automutex.Rule{{Task: "pay", On: []string{"id"}}}, Access: func(*http.Request) Access { return AccessOperate }})
	s.Pause(t)
	var viewers sync.WaitGroup
	for _, path := range []string{"/", "/keys", "/blocked", "/rules"} {
		viewers.Go(func() { v.get(path).want(200, "; the page tries again") })
	}
	viewers.Go(func() {
		v.get("/do?action=pause&target=nobody").want(200, "Pause nobody?").without("Nor is there such a lock")
	})
	viewers.Wait()
	v.find("/keys", `class="error"`).want(200).without("No lock is held", "<b>0</b> locks")
	v.find("/rules", `class="error"`).want(200).without("Nothing is paused")
	s.Resume(t)
	v.find("/keys", "No lock is held")
	v.find("/rules", "Nothing is paused")
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

// While Redis hangs every view answers within seconds, whatever it would ask Redis, and says why it knows no more.
func TestViews_redisHangs(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	v := serve(t, s, Options{Access: func(*http.Request) Access { return AccessOperate }})
	v.page.asynqWithin = asynqWithin
	v.find("/keys", "No lock is held or waited for.")
	s.Pause(t)
	time.Sleep(rulesFresh + time.Second) // until no answer of before is new enough
	var viewers sync.WaitGroup
	for _, path := range []string{"/keys?q=task-1", "/", "/rules", keyPath(v.prefix + ":{a}"), "/do?action=pause&target=a"} {
		viewers.Go(func() {
			began := time.Now()
			a := v.get(path)
			if took := time.Since(began); took > firstLook+3*asynqWithin {
				t.Errorf("%s took %s", path, took)
			}
			if !strings.HasPrefix(path, "/do") {
				a.want(200, "Redis does not answer; ", " again</p>").without("deadline exceeded")
			}
		})
	}
	viewers.Wait()
	v.get("/do?action=break&key=a").want(http.StatusBadGateway, "Redis does not answer; reload to try again. Nothing was done.")
	s.Resume(t)
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
