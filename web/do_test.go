package web

import (
	"context"
	"errors"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// audit keeps what Audit is told.
type audit struct {
	mu  sync.Mutex // guards all
	all []Action
}

func (a *audit) note(done Action) { a.mu.Lock(); defer a.mu.Unlock(); a.all = append(a.all, done) }

func (a *audit) last(t *testing.T) Action {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) == 0 {
		t.Fatal("Audit was not called")
	}
	return a.all[len(a.all)-1]
}

// operator serves a page whose viewers may operate.
func operator(t *testing.T, s *redistest.Server) (*site, *audit) {
	t.Helper()
	seen := &audit{}
	return serve(t, s, Options{
		RootPath: "/locks", Audit: seen.note, User: func(*http.Request) string { return "ann" },
		Access: func(*http.Request) Access { return AccessOperate },
	}), seen
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// confirm sends the form of a page that asks, as a browser does, and follows the redirect.
func (v *site) confirm(asked answer, why string) answer {
	v.t.Helper()
	return v.get(v.send(asked, why).want(303).header.Get("Location"))
}

// refuse sends the form of a page that asks, and gives the answer to it.
func (v *site) refuse(asked answer) answer { v.t.Helper(); return v.send(asked, "") }

func (v *site) send(asked answer, why string) answer {
	v.t.Helper()
	asked.want(200, `<form method="post" action="/locks/do">`)
	form := url.Values{"why": {why}}
	for _, m := range hidden.FindAllStringSubmatch(asked.body, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	return v.post("/locks/do", form)
}

func (v *site) post(path string, form url.Values, change ...func(*http.Request)) answer {
	v.t.Helper()
	change = append([]func(*http.Request){func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}}, change...)
	return v.do(http.MethodPost, path, strings.NewReader(form.Encode()), change...)
}

// Asking changes nothing; confirming takes the lock from the holder that was shown, and
// goes to Audit and to the lock's page.
func TestDo_break(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, seen := operator(t, s)
		m := v.locker.Mutex("a", lock.Note("default/task-1"))
		lease := v.hold(m)
		ctx := lease.Bind(context.Background())
		v.get("/locks"+keyPath(m.Key())).want(200, "Break…")
		asked := v.get("/locks/do?action=break&key="+url.QueryEscape(m.Key())+"&token="+url.QueryEscape(lease.Token())).want(200, "Take the lock a from 1 holder?", "default/task-1", "The first in line gets the lock at once")
		if ctx.Err() != nil {
			t.Fatal("asking has broken the lock")
		}
		v.confirm(asked, "hangs <b>").want(200, "The lock was taken from 1 of 1 holder.", "Nobody holds this lock.", "ann", "hangs &lt;b&gt;")
		done := seen.last(t)
		if done.Do != "break" || done.Target != m.Key() || done.By != "ann" || done.Why != "hangs <b>" || done.Err != nil || done.Request == nil || len(done.Tokens) != 1 {
			t.Errorf("Audit got %+v", done)
		}
		redistest.Eventually(t, patience, func() bool {
			return ctx.Err() != nil || errors.Is(lease.Extend(context.Background(), lock.DefaultTTL), lock.ErrNotHeld)
		}, "the holder loses its lease")
		v.refuse(asked).want(409, "break failed: nothing was done")
		if seen.last(t).Err == nil {
			t.Error("Audit is not called for an action that found nothing to do")
		}
		v.get("/locks/do?action=break&key="+url.QueryEscape(m.Key())).want(409, "Nobody holds")
	})
}

// All holders that were shown lose the lock, and nobody who came meanwhile.
func TestDo_breakAll(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Real(t))
	m := v.locker.Semaphore("s", 3)
	v.hold(m)
	v.hold(m)
	asked := v.get("/locks/do?action=break&key="+url.QueryEscape(m.Key())).want(200, "from 2 holders?")
	late := v.hold(m)
	v.get("/locks/do?action=break&key="+url.QueryEscape(m.Key())+"&token="+url.QueryEscape(late.Token())).want(200, "from 1 holder?")
	v.confirm(asked, "").want(200, "taken from 2 of 2 holders", "<dt>Held</dt><dd>1</dd>")
	if n := len(seen.last(t).Tokens); n != 2 {
		t.Errorf("Audit has %d tokens, want 2", n)
	}
	if err := late.Extend(context.Background(), lock.DefaultTTL); err != nil {
		t.Errorf("who came meanwhile lost the lock: %v", err)
	}
}

// A sweep says what it removed.
func TestDo_sweep(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, seen := operator(t, s)
		asked := v.get("/locks/do?action=sweep").want(200, "Remove what dead processes left behind?")
		v.confirm(asked, "").want(200, "Dead entries removed: 0.")
		if done := seen.last(t); done.Do != "sweep" || done.Target != "" || done.Err != nil {
			t.Errorf("Audit got %+v", done)
		}
	})
}

// Nothing is done for a reader, for another site, by GET, or for a form that is wrong.
func TestDo_refused(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Real(t))
	m := v.locker.Mutex("a")
	lease := v.hold(m)
	form := url.Values{"action": {"break"}, "key": {m.Key()}, "token": {lease.Token()}}
	for _, site := range []string{"cross-site", "same-site"} {
		v.post("/locks/do", form, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", site) }).want(403, "Another site")
	}
	v.post("/locks/do", form, func(r *http.Request) {
		r.Header.Del("Sec-Fetch-Site")
		r.Header.Set("Origin", "https://evil.example.com")
	}).want(403, "Another site", "a proxy before this page does not pass the Host header on")
	v.get("/locks/do?"+form.Encode()).want(200, "Take the lock")
	v.post("/locks/do", url.Values{"action": {"break"}, "key": {"asynq:{default}"}}).want(400)
	v.post("/locks/do", url.Values{"action": {"format"}}).want(400, "There is no such action.")
	v.get("/locks/do?action=format").want(400)
	v.post("/locks/do", url.Values{"action": {"break"}, "key": {strings.Repeat("x", maxForm)}}).want(http.StatusRequestEntityTooLarge, "automutex break")
	reader := serve(t, redistest.Real(t), Options{Prefix: v.prefix, RootPath: "/locks", Audit: seen.note})
	reader.post("/locks/do", form).want(403, "You may look")
	reader.get("/locks/do?" + form.Encode()).want(403)
	reader.get("/locks"+keyPath(m.Key())).want(200).without("Break", "Delete", "/do?")
	reader.get("/locks/keys").without("Sweep")
	if err := lease.Extend(context.Background(), lock.DefaultTTL); err != nil {
		t.Errorf("the lease: %v", err)
	}
	if len(seen.all) != 0 {
		t.Errorf("Audit got %+v", seen.all)
	}
}

// The log of actions is bounded, and forgets the oldest.
func TestActionLog(t *testing.T) {
	t.Parallel()
	var l actionLog
	var ids []string
	for range maxActions + 10 {
		ids = append(ids, l.add(Action{Target: "a"}))
	}
	if l.get(ids[9]) != nil {
		t.Error("the tenth is still there")
	}
	if l.get(ids[10]) == nil || len(l.about("a")) != maxActions || len(l.about("b")) != 0 {
		t.Errorf("%d are about a", len(l.about("a")))
	}
}
