package web

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

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
		key := keytext.Key(v.prefix, "report", "acme")
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
		for _, path := range []string{"/locks/rules", "/locks" + keyPath(keytext.Key(v.prefix, "report", "acme"))} {
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
		rule := fleet.Rule{Name: "report", Task: "report", Limit: 1, InOrder: ordered}
		if r := newRuleRow(rule, orders); r.Limited != limited || (r.Limit == "7") != limited {
			t.Errorf("in order: %v: limit %s, by an operator: %v", ordered, r.Limit, r.Limited)
		}
	}
}
