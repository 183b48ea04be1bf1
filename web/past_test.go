package web

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/web/record"
)

// With a Recorder the Rules view tells how often keys were busy and how long tasks waited,
// and the Key view has the last hour with the actions of operators, those of other pages too.
func TestRecorder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, prefix, rdb := context.Background(), redistest.Name(t), s.Client(t)
		quiet := slog.New(slog.DiscardHandler)
		worker, err := record.New(rdb, record.Options{Prefix: prefix, Logger: quiet})
		redistest.Must(t, err)
		key := keys.Key(prefix, "report", "acme")
		for range 3000 {
			worker.Observe(ctx, automutex.Event{Kind: automutex.EventAcquired, Rule: "reports", Waited: 3 * time.Second})
		}
		for range 45 {
			worker.Observe(ctx, automutex.Event{Kind: automutex.EventBusy, Rule: "reports", Key: key, Queue: "q", TaskID: "<b>", Policy: automutex.Park, Busy: &automutex.BusyError{Holder: "w1"}})
		}
		redistest.Must(t, worker.Close())
		// The counts are of a complete minute, and recording began an hour ago.
		now := time.Now().Unix() / 60
		minute := func(n int64) string { return prefix + ":{stats}:minute:" + strconv.FormatInt(n, 10) }
		for n := now - 2; n <= now; n++ {
			if rdb.Exists(ctx, minute(n)).Val() == 1 {
				rdb.Rename(ctx, minute(n), minute(n-5))
			}
		}
		rdb.HIncrBy(ctx, minute(now-60), "busy other", 1)
		options := func() Options {
			r, err := record.New(rdb, record.Options{Prefix: prefix, Logger: quiet})
			redistest.Must(t, err)
			return Options{Prefix: prefix, Recorder: r, User: func(*http.Request) string { return "ann" }, Access: func(*http.Request) Access { return AccessOperate },
				Rules: []automutex.Rule{{Name: "reports", Task: "report", Scope: "report", On: []string{"tenant"}}}}
		}
		v, other := serve(t, s, options()), serve(t, s, options())
		v.get("/rules").want(200, "Busy a minute", "in line, of the attempts that got it", `data-name="Busy a minute">3</td><td class="number" data-name="Wait p50">4.1s</td><td class="number" data-name="Wait p95">4.1s</td>`)
		v.get(keyPath(key)).want(200, "<b>busy</b> <bdi>q/&lt;b&gt;</bdi>, held by <bdi>w1</bdi>: <bdi>park</bdi>").without("<b>limit</b>")
		other.post("/do", url.Values{"action": {"limit"}, "target": {"report"}, "limit": {"7"}, "why": {"a larger plan"}}).want(303)
		v.find(keyPath(key), "<b>limit</b>, <bdi>ann</bdi>: <bdi>report is limited to 7 at once.</bdi> (<bdi>a larger plan</bdi>)")
		without := serve(t, s, Options{Prefix: prefix, Rules: options().Rules})
		without.get("/rules").want(200).without("Busy a minute")
		without.get(keyPath(key)).want(200).without("What happened</h2>")
	})
}

// recorded makes a page with a Recorder whose client has the hook, and gives the Recorder.
func recorded(t *testing.T, s *redistest.Server, hook redis.Hook) (*site, *record.Recorder) {
	t.Helper()
	rdb, prefix := s.Client(t), redistest.Name(t)
	rdb.AddHook(hook)
	r, err := record.New(rdb, record.Options{Prefix: prefix, Logger: slog.New(slog.DiscardHandler)})
	redistest.Must(t, err)
	return serve(t, s, Options{Prefix: prefix, Recorder: r, Access: func(*http.Request) Access { return AccessOperate }}), r
}

// An action whose write to Redis fails is on the Key view all the same, also while Redis does
// not give the timeline.
func TestTimeline_actionNotWritten(t *testing.T) {
	t.Parallel()
	hook := &redistest.FailHook{}
	v, _ := recorded(t, redistest.Mini(t), hook)
	refuse := func(names ...string) {
		hook.Before(func(cmd redis.Cmder) error {
			if slices.Contains(names, cmd.Name()) {
				return redistest.ReplyError("NOPERM no rights")
			}
			return nil
		})
	}
	refuse("xadd")
	key := keys.Key(v.prefix, "report", "acme")
	v.get(keyPath(key)).want(200, "There is no entry about this lock.", "Busy tasks are of the last hour.").without("Nothing happened")
	v.post("/do", url.Values{"action": {"limit"}, "target": {"report"}, "limit": {"7"}, "why": {"a larger plan"}}).want(303)
	const entry = "<b>limit</b>: <bdi>report is limited to 7 at once.</bdi> (<bdi>a larger plan</bdi>)"
	v.get(keyPath(key)).want(200, entry)
	refuse("xrevrange")
	v.page.past.timeline.forget()
	v.get(keyPath(key)).want(200, entry, "Redis was not read")
}

// An action is shown once, with its reason in full, as long as its target may be. Busy tasks
// of the lock do not hide it, and the page says how far back they reach.
func TestTimeline_actionAmongBusy(t *testing.T) {
	t.Parallel()
	v, r := recorded(t, redistest.Mini(t), &redistest.FailHook{})
	ctx, target := context.Background(), strings.Repeat("x", 190)
	key := keys.Key(v.prefix, target, "acme")
	v.post("/do", url.Values{"action": {"limit"}, "target": {target}, "limit": {"7"}, "why": {"a larger plan"}}).want(303)
	for range mostRead {
		redistest.Must(t, r.Write(ctx, record.Entry{At: time.Now(), Kind: "busy", Key: key}))
	}
	for _, page := range []string{"its own", "another"} {
		if page == "another" {
			v.page.actions.kept = nil
		}
		a := v.get(keyPath(key)).want(200, "(<bdi>a larger plan</bdi>)", "(the last 2000 of all locks). Lost, overdue and replaced tasks and actions are of the last hour.")
		if n, busy := strings.Count(a.body, "<b>limit</b>"), strings.Count(a.body, "<b>busy</b>"); n != 1 || busy != mostTimeline {
			t.Errorf("%s page shows the action %d times, and %d busy tasks", page, n, busy)
		}
	}
}

// A viewer that reads the timeline while an action is being written does not keep it from
// the next one.
func TestTimeline_readDuringTheWrite(t *testing.T) {
	t.Parallel()
	hook := &redistest.FailHook{}
	v, _ := recorded(t, redistest.Mini(t), hook)
	p, ctx := &v.page.past, context.Background()
	hook.Before(func(cmd redis.Cmder) error {
		if cmd.Name() == "xadd" {
			if _, _, err := p.about(ctx, "report"); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	redistest.Must(t, p.write(ctx, Action{At: time.Now(), Do: doLimit, Target: "report"}))
	if its, _, err := p.about(ctx, "report"); err != nil || len(its) != 1 {
		t.Errorf("%v, %+v", err, its)
	}
}

// Busy a minute is of the minutes that were recorded, and the page says which part of the
// hour it has read.
func TestPast_texts(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]*record.Counts{
		"0": nil, "2": {Busy: 30, Minutes: 15}, "10": {Busy: 30, Minutes: 3}, "0.33": {Busy: 1, Minutes: 3}, "120": {Busy: 361, Minutes: 3},
	} {
		if got := newLately(c).Busy; got != want {
			t.Errorf("%+v: busy %s a minute, want %s", c, got, want)
		}
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := reachOf(&record.Timeline{Since: at, Cut: true, BusySince: at.Add(-time.Hour)})
	const want = "Busy tasks are of the last hour. Lost, overdue and replaced tasks and actions are since 03:04:05 UTC (the last 2000 of all locks)."
	if !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
