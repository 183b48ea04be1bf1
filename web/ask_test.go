package web

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// leave gives the link with which an operator leaves things as they are.
func (a answer) leave() string {
	a.t.Helper()
	before, _, ok := strings.Cut(a.want(200).body, `">Leave it as it is</a>`)
	if !ok {
		a.t.Fatalf("%s: there is no way back:\n%s", a.path, a.body)
	}
	return strings.ReplaceAll(before[strings.LastIndex(before, `"`)+1:], "&amp;", "&")
}

// link gives the link of a page that begins so.
func (a answer) link(start string) string {
	a.t.Helper()
	_, rest, ok := strings.Cut(a.want(200).body, `href="`+start)
	if !ok {
		a.t.Fatalf("%s: there is no link to %s:\n%s", a.path, start, a.body)
	}
	rest, _, _ = strings.Cut(rest, `"`)
	return start + strings.ReplaceAll(rest, "&amp;", "&")
}

// An operator who leaves things as they are, and one who acts, is back at the view that the
// action was begun in: the lock, or the list as it was narrowed.
func TestAsk_leadsBack(t *testing.T) {
	t.Parallel()
	v, _ := operator(t, redistest.Real(t))
	m := v.locker.Mutex("a")
	v.hold(m)
	at := "/locks" + keyPath(m.Key())
	for _, action := range []string{"pause", "resume", "limit", "break"} {
		asked := v.get(v.get(at).link("/locks/do?action=" + action))
		v.get(asked.leave()).want(200, `<h1 class="key"><bdi>a</bdi></h1>`)
		if action == "pause" {
			v.confirm(asked, "").want(200, `<h1 class="key"><bdi>a</bdi></h1>`, "a is paused until somebody resumes it.")
		}
	}
	narrowed := "/locks/keys?longer=1m&q=%22b%26c&waiting=1"
	asked := v.get(v.get(narrowed).link("/locks/do?action=sweep"))
	if back := asked.leave(); back != narrowed {
		t.Errorf("a sweep leads back to %q, want %q", back, narrowed)
	}
	v.confirm(asked, "").want(200, "Dead entries removed: 0.", `value="&#34;b&amp;c"`, `value="1m"`)

	// Without a view that it came from, and with one that somebody made up.
	for action, want := range map[string]string{"pause&target=a": "/locks/rules", "resume&target=a": "/locks/rules", "limit&target=a": "/locks/rules", "sweep": "/locks/keys"} {
		for _, from := range []string{"", "https://evil.example.com/", "//evil.example.com/key?key=a", "javascript:alert(1)", "../key", "do?action=sweep", "key?%zz", "key?key=" + strings.Repeat("x", maxOrigin)} {
			if back := v.get("/locks/do?action=" + action + "&from=" + url.QueryEscape(from)).leave(); back != want {
				t.Errorf("%s from %q leads back to %q, want %q", action, from, back, want)
			}
		}
	}
}

// A field that cannot be read loses nothing that was typed: the form comes again with all of
// it, and says at the field what is wrong. Nothing is done, and Audit is not called.
func TestDo_wrongField(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Real(t))
	for _, c := range []struct{ action, field, typed, wrong string }{
		{"pause", "for", "soon", "is not a duration: write 30m or 2h"},
		{"pause", "for", "30", "is not a duration"},
		{"pause", "for", "-1h", "is too short: a pause is at least 100ms."},
		{"pause", "for", "1ms", "is too short"},
		{"limit", "limit", "", "is not a whole number from 0 to 2147483647."},
		{"limit", "limit", "-1", "is not a whole number"},
		{"limit", "limit", "2147483648", "is not a whole number"},
		{"limit", "limit", "<b>", "is not a whole number"},
	} {
		form := url.Values{"action": {c.action}, "target": {"report"}, "why": {`the "API" is down`}, "from": {"?q=rep"}, c.field: {c.typed}}
		asked := v.post("/locks/do", form).want(http.StatusUnprocessableEntity, `name="target" value="report"`, `value="the &#34;API&#34; is down"`, `name="from" value="?q=rep"`,
			`name="`+c.field+`" value="`+strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(c.typed)+`"`, `aria-invalid="true" aria-describedby="`+c.field+`-wrong"`,
			`id="`+c.field+`-wrong">`, c.wrong).without("<b>")
		if asked.body = strings.Replace(asked.body, `aria-invalid="true"`, "", 1); strings.Contains(asked.body, "aria-invalid") {
			t.Errorf("%+v: another field is said to be wrong as well", c)
		}
	}
	v.post("/locks/do", url.Values{"action": {"pause"}, "target": {" "}, "for": {"soon"}}).want(http.StatusBadRequest, "Name a target")
	v.post("/locks/do", url.Values{"action": {"pause"}, "target": {" "}, "for": {"1h"}}).want(http.StatusBadRequest, "Name a target")
	list, err := v.locker.Controls().List(context.Background())
	if err != nil || len(list) != 0 || len(seen.all) != 0 {
		t.Errorf("controls: %+v, %v; Audit got %+v", list, err, seen.all)
	}
	v.get("/locks/keys?q=rep&longer=soon&waiting=1").want(200, `value="rep"`, `value="soon"`, `aria-describedby="longer-wrong"`, `id="longer-wrong">`, "is not a duration", " checked>")
}

// A lock is named by its Redis key or, as on the command line, by what stands between its
// braces; also where something is done to it, and Audit has the Redis key.
func TestKey_shortForm(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Real(t))
	m := v.locker.Mutex("report", lock.Parts("acme"))
	lease := v.hold(m)
	v.get("/locks/key?key="+url.QueryEscape("report|acme")).want(200, "worker-1:4242", m.Key())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	await(t, v.stream(ctx, "/locks/live?view=key&key="+url.QueryEscape("report|acme")), "worker-1:4242")
	v.get("/locks/do?action=break&key="+url.QueryEscape("report|acme")).want(200, "Take the lock report|acme from 1 holder?", m.Key())
	form := url.Values{"action": {"break"}, "key": {"report|acme"}, "token": {lease.Token()}}
	v.get(v.post("/locks/do", form).want(303).header.Get("Location")).want(200, "The lock was taken from 1 of 1 holder.")
	if done := seen.last(t); done.Target != m.Key() {
		t.Errorf("Audit has the target %q, want %q", done.Target, m.Key())
	}
	for _, wrong := range []string{"", "a b", "other:{report|acme}", "{report|acme}"} {
		v.get("/locks/key?key="+url.QueryEscape(wrong)).want(http.StatusBadRequest, "This is no key of a lock")
		v.get("/locks/do?action=break&key="+url.QueryEscape(wrong)).want(http.StatusBadRequest, "This is no key of a lock")
	}
}
