package web

import (
	"net/http"
	"strings"
	"testing"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Prometheus gets the lines of all processes by rule, and keys only where asked for. The
// names are those of the most contended keys, escaped.
func TestMetrics(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{{Name: "reports", Task: "report", On: []string{"tenant"}}, {Task: "mail:", On: []string{"id"}}}
		v := serve(t, s, Options{RootPath: "/locks", Rules: rules})
		hot := v.locker.Mutex("report", lock.Parts("a\"b\\c\nd"))
		v.hold(hot)
		v.wait(hot)
		v.wait(hot)
		v.hold(v.locker.Mutex("report", lock.Parts("quiet")))
		v.hold(v.locker.Mutex("mail:welcome", lock.Parts("1")))
		v.hold(v.locker.Mutex("other"))
		a := v.get("/locks/metrics").want(200,
			"# TYPE automutex_locks gauge\n", `automutex_locks{rule="reports"} 2`+"\n", `automutex_locks_held{rule="reports"} 2`+"\n",
			`automutex_locks_waiting{rule="reports"} 2`+"\n", `automutex_parked{rule="reports"} 0`+"\n",
			`automutex_locks{rule="mail:"} 1`+"\n", `automutex_locks{rule=""} 1`+"\n", "automutex_locks_age_seconds ",
		).without("key=", "quiet")
		if !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain; version=0.0.4") {
			t.Errorf("Content-Type %q", a.header.Get("Content-Type"))
		}
		top, err := New(v.rdb, Options{Prefix: v.prefix, Rules: rules, MetricsKeys: 1})
		redistest.Must(t, err)
		defer func() {
			if err := top.(*page).Close(); err != nil {
				t.Error(err)
			}
		}()
		v.server.Config.Handler = top
		key := labelValue(hot.Key()[strings.IndexByte(hot.Key(), '{')+1 : strings.LastIndexByte(hot.Key(), '}')])
		v.get("/metrics").want(200, `automutex_key_waiting{key="`+key+`",rule="reports"} 2`+"\n").without("quiet")
	})
}

// A scrape has one look made and no more: where nobody else looks, the goroutine ends. What
// the look did not see of a part is not answered, and a failure is no zero.
func TestMetrics_cost(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	v := serve(t, s, Options{})
	v.get("/metrics").want(200, `automutex_locks{rule=""} 0`)
	of := v.page.sampler
	redistest.Eventually(t, maxPause+patience, func() bool { of.mu.Lock(); defer of.mu.Unlock(); return !of.running }, "the look of a scrape is the last one")
	part := &snapshot{}
	of.mu.Lock()
	of.running, of.current = true, part // as while the first look is under way
	of.mu.Unlock()
	answered := make(chan answer, 1)
	go func() { answered <- v.get("/metrics") }() // ends with the whole look
	redistest.Eventually(t, patience, func() bool { of.mu.Lock(); defer of.mu.Unlock(); return !of.asked.IsZero() }, "it asks")
	of.publish(&snapshot{complete: true, byScope: map[string]*scopeTotals{"a": {totals: totals{Locks: 7}}}})
	(<-answered).want(200, `automutex_locks{rule=""} 7`)
	of.mu.Lock()
	of.running = false
	of.mu.Unlock()
	of.publish(&snapshot{err: errNoAnswer, complete: true})
	v.get("/metrics").want(503)
	serve(t, s, Options{Access: func(*http.Request) Access { return AccessNone }}).get("/metrics").want(403)
}

// More keys than Prometheus should get are refused.
func TestMetrics_refuses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, maxMetricsKeys + 1} {
		if _, err := New(redistest.Mini(t).Client(t), Options{MetricsKeys: n}); err == nil || !strings.Contains(err.Error(), "MetricsKeys") {
			t.Errorf("%d: %v", n, err)
		}
	}
}
