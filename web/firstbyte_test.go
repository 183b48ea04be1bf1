package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

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
