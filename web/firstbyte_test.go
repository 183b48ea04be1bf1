package web

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// BenchmarkFirstByte measures each view with 100,000 locks and 1,000 processes: the longest of
// ten requests, in milliseconds, and the bytes of the page. Run it with -benchtime 1x; it takes
// a minute.
func BenchmarkFirstByte(b *testing.B) {
	const locks, processes = 100_000, 1000
	s := redistest.Real(b)
	v := serve(b, s, Options{})
	ctx := context.Background()
	var takers sync.WaitGroup
	for from := range 50 {
		takers.Go(func() {
			for i := from; i < locks; i += 50 {
				m := v.locker.Mutex("report", lock.Parts(strconv.Itoa(i)), lock.TTL(time.Hour), lock.NoRenew(), lock.Note("default/task-"+strconv.Itoa(i)))
				if _, err := m.TryLock(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	takers.Wait()
	fleetOf(b, v.rdb, v.prefix, processes)
	redistest.Eventually(b, 2*patience, func() bool {
		return strings.Contains(v.get("/keys").body, "<b>"+separated(strconv.Itoa(locks))+"</b>") && !strings.Contains(v.get("/keys").body, "still counting")
	}, "all locks were seen")
	key := keyPath(v.locker.Mutex("report", lock.Parts("7")).Key())
	for _, path := range []string{
		"/", "/keys", "/keys?page=1500", "/keys?sort=key", "/keys?sort=held", "/keys?q=task-99999", "/keys?q=*99", "/keys?rule=report&sort=left",
		"/blocked", "/rules", "/processes", "/processes?page=10", "/unique", "/doctor", key, "/metrics",
	} {
		b.Run(path[:min(len(path), 30)], func(b *testing.B) {
			for range b.N {
				longest, size := time.Duration(0), 0
				for range 10 {
					began := time.Now()
					size = len(v.get(path).want(200).body)
					longest = max(longest, time.Since(began))
				}
				b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
				b.ReportMetric(float64(size), "bytes")
			}
		})
	}
}

// fleetOf writes processes as they write themselves.
func fleetOf(t testing.TB, rdb redis.UniversalClient, prefix string, n int, change ...func(*fleet.Process, *fleet.Rule)) {
	t.Helper()
	ctx := context.Background()
	rules := []fleet.Rule{{Name: "report", Task: "report", On: []string{"tenant"}, Limit: 1, TTL: 30 * time.Second, Busy: "park"}}
	now := rdb.Time(ctx).Val()
	pipe := rdb.Pipeline()
	for i := range n {
		p := fleet.Process{ID: fmt.Sprintf("process-%d", i), Kind: fleet.Worker, Owner: fmt.Sprintf("<worker>-%d:1", i), Started: now, Seen: now}
		for _, f := range change {
			f(&p, &rules[0])
		}
		text, err := json.Marshal(rules)
		redistest.Must(t, err)
		p.Hash = fleet.Hash(rules)
		process, err := json.Marshal(p)
		redistest.Must(t, err)
		pipe.Set(ctx, prefix+":{fleet}:rules:"+p.Hash, text, 15*time.Minute)
		pipe.Set(ctx, prefix+":{fleet}:process:"+p.ID, process, 15*time.Minute)
		pipe.ZAdd(ctx, prefix+":{fleet}:processes", redis.Z{Score: float64(p.Seen.UnixMilli()), Member: p.ID})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
}

// The page knows the rules that workers say they run: it names them in each view, tells of
// processes by hostile names, and finds the target that was meant.
func TestFleet(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{Access: func(*http.Request) Access { return AccessOperate }})
		fleetOf(t, v.rdb, v.prefix, 101)
		m := v.locker.Mutex("report", lock.Parts("acme"), lock.Note("default/task-7"))
		v.hold(m)
		v.find("/keys", `data-name="Rule"><bdi>report</bdi>`)
		v.get("/keys?q=task-7").want(200, "report|acme")
		v.get("/keys?q=worker-1&sort=held").want(200, "report|acme", `aria-sort="descending"`)
		v.get("/keys?q=task-8").want(200, "No lock passes the filter.")
		v.get("/rules").want(200, "&lt;type&gt;|&lt;tenant&gt;", "park")
		v.get("/processes").want(200, "<b>101</b> running", "&lt;worker&gt;-99:1", `rel="next"`).without("<worker>")
		v.get("/").want(200, "Most waited for", `<b class="big">101</b>`, "report|acme")
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

		// Several locks have one confirmation.
		other := v.locker.Mutex("report", lock.Parts("beta"))
		v.hold(other)
		asked := v.get("/do?action=break&from=keys&key="+url.QueryEscape(m.Key())+"&key="+url.QueryEscape(other.Key())).want(200, "Take 2 locks from 2 holders?", `name="picked"`, `data-name="State">not in asynq</td>`)
		_, its, _ := strings.Cut(asked.body, `action="./do"`)
		picked := url.Values{}
		for _, in := range hidden.FindAllStringSubmatch(its, -1) {
			picked.Add(in[1], html.UnescapeString(in[2]))
		}
		done := v.post("/do", picked).want(http.StatusSeeOther).header.Get("Location")
		v.get("/"+strings.TrimPrefix(done, "./")).want(200, "break: done for 2 of 2 locks.")
		if held, err := m.Locked(t.Context()); err != nil || held {
			t.Errorf("held: %v, %v", held, err)
		}
		v.get("/do?action=break&from=keys").want(400, "Pick at least one lock")

		// Done once more there is nothing to do, and the answer names three of them.
		send := func(form url.Values) string {
			done := v.post("/do", form).want(http.StatusSeeOther).header.Get("Location")
			return html.UnescapeString(v.get("/" + strings.TrimPrefix(done, "./")).body)
		}
		picked["picked"] = append(picked["picked"], "report|c", "report|d", "report|e")
		if body := send(picked); !strings.Contains(body, "break: done for 0 of 5 locks. Not done: report|acme: nothing was done: none of them holds the lock any more; report|beta: nothing was done: none of them holds the lock any more; report|c: nothing was done: the form names no holder; and 2 more") {
			t.Errorf("done once more: %s", body)
		}
		v.get("/do?action=break&from=keys&key="+url.QueryEscape(m.Key())).want(200, "Take 1 lock from 0 holders?", "Nobody holds it.")
		pause := url.Values{"action": {"pause"}, "picked": {m.Key(), other.Key()}, "for": {"soon"}}
		v.get("/do?action=pause&from=keys&key="+url.QueryEscape(m.Key())+"&key="+url.QueryEscape(other.Key())).want(200, "Pause 2 locks?", "one of these locks", `name="for"`).without("Nobody holds it.", "this target")
		v.post("/do", pause).want(400, "is not a duration")
		pause.Set("for", "1h")
		if body := send(pause); !strings.Contains(body, "pause: done for 2 of 2 locks.") {
			t.Errorf("paused: %s", body)
		}
		if all, err := v.locker.Controls().List(t.Context()); err != nil || len(all) != 3 || !all[0].Paused || all[0].Target != "report|acme" {
			t.Errorf("controls: %+v, %v", all, err)
		}
		v.post("/do", url.Values{"action": {"delete"}, "picked": {m.Key()}}).want(400, "There is no such action.")
		third := v.locker.Mutex("report", lock.Parts("gamma"))
		token := v.hold(third).Token()
		v.post("/do", url.Values{"action": {"break"}, "picked": {third.Key(), "a b"}, "token:" + third.Key(): {token}}).want(400, "This is no key of a lock", "Search under Keys").without("List tells")
		if held, err := third.Locked(t.Context()); err != nil || !held {
			t.Errorf("the first key of a wrong form: held: %v, %v", held, err)
		}
		v.get("/do?action=break&from=keys&key=a&key=a%20b").want(400, "This is no key of a lock")
	})
}

// The list of processes marks those that ended without a word and those whose rules differ, on each of its
// pages, and the Overview counts them.
func TestProcesses(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{})
		fleetOf(t, v.rdb, v.prefix, processesPerPage)
		fleetOf(t, v.rdb, v.prefix, 1, func(p *fleet.Process, r *fleet.Rule) {
			p.ID, p.Owner, p.Seen, r.Limit = "limit-2", "two:1", p.Seen.Add(-time.Second), 2
		})
		fleetOf(t, v.rdb, v.prefix, 1, func(p *fleet.Process, _ *fleet.Rule) {
			p.ID, p.Owner, p.Seen = "stopped", "gone:1", p.Seen.Add(-2*fleet.StoppedAfter)
		})
		first := v.get("/processes").want(200, "<b>101</b> running, <b>1</b> stopped without notice", "102 processes, from 1", `<span class="tag order">differ</span>`, `rel="next"`, "deploy one version everywhere").without("two:1", `rel="prev"`)
		if n := strings.Count(first.body, ">differ<"); n != processesPerPage {
			t.Errorf("%d differ, want all of the page", n)
		}
		second := v.get("/processes?page=2").want(200, "from 101", `href="./processes?" rel="prev"`, `<bdi>two:1</bdi></th>`, `<bdi>gone:1</bdi> <span class="tag error">stopped</span>`).without(`rel="next"`)
		if strings.Index(second.body, ">gone:1<") > strings.Index(second.body, ">two:1<") {
			t.Error("the one that stopped does not come first")
		}
		v.find("/", "rules differ")
		other := serve(t, s, Options{Prefix: v.prefix + "2"})
		fleetOf(t, other.rdb, other.prefix, 1, func(p *fleet.Process, _ *fleet.Rule) { p.Seen = p.Seen.Add(-2 * fleet.StoppedAfter) })
		other.get("/processes").want(200, "<b>0</b> running, <b>1</b> stopped").without("0 rules")
	})
}

// The theme that a viewer chose is kept without scripts.
func TestTheme(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	set := v.post("/theme", url.Values{"theme": {"dark"}, "from": {"rules"}}).want(http.StatusSeeOther)
	if to := set.header.Get("Location"); to != "./rules" {
		t.Errorf("it leads to %q", to)
	}
	cookie := set.header.Get("Set-Cookie")
	v.do(http.MethodGet, "/rules", nil, func(r *http.Request) { r.Header.Set("Cookie", cookie) }).want(200, `data-theme="dark"`)
	v.do(http.MethodGet, "/rules", nil, func(r *http.Request) { r.Header.Set("Cookie", "automutex_theme=<b>") }).want(200).without("data-theme")
	v.post("/theme", url.Values{"theme": {"<b>"}}).want(400)
}
