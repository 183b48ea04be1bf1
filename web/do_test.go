package web

import (
	"context"
	"errors"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// audit keeps what Audit is told.
type audit struct {
	mu  sync.Mutex // guards all
	all []Action
}

func (a *audit) add(done Action) { a.mu.Lock(); defer a.mu.Unlock(); a.all = append(a.all, done) }

func (a *audit) last(t *testing.T) Action {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) == 0 {
		t.Fatal("Audit was not called")
	}
	return a.all[len(a.all)-1]
}

func operator(t *testing.T, s *redistest.Server, rules ...automutex.Rule) (*site, *audit) {
	t.Helper()
	seen := &audit{}
	return serve(t, s, Options{
		RootPath: "/locks", Audit: seen.add, User: func(*http.Request) string { return "ann" }, Access: operates,
		Rules: rules,
	}), seen
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// confirm sends the form of a page that asks, as a browser does, and follows the redirect.
func (v *site) confirm(asked answer, why string) answer {
	v.t.Helper()
	return v.follow(v.send(asked, why))
}

func (v *site) follow(redirect answer) answer {
	v.t.Helper()
	return v.get(redirect.want(303).header.Get("Location"))
}

// breaks is the page that asks before a break of one holder.
func (v *site) breaks(m *lock.Lock, lease *lock.Lease) answer {
	v.t.Helper()
	return v.get(breakPath(m) + "&token=" + url.QueryEscape(lease.Token()))
}

// keeps holds that a lease was not lost.
func (v *site) keeps(lease *lock.Lease) {
	v.t.Helper()
	if err := lease.Extend(context.Background(), lock.DefaultTTL); err != nil {
		v.t.Errorf("the lease: %v", err)
	}
}

func (v *site) controls() []lock.Control {
	v.t.Helper()
	all, err := v.locker.Controls().List(v.t.Context())
	redistest.Must(v.t, err)
	return all
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

// Asking changes nothing; confirming takes the lock from the holder that was shown, and goes to Audit.
func TestDo_break(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, seen := operator(t, s)
		m := v.locker.Mutex("a", lock.Note("default/task-1"))
		lease := v.hold(m)
		ctx := lease.Bind(context.Background())
		v.get("/locks"+keyPath(m.Key())).want(200, "Break…")
		asked := v.breaks(m, lease).want(200, "Take the lock a from 1 holder?", "default/task-1",
			"The first in line gets the lock at once")
		if ctx.Err() != nil {
			t.Fatal("asking has broken the lock")
		}
		v.confirm(asked, "hangs <b>").want(200, "The lock was taken from 1 of 1 holder.", "Nobody holds this lock.")
		done := seen.last(t)
		if done.Do != "break" || done.Target != m.Key() || done.By != "ann" || done.Why != "hangs <b>" || done.Err != nil ||
			done.Request == nil || len(done.Tokens) != 1 {
			t.Errorf("Audit got %+v", done)
		}
		eventually(t, func() bool {
			return ctx.Err() != nil || errors.Is(lease.Extend(context.Background(), lock.DefaultTTL), lock.ErrNotHeld)
		}, "the holder loses its lease")
		v.refuse(asked).want(409, "break failed: nothing was done")
		if seen.last(t).Err == nil {
			t.Error("Audit is not called for an action that found nothing to do")
		}
		v.get(breakPath(m)).want(409, "Nobody holds")
	})
}

// All holders that were shown lose the lock, and nobody who came meanwhile.
func TestDo_breakAll(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Real(t))
	m := v.locker.Semaphore("s", 3)
	v.hold(m)
	v.hold(m)
	asked := v.get(breakPath(m)).want(200, "from 2 holders?")
	late := v.hold(m)
	v.breaks(m, late).want(200, "from 1 holder?")
	v.confirm(asked, strings.Repeat("é", maxWhy+1)).want(200, "taken from 2 of 2 holders", "<dt>Held</dt><dd>1</dd>")
	if done := seen.last(t); len(done.Tokens) != 2 || done.Why != strings.Repeat("é", maxWhy) { // a long reason is cut
		t.Errorf("Audit got %+v", done)
	}
	v.keeps(late)
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
	v.do(http.MethodPost, "/locks/do", strings.NewReader("key=%zz"), func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}).want(400, "The form could not be read. Nothing was done.")
	v.post("/locks/do", url.Values{"action": {"break"}, "key": {strings.Repeat("x",
		maxForm)}}).want(413, "automutex break")
	reader := onReal(t, Options{Prefix: v.prefix, RootPath: "/locks", Audit: seen.add})
	reader.post("/locks/do", form).want(403, "You may look")
	reader.get("/locks/do?" + form.Encode()).want(403)
	reader.get("/locks"+keyPath(m.Key())).want(200).without("Break", "Delete", "/do?")
	reader.get("/locks/keys").without("Sweep")
	v.keeps(lease)
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
	if l.get(ids[10]) == nil || len(l.kept) != maxActions {
		t.Errorf("%d are kept", len(l.kept))
	}
}

// A break of all ends CloseGate or a cooldown as well, whether or not somebody holds the lock,
// and says so before; one of a single holder does not, and none gives back a rate.
func TestDo_breakGate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, _ := operator(t, s)
		isOpen := func(m *lock.Lock, want bool) {
			t.Helper()
			h := inside.At(m)
			info, err := h.Engine.Inspect(context.Background(), h.Request.Ref, 0)
			redistest.Must(t, err)
			if (info.Gate.OpensIn == 0) != want {
				t.Errorf("the gate of %s: %+v; want it open: %t", m.Key(), info.Gate, want)
			}
		}
		free, both, rated := v.locker.Mutex("free"), v.locker.Semaphore("both", 2),
			v.locker.Mutex("rated", lock.Rate(1, time.Hour, 1))
		lease := v.hold(free)
		redistest.Must(t, errors.Join((*inside.At(lease)).CloseGate(context.Background(), time.Hour),
			lease.Unlock(context.Background())))
		asked := v.get(breakPath(free)).want(200, "and open its gate?", "What CloseGate or a cooldown has closed")
		isOpen(free, false) // asking opens nothing
		v.confirm(asked, "").want(200, "Its gate is open.")
		isOpen(free, true)
		v.refuse(asked).want(409, "break failed: nothing was done")

		lease = v.hold(both)
		redistest.Must(t, v.hold(both).Cooldown(context.Background(), time.Hour))
		asked = v.breaks(both, lease).want(200, "Take the lock both from 1 holder?").without("gate open")
		v.confirm(asked, "").want(200, "taken from 1 of 1 holder.").without("gate is open")
		isOpen(both, false)
		redistest.Must(t, v.locker.Mutex("both").Delete(context.Background()))
		v.hold(both)
		redistest.Must(t, v.hold(both).Cooldown(context.Background(), time.Hour))
		asked = v.get(breakPath(both)).want(200, "from 1 holder, and open its gate?")
		v.confirm(asked, "").want(200, "taken from 1 of 1 holder. Its gate is open.")
		isOpen(both, true)

		redistest.Must(t, v.hold(rated).Unlock(context.Background()))
		v.get(breakPath(rated)).want(409, "there is nothing to break")
	})
}

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
	for _, action := range []string{"pause", "resume", "limit", "rate", "break"} {
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
	for action, want := range map[string]string{"pause&target=a": "/locks/rules", "resume&target=a": "/locks/rules",
		"limit&target=a": "/locks/rules", "rate&target=a": "/locks/rules", "sweep": "/locks/keys"} {
		for _, from := range []string{"", "https://evil.example.com/", "//evil.example.com/key?key=a", "javascript:alert(1)",
			"../key", "do?action=sweep", "key?%zz", "key?key=" + strings.Repeat("x", maxOrigin)} {
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
		{"rate", "rate", "100", "is no rate: write 100/1m, or 100/1m burst 10."},
		{"rate", "rate", "0/1m", "at least 1"},
		{"rate", "rate", "9/1us", "at most one a microsecond"},
		{"rate", "rate", "9/1s burst -1", "a burst of -1"},
	} {
		form := url.Values{"action": {c.action}, "target": {"report"}, "why": {`the "API" is down`}, "from": {"?q=rep"}, c.field: {c.typed}}
		asked := v.post("/locks/do", form).want(422, `name="target" value="report"`, `value="the &#34;API&#34; is down"`, `name="from" value="?q=rep"`,
			`name="`+c.field+`" value="`+strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(c.typed)+`"`, `aria-invalid="true" aria-describedby="`+c.field+`-wrong"`,
			`id="`+c.field+`-wrong">`, c.wrong).without("<b>")
		if asked.body = strings.Replace(asked.body, `aria-invalid="true"`, "", 1); strings.Contains(asked.body, "aria-invalid") {
			t.Errorf("%+v: another field is said to be wrong as well", c)
		}
	}
	for _, length := range []string{"soon", "1h"} {
		v.post("/locks/do", url.Values{"action": {"pause"}, "target": {" "}, "for": {length}}).want(400, "Name a target")
	}
	if list := v.controls(); len(list) != 0 || len(seen.all) != 0 {
		t.Errorf("controls: %+v; Audit got %+v", list, seen.all)
	}
	v.get("/locks/keys?q=rep&longer=soon&waiting=1").want(200, `value="rep"`, `value="soon"`, `aria-describedby="longer-wrong"`, `id="longer-wrong">`, "is not a duration", " checked>")
}

// The buttons of a key are for that very key, whatever characters it has. A rule is paused with its scope, and with a
// beginning of that.
func TestButtons_target(t *testing.T) {
	t.Parallel()
	v, _ := operator(t, redistest.Mini(t), automutex.Rule{Task: "report:new york", On: []string{"tenant"}},
		automutex.Rule{Name: "barred", Task: "x", Scope: "a|b"})
	link := regexp.MustCompile(`href="([^"]*action=pause[^"]*)"`)
	click := func(path string) {
		t.Helper()
		found := link.FindStringSubmatch(v.get(path).want(200).body)
		if found == nil {
			t.Fatalf("%s has no button", path)
		}
		v.confirm(v.get(html.UnescapeString(found[1])), "").want(200)
	}
	paused := func(target string, want int) {
		t.Helper()
		all := v.controls()
		if len(all) != want || !slices.ContainsFunc(all, func(c lock.Control) bool { return c.Target == target }) {
			t.Errorf("%+v, want %d with %q", all, want, target)
		}
	}
	m := v.locker.Mutex("report:new york", lock.Parts("São Paulo %20"))
	v.hold(m)
	click("/locks" + keyPath(m.Key()))
	paused(m.Key(), 1)
	_, err := m.TryLock(t.Context())
	if busy := (*lock.BusyError)(nil); !errors.As(err, &busy) || busy.Reason != lock.ReasonPaused {
		t.Errorf("the lock is not paused: %v", err)
	}
	v.confirm(v.get("/locks/do?action=pause&target="+url.QueryEscape("a|b")), "").want(200)
	paused(v.prefix+":{a%7Cb}", 2)
	redistest.Must(t, v.locker.Controls().Pause(t.Context(), "report:", time.Time{}, ""))
	v.find("/locks/rules", `<bdi>report:new york</bdi></a> <span class="tag order">paused</span>`)
}

// A lock is named by its Redis key or, as on the command line, by what stands between its
// braces; also where something is done to it, and Audit has the Redis key.
func TestKey_shortForm(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Real(t))
	m := v.locker.Mutex("report", lock.Parts("acme"))
	lease := v.hold(m)
	v.get("/locks"+keyPath("report|acme")).want(200, "worker-1:4242", m.Key())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const short = "&key=report%7Cacme"
	await(t, v.stream(ctx, "/locks/live?view=key"+short), "worker-1:4242")
	v.get("/locks/do?action=break"+short).want(200, "Take the lock report|acme from 1 holder?", m.Key())
	form := url.Values{"action": {"break"}, "key": {"report|acme"}, "token": {lease.Token()}}
	v.follow(v.post("/locks/do", form)).want(200, "The lock was taken from 1 of 1 holder.")
	if done := seen.last(t); done.Target != m.Key() {
		t.Errorf("Audit has the target %q, want %q", done.Target, m.Key())
	}
	for _, wrong := range []string{
		"", "a b", "other:{report|acme}", "{report|acme}", "asynq:{default}:pending", v.prefix + ":{}",
		v.prefix + ":{a}:pool", v.prefix + ":{a b}", "control", strings.Repeat("x}", 2500),
	} {
		key := "&key=" + url.QueryEscape(wrong)
		v.get("/locks/live?view=key" + key).want(404)
		v.get("/locks"+keyPath(wrong)).want(400, "This is no key of a lock")
		v.get("/locks/do?action=break"+key).want(400, "This is no key of a lock")
	}
}

// blockedKey makes an ordered key with three tasks, whose first one is archived and holds it.
func blockedKey(t *testing.T, v *site) (key string) {
	t.Helper()
	return blockedKeyOf(t, v, "7", "first", "second", "third")
}

func blockedKeyOf(t *testing.T, v *site, order string, ids ...string) (key string) {
	t.Helper()
	_, err := asynq.NewClientFromRedisClient(v.rdb).Enqueue(asynq.NewTask("other", nil)) // so asynq has the queue
	redistest.Must(t, err)
	e, its := *inside.At(v.locker), engine.Ref{Key: v.locker.Mutex("orders", lock.Parts(order)).Key(), Limit: 1,
		Ordered: true}
	for _, id := range ids {
		note := "default/" + id
		ticket, _, _, err := e.Stamp(t.Context(), its, note, "n"+id, 0, 0)
		redistest.Must(t, err)
		if id == ids[0] {
			place := engine.Place{Nonce: "n" + id, Ticket: ticket, Most: -1}
			le, err := e.Take(t.Context(), &engine.Request{Ref: its, Note: note, TTL: lock.DefaultTTL, Place: &place})
			redistest.Must(t, err)
			le.End(engine.OutcomeHeld)
			_, err = le.Release(t.Context(), engine.Ending{})
			redistest.Must(t, err)
		}
	}
	return its.Key
}

// A key that an archived task blocks is in each view, and an operator skips the task.
func TestBlocked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, audit := operator(t, s)
		key := blockedKey(t, v)
		const gone = "is archived, and since then gone from asynq; skip it to go on"
		reader := serve(t, s, Options{Prefix: v.prefix})
		reader.get("/blocked").want(200, "default/first").without("Skip…")
		reader.get("/do?action=skip&key=" + url.QueryEscape(key) + "&task=default/first").want(403)
		reader.post("/do", url.Values{"action": {"skip"}, "key": {key}, "task": {"default/first"}}).want(403)
		v.get("/locks/blocked").want(200, "orders|7", "default/first", gone, ">2<", "Skip…")
		v.get("/locks/").want(200, "Blocked keys</span><b class=\"big\">1<", "3 in order", "a task keeps others waiting")
		v.get("/locks/keys").want(200, "orders|7", ">blocked</a>", "<b>3</b> of these in order")
		v.get("/locks/key?key="+url.QueryEscape(key)).want(200, "Behind <bdi>default/first</bdi>, which <bdi>"+gone,
			"archived", "in order", "default/third",
			`<bdi>default/first</bdi> <span class="tag error">the others wait for it</span>`, `<rect class="wait open" x=`)
		head, err := v.page.engine.Head(t.Context(), engine.Ref{Key: key})
		redistest.Must(t, err)
		ticket := strconv.FormatInt(head.Ticket, 10)
		v.get("/locks/blocked").want(200, "&amp;ticket="+ticket+"&amp;")
		skip := "/locks/do?action=skip&key=" + url.QueryEscape(key) + "&task=default/first&ticket=" + ticket + "&from=blocked"
		asked := v.get(skip).want(200, "Skip task default/first of orders|7?", "its old place")
		v.confirm(asked, "refunded by hand").want(200, "Task default/first was skipped")
		if a := audit.last(t); a.Do != "skip" || a.Target != key || a.By != "ann" || a.Why != "refunded by hand" ||
			a.Err != nil {
			t.Errorf("%+v", a)
		}
		v.confirm(asked, "").want(200, "Task default/first was skipped") // a second click
		if head, err := v.page.engine.Head(t.Context(), engine.Ref{Key: key}); err != nil || head.Note != "default/second" {
			t.Errorf("%+v, %v", head, err)
		}
		v.refuse(v.get("/locks/do?action=skip&key="+url.QueryEscape(key)+"&task=default/first&from=blocked")).want(409,
			"skip failed", "is not the next one of key")
		if a := audit.last(t); a.Err == nil {
			t.Errorf("%+v", a)
		}
		v.get("/locks/do?action=skip&key=" + url.QueryEscape(key)).want(400)
		v.post("/locks/do", url.Values{"action": {"skip"}, "key": {"nothing"}, "task": {""}}).want(400)
		v.post("/locks/do", url.Values{"action": {"skip"}, "key": {key}, "task": {"default/second"},
			"ticket": {"1x"}}).want(400)
		eventually(t, func() bool {
			return strings.Contains(v.get("/locks/blocked").body, "No ordered key is blocked.")
		}, "nothing is blocked")
	})
}

// The key that is blocked longest comes first, or the one with most tasks behind it.
func TestBlocked_sorts(t *testing.T) {
	t.Parallel()
	v, _ := operator(t, redistest.StartMini(t))
	blockedKey(t, v)
	blockedKeyOf(t, v, "8", "a", "b", "c", "d")
	v.get("/locks/blocked").want(200, "orders|8", "from=blocked\"").begins("orders|7")
	v.get("/locks/blocked?sort=behind").want(200, "orders|7", "from=blocked%3fsort%3dbehind",
		"live?view=blocked&amp;sort=behind").begins("orders|8")
}

// An archived head is run again from the page, and nothing else is.
func TestRunHead(t *testing.T) {
	t.Parallel()
	v, _ := operator(t, redistest.StartMini(t))
	key := blockedKey(t, v)
	do := url.Values{"action": {"run"}, "key": {key}, "task": {"default/first"}}
	_, err := asynq.NewClientFromRedisClient(v.rdb).Enqueue(asynq.NewTask("pay", nil), asynq.TaskID("first"))
	redistest.Must(t, err)
	redistest.Must(t, v.page.o.Inspector.ArchiveTask("default", "first"))
	v.get("/locks/blocked").want(200, "Run…", "Skip…")
	v.get("/locks/do?"+do.Encode()).want(200, "out of its archive")
	v.post("/locks/do", do).want(303)
	v.post("/locks/do", do).want(409, "is pending, not archived")
}

// While asynq's Redis hangs, what Redis itself tells of a blocked key is shown.
func TestBlocked_asynqHangs(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Real(t).Addr())
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: proxy.Addr(), ReadTimeout: -1, WriteTimeout: -1})
	t.Cleanup(func() { // before the proxy is closed
		if err := inspector.Close(); err != nil {
			t.Error(err)
		}
	})
	v := onReal(t, Options{Inspector: inspector})
	key := blockedKey(t, v)
	v.find("/blocked", "gone from asynq")
	proxy.Blackhole(true)
	defer func() { proxy.Heal(); proxy.Cut() }()
	v.page.within.asynq = time.Millisecond
	v.get(keyPath(key)).want(200, "Behind <bdi>default/first</bdi>, which <bdi>is archived</bdi>")
}
