package web

import (
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// blockedKey makes an ordered key with three tasks, whose first one is archived and holds it.
func blockedKey(t *testing.T, v *site) (key string) {
	t.Helper()
	_, err := asynq.NewClientFromRedisClient(v.rdb).Enqueue(asynq.NewTask("other", nil)) // so asynq has the queue
	redistest.Must(t, err)
	key = v.locker.Mutex("orders", lock.Parts("7")).Key()
	for _, id := range []string{"first", "second", "third"} {
		note := "default/" + id
		ticket, _, _, err := inner.Stamp(t.Context(), inner.ByOrder(v.locker, key), note, "n"+id, 0, 0)
		redistest.Must(t, err)
		if id == "first" {
			m := v.locker.Mutex("orders", lock.Parts("7"), lock.Note(note), inner.InOrder(inside.Place{Nonce: "nfirst", Ticket: ticket, Most: -1}))
			le, err := m.TryLock(t.Context())
			redistest.Must(t, err)
			inner.EndOrder(le, inside.OutcomeHeld)
			redistest.Must(t, le.Unlock(t.Context()))
		}
	}
	return key
}

// A key that an archived task blocks is in each view, and an operator skips the task.
func TestBlocked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, audit := operator(t, s)
		key := blockedKey(t, v)
		const gone = "is archived, and since then gone from asynq; skip it to go on"
		v.get("/locks/blocked").want(200, "orders|7", "default/first", gone, ">2<", "Skip…")
		v.get("/locks/").want(200, "Blocked keys</span><b class=\"big\">1<", "3 in order", "a task keeps others waiting")
		v.get("/locks/keys").want(200, "orders|7", ">blocked</a>", "<b>3</b> of these in order")
		v.get("/locks/key?key="+url.QueryEscape(key)).want(200, "Behind <bdi>default/first</bdi>, which <bdi>"+gone, "archived", "in order", "default/third",
			`<bdi>default/first</bdi> <span class="tag error">the others wait for it</span>`, `<rect class="wait open" x=`)
		head, err := inner.Head(t.Context(), inner.ByOrder(v.locker, key))
		redistest.Must(t, err)
		ticket := strconv.FormatInt(head.Ticket, 10)
		v.get("/locks/blocked").want(200, "&amp;ticket="+ticket+"&amp;")
		asked := v.get("/locks/do?action=skip&key="+url.QueryEscape(key)+"&task=default/first&ticket="+ticket+"&from=blocked").want(200, "Skip task default/first of orders|7?", "out of order")
		v.confirm(asked, "refunded by hand").want(200, "Task default/first was skipped")
		if a := audit.last(t); a.Do != "skip" || a.Target != key || a.By != "ann" || a.Why != "refunded by hand" || a.Err != nil {
			t.Errorf("%+v", a)
		}
		v.confirm(asked, "").want(200, "Task default/first was skipped") // a second click
		if head, err := inner.Head(t.Context(), inner.ByOrder(v.locker, key)); err != nil || head.Note != "default/second" {
			t.Errorf("%+v, %v", head, err)
		}
		v.refuse(v.get("/locks/do?action=skip&key="+url.QueryEscape(key)+"&task=default/first&from=blocked")).want(409, "skip failed", "is not the next one of key")
		if a := audit.last(t); a.Err == nil {
			t.Errorf("%+v", a)
		}
		v.get("/locks/do?action=skip&key=" + url.QueryEscape(key)).want(400)
		v.post("/locks/do", url.Values{"action": {"skip"}, "key": {"nothing"}, "task": {""}}).want(400)
		v.post("/locks/do", url.Values{"action": {"skip"}, "key": {key}, "task": {"default/second"}, "ticket": {"1x"}}).want(400)
		redistest.Eventually(t, patience, func() bool {
			return strings.Contains(v.get("/locks/blocked").body, "No ordered key is blocked.")
		}, "nothing is blocked")
	})
}

// A reader sees what is blocked, and skips nothing.
func TestBlocked_readOnly(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	key := blockedKey(t, v)
	v.get("/blocked").want(200, "default/first").without("Skip…")
	v.get("/do?action=skip&key=" + url.QueryEscape(key) + "&task=default/first").want(403)
	v.post("/do", url.Values{"action": {"skip"}, "key": {key}, "task": {"default/first"}}).want(403)
	if h, err := inner.Head(t.Context(), inner.ByOrder(v.locker, key)); err != nil || h.Note != "default/first" {
		t.Errorf("%+v, %v", h, err)
	}
}
