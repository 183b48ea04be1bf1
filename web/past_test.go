package web

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/web/record"
)

// With a Recorder the Rules view tells how often keys were busy and how long tasks waited,
// and the Key view has the last hour with the actions of operators, those of other pages too.
func TestRecorder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, prefix, rdb := context.Background(), redistest.Name(t), s.Client(t)
		quiet := slog.New(slog.DiscardHandler)
		worker, err := record.New(rdb, record.Options{Prefix: prefix, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		key := lock.Key(prefix, "report", "acme")
		for range 3000 {
			worker.Observe(ctx, automutex.Event{Kind: automutex.EventAcquired, Rule: "reports", Waited: 3 * time.Second})
		}
		for range 45 {
			worker.Observe(ctx, automutex.Event{Kind: automutex.EventBusy, Rule: "reports", Key: key, Queue: "q", TaskID: "<b>", Policy: automutex.Park, Busy: &automutex.BusyError{Holder: "w1"}})
		}
		if err := worker.Close(); err != nil {
			t.Fatal(err)
		}
		options := func() Options {
			r, err := record.New(rdb, record.Options{Prefix: prefix, Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			return Options{Prefix: prefix, Recorder: r, User: func(*http.Request) string { return "ann" }, Access: func(*http.Request) Access { return AccessOperate },
				Rules: []automutex.Rule{{Name: "reports", Task: "report", Scope: "report", On: []string{"tenant"}}}}
		}
		v, other := serve(t, s, options()), serve(t, s, options())
		v.get("/rules").want(200, "Busy a minute", `<td class="number">3</td><td class="number">4.1s</td><td class="number">4.1s</td>`)
		v.get(keyPath(key)).want(200, "<b>busy</b> <bdi>q/&lt;b&gt;</bdi>, held by <bdi>w1</bdi>: <bdi>park</bdi>").without("<b>limit</b>")
		other.post("/do", url.Values{"action": {"limit"}, "target": {"report"}, "limit": {"7"}, "why": {"a larger plan"}}).want(303)
		v.find(keyPath(key), "<b>limit</b>, <bdi>ann</bdi>: <bdi>report is limited to 7 at once. (a larger plan)</bdi>")
		without := serve(t, s, Options{Prefix: prefix, Rules: options().Rules})
		without.get("/rules").want(200).without("Busy a minute")
		without.get(keyPath(key)).want(200).without("The last hour</h2>")
	})
}
