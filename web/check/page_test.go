package check

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/web"
)

func quoted(s string) string { return strconv.Quote(s) } // of printable text, as JSON and scripts have it

// world is the page over real tasks: an asynq server whose handlers stay until they are let go.
type world struct {
	t       *testing.T
	rdb     redis.UniversalClient
	prefix  string
	queue   string
	client  *asynq.Client
	locker  *lock.Locker
	server  *httptest.Server
	release chan struct{} // closed at the end; handlers return then

	mu      sync.Mutex // guards the rest
	actions []web.Action
	ended   []error // the causes with which handlers were told to end
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, rdb: redistest.Real(t).Client(t), prefix: redistest.Name(t), queue: redistest.Name(t),
		release: make(chan struct{})}
	quiet := slog.New(slog.DiscardHandler)
	rules := []automutex.Rule{{Task: "report", On: []string{"tenant"}, Busy: automutex.Park}}
	guard, err := automutex.New(w.rdb, automutex.Config{Rules: rules, Prefix: w.prefix, Owner: "worker-1:4242",
		Logger: quiet})
	redistest.Must(t, err)
	w.client = asynq.NewClientFromRedisClient(w.rdb)
	w.locker = lock.New(w.rdb, lock.Options{Prefix: w.prefix, Owner: "somebody", Logger: quiet})
	asynqServer := asynq.NewServerFromRedisClient(w.rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 3, Queues: map[string]int{w.queue: 1}, TaskCheckInterval: redistest.CheckEvery,
		ShutdownTimeout: patience, LogLevel: asynq.FatalLevel,
	}))
	redistest.Must(t, asynqServer.Start(guard.Middleware(asynq.HandlerFunc(w.handle))))
	handler, err := web.New(w.rdb, web.Options{
		RootPath: "/locks", Prefix: w.prefix, Rules: rules, AsynqmonPath: "/asynq", Logger: quiet,
		Access: func(*http.Request) web.Access { return web.AccessOperate },
		Audit:  func(a web.Action) { w.mu.Lock(); defer w.mu.Unlock(); w.actions = append(w.actions, a) },
	})
	redistest.Must(t, err)
	mux := http.NewServeMux()
	mux.Handle("/locks/", handler)
	w.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		if err := handler.(io.Closer).Close(); err != nil {
			t.Error(err)
		}
		w.server.Close()
		close(w.release)
		closed := make(chan error, 1)
		go func() { closed <- guard.Close(context.Background()) }()
		asynqServer.Shutdown()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := w.locker.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) handle(ctx context.Context, _ *asynq.Task) error {
	select {
	case <-w.release:
	case <-ctx.Done():
		w.mu.Lock()
		w.ended = append(w.ended, context.Cause(ctx))
		w.mu.Unlock()
	}
	return nil
}

func (w *world) enqueue(id, tenant string) {
	w.t.Helper()
	task := asynq.NewTask("report", []byte(`{"tenant": `+quoted(tenant)+`, "secret": "payload-text"}`))
	_, err := w.client.Enqueue(task, asynq.Queue(w.queue), asynq.TaskID(id), asynq.Timeout(time.Hour))
	redistest.Must(w.t, err)
}

func (w *world) url(path string) string { return w.server.URL + "/locks/" + path }

func (w *world) keyURL(key string) string { return w.url("key?key=" + url.QueryEscape(key)) }

// Both views show real tasks, renew themselves, and break no rule of the policy; an action
// is asked about, done, and seen by the handler.
func TestPage(t *testing.T) {
	w, b := start(t), open(t)
	key := keys.Key(w.prefix, "report", "acme")
	w.enqueue("first", "acme")
	b.do(chromedp.Navigate(w.url("keys")))
	b.text("report|acme")
	b.text("worker-1:4242")
	b.await(live)
	if got := value[string](b,
		`document.querySelector("tbody a[href*='/asynq/']").getAttribute("href")`); got != "/asynq/queues/"+w.queue+"/tasks/first" {
		t.Errorf("the task's link is %q", got)
	}
	for _, id := range []string{"second", "third", "fourth", "fifth"} {
		w.enqueue(id, "acme")
	}
	b.text("parked") // three workers: one holds, one waits at most, the others are parked
	b.await(`/\d+ \(\d+ parked\)/.test(document.querySelector("tbody td[data-name='In line']").textContent)`)
	b.nothingWrong()

	b.do(chromedp.Click(chromedp.CSS(`tbody th a`)))
	b.text("worker-1:4242")
	b.text("fifth")
	b.await(live)
	b.nothingWrong()
	if body := value[string](b, "document.documentElement.outerHTML"); strings.Contains(body, "payload-text") {
		t.Error("the page shows a payload")
	}

	b.do(chromedp.Click(chromedp.CSS(`a.button.danger[href*="token="]`)))
	b.text("Take the lock report|acme from 1 holder?")
	b.nothingWrong()
	b.do(chromedp.Click(chromedp.CSS(`main form[method="post"] button`)))
	b.text("The lock was taken from 1 of 1 holder.")
	b.nothingWrong()
	redistest.Eventually(t, patience, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.ended) == 1 },
		"the handler is told")
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.actions) != 1 || w.actions[0].Do != "break" || w.actions[0].Target != key || w.actions[0].Err != nil {
		t.Errorf("Audit got %+v", w.actions)
	}
}

// leaseOf holds a key until the test ends.
func (w *world) leaseOf(part string) {
	w.t.Helper()
	lease, err := w.locker.Mutex("lease", lock.Parts(part)).TryLock(context.Background())
	redistest.Must(w.t, err)
	w.t.Cleanup(func() {
		if err := lease.Unlock(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
}

// Whichever script comes late over a slow network, the view is live in the end, and says so:
// also one in which nothing changes, so that only the first message has something.
func TestPage_slowScripts(t *testing.T) {
	for late, view := range map[string]string{"htmx.min.js": "keys?q=nothing", "hx-sse.min.js": "keys?q=nothing",
		"uPlot.iife.min.js": "", "app.js": "keys?q=nothing"} {
		t.Run(late, func(t *testing.T) {
			w, b := start(t), open(t)
			page, streams := w.server.Config.Handler, make(chan struct{}, 1)
			w.server.Config.Handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/live"):
					select {
					case streams <- struct{}{}:
					default:
					}
				case strings.HasSuffix(r.URL.Path, late):
					select { // a page that does not wait for this script asks for its stream now
					case <-streams:
						time.Sleep(100 * time.Millisecond) // for the first message, which such a page misses
					case <-time.After(time.Second):
					case <-r.Context().Done():
					}
				}
				page.ServeHTTP(out, r)
			})
			b.do(chromedp.Navigate(w.url(view)))
			b.await(live)
			b.nothingWrong()
		})
	}
}

// tabTo presses Tab until an element of the page has the focus, and holds that each one on the
// way shows that it has it.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	for range 60 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if !value[bool](b,
			`document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
			b.t.Errorf("the focus is not to be seen on %s", value[string](b, "document.activeElement.outerHTML"))
		}
		if value[bool](b, "document.activeElement.matches("+quoted(selector)+")") {
			return
		}
	}
	b.t.Fatalf("60 times Tab do not lead to %s", selector)
}

// The keyboard alone does: past the navigation, to a lock, whose link keeps the focus while
// the list renews itself, and from there to an action that is typed and done.
func TestPage_keyboard(t *testing.T) {
	w, b := start(t), open(t)
	w.leaseOf("a")
	b.do(chromedp.Navigate(w.url("keys")))
	b.text("lease|a")
	b.await(live)
	b.tabTo(".skip")
	if left := value[float64](b, "document.activeElement.getBoundingClientRect().left"); left < 0 {
		t.Error("the link past the navigation is not on the screen while it has the focus")
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await(`document.activeElement.id === "main"`)
	b.tabTo(`a[href*="key?key="]`)
	w.leaseOf("b")
	b.text("lease|b")
	if focused := value[string](b, "document.activeElement.innerText"); focused != "lease|a" {
		t.Errorf("after an update the focus is on %q, and was on lease|a", focused)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await(`document.querySelector("h1.key")`)
	b.tabTo(`a[href*="action=pause"]`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await(`document.querySelector("form [name=for]")`)
	b.tabTo("[name=for]")
	b.do(chromedp.KeyEvent("2 hours"))
	b.tabTo("[name=why]")
	b.do(chromedp.KeyEvent("its data is repaired"), chromedp.KeyEvent(kb.Enter))
	b.await(`document.getElementById("for-wrong")`)
	b.tabTo("[name=for]") // selects what is in it
	b.do(chromedp.KeyEvent("2h"), chromedp.KeyEvent(kb.Enter))
	b.text("lease|a is paused for 2h.")
	b.nothingWrong()
	if at := value[string](b, "document.querySelector('h1.key').innerText"); at != "lease|a" {
		t.Errorf("after the action this is the page of %q", at)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.actions) != 1 || w.actions[0].Target != "lease|a" || w.actions[0].Why != "its data is repaired" {
		t.Errorf("Audit got %+v", w.actions)
	}
}

// tooWideScript gives what makes the page wider than the screen or cannot be reached on it: what ends outside of it and
// is in no box that scrolls by itself, and a button that is too small for a finger.
const tooWideScript = `(() => {
  const wide = document.documentElement.clientWidth, found = [];
  const name = e => e.tagName + " " + (e.id || e.className || e.name || "") + " " + (e.innerText || "").slice(0, 60);
  if (document.documentElement.scrollWidth > wide)
    found.push("the page is " + document.documentElement.scrollWidth + " wide");
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || e.closest(".skip, svg, .u-wrap")) continue;
    const inBox = e.parentElement.closest(".scroll");
    if (!inBox && (box.left < 0 || box.right > wide + .5))
      found.push(Math.round(box.right) + " of " + wide + ": " + name(e));
    if (e.matches("button, .button") && box.height < 36) found.push(box.height + " high: " + name(e));
  }
  return found;
})()`

// On a narrow phone no view is wider than the screen: tables scroll in a box of their own, and
// every button is on the screen or in such a box, and large enough for a finger.
func TestPage_narrowPhone(t *testing.T) {
	w, b := start(t), open(t)
	long := strings.Repeat("a-long-tenant-", 12)
	for _, id := range []string{"first", "second", "third", "fourth", "fifth"} {
		w.enqueue(id, long)
	}
	w.leaseOf(strings.Repeat("other", 20))
	b.do(chromedp.Navigate(w.url("keys")))
	b.text("report|" + long)
	b.text("parked")
	redistest.Must(t, w.locker.Controls().Pause(context.Background(), "report", time.Time{},
		strings.Repeat("because", 20)))
	key := keys.Key(w.prefix, "report", long)
	ask := func(rest string) string { return w.url("do?" + rest) }
	views := map[string]string{
		"keys": w.url("keys"), "narrowed keys": w.url("keys?longer=soon&q=" + strings.Repeat("x", 80)), "key": w.keyURL(key),
		"rules": w.url("rules"),
		"break": ask("action=break&key=" + url.QueryEscape(key)),
		"pause": ask("action=pause&target=" + url.QueryEscape("report|"+long)),
		"limit": ask("action=limit&target=report"), "sweep": ask("action=sweep"),
		"fail": w.url("key?key=" + strings.Repeat("x}", 150)),
	}
	for _, width := range []int64{320, 360} {
		b.do(chromedp.EmulateViewport(width, 640, chromedp.EmulateMobile, chromedp.EmulateTouch))
		for view, path := range views {
			b.do(chromedp.Navigate(path))
			b.await(`document.readyState === "complete"`)
			if strings.HasSuffix(view, "key") || strings.HasSuffix(view, "keys") || view == "rules" {
				b.await(live)
			}
			for _, what := range value[[]string](b, tooWideScript) {
				t.Errorf("%s at %d: %s", view, width, what)
			}
			if view == "rules" {
				b.await(`document.querySelector(".levels.card") !== null`) // the page learns of the pause within seconds
				if inset := value[float64](b,
					`parseFloat(getComputedStyle(document.querySelector(".levels.card")).paddingLeft)`); inset < 8 {
					t.Errorf("the text of a list begins %v pixels from the edge of its card", inset)
				}
			}
			if high := value[int](b, `document.querySelector("main .filter")?.offsetHeight ?? 0`); view == "keys" &&
				width == 360 && high > 190 {
				t.Errorf("the filter is %d high: five rows, and the list below the screen", high)
			}
			b.nothingWrong()
		}
	}
}

// drawnScript keeps the texts that are drawn on a canvas: the chart's.
const drawnScript = `window.drawn = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { drawn.push(text); return fillText.call(this, text, ...rest); };`

// The chart has the times that the tables have, UTC, in whatever zone the browser is, and the page says so.
func TestPage_timesAreUTC(t *testing.T) {
	w, b := start(t), open(t)
	b.before(drawnScript)
	b.command(func(ctx context.Context, tab *chromedp.Target) error {
		// UTC+5:45
		_, err := cdp.Call(ctx, tab, emulation.SetTimezoneOverride,
			emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kathmandu"})
		return err
	})
	w.leaseOf("a")
	opened := time.Now()
	b.do(chromedp.Navigate(w.url("")))
	// The chart begins with its second point.
	b.await(`document.querySelector("#plot .u-legend") && drawn.some(text => /^\d\d:\d\d:\d\d$/.test(text))`)
	b.text("Times are UTC.")
	if offset := value[int](b, "new Date().getTimezoneOffset()"); offset != -345 {
		t.Fatalf("the browser's zone is %d minutes from UTC", offset)
	}
	now := time.Now().UTC()
	for _, text := range value[[]string](b, `drawn.filter(text => /\d:\d\d/.test(text))`) {
		at, err := time.Parse(time.DateTime, now.Format(time.DateOnly)+" "+text)
		if err != nil {
			t.Errorf("%q is on the chart: %v", text, err)
			continue
		}
		// The axis begins where the data do, a moment ago.
		if ago := (now.Sub(at) + 24*time.Hour) % (24 * time.Hour); ago > now.Sub(opened)+time.Minute {
			t.Errorf("%s is on the chart at %s UTC", text, now.Format(time.TimeOnly))
		}
	}
	b.nothingWrong()
}

// outsideScript gives the bars that are not in the picture or not to be seen, and the times on its axis that run into
// each other or out of the screen.
const outsideScript = `(() => {
  const found = [], box = document.querySelector(".bars svg").getBoundingClientRect();
  for (const e of document.querySelectorAll(".bars rect")) {
    const r = e.getBoundingClientRect();
    if (r.left < box.left - 1 || r.right > box.right + 1 || r.bottom > box.bottom || r.width < .5 || r.height < 2)
      found.push("a bar from " + r.left + " to " + r.right + ", " + r.height + " high");
  }
  let end = 0;
  for (const e of [...document.querySelectorAll(".bars text")].filter(e => e.getBoundingClientRect().width)) {
    const r = e.getBoundingClientRect();
    if (r.left < end + 4 || r.right > innerWidth)
      found.push(e.textContent + " from " + r.left + " to " + r.right + " after " + end);
    end = r.right;
  }
  return found;
})()`

// With nothing known of a key its page says so in a sentence.
func TestPage_runs(t *testing.T) {
	w, b := start(t), open(t)
	key := keys.Key(w.prefix, "report", `"><script>wrong.push("key")</script>`)
	b.do(chromedp.Navigate(w.keyURL(key)))
	b.text("Nothing is known of who ran on this key")
	b.text("Config.History")
	b.await(live)
	if value[bool](b, `document.body.innerText.includes("--") || !!document.querySelector("svg rect, canvas")`) {
		t.Error("there is an empty chart")
	}
	end := time.Now()
	bars := 0
	for i, span := range []time.Duration{time.Second, time.Minute, 20 * time.Hour} {
		runs := history.New(w.rdb, w.prefix, "worker-1:4242", 100, slog.New(slog.DiscardHandler))
		for n, outcome := range []string{"done", "failed", "comes back"} {
			at := end.Add(-span + time.Duration(n)*span/3)
			runs.Add(key, history.Run{Task: fmt.Sprintf(`default/"><img/src=x/onerror=wrong.push("task")>%d-%d`, i, n),
				Outcome: outcome, Came: end.Add(-span), Start: at, End: at.Add(span / 4)})
		}
		runs.Close(context.Background())
		bars += 3 + 2 // the first one did not wait
		b.await(fmt.Sprintf(`document.querySelectorAll(".bars rect").length === %d && document.querySelectorAll("td[data-name=Outcome]").length === %d`, bars, 3*(i+1)))
		for _, dark := range []bool{false, true} {
			b.dark(dark)
			for _, width := range []int64{1280, 360, 320} {
				wrong := outsideScript
				if width < 400 {
					b.do(chromedp.EmulateViewport(width, 800, chromedp.EmulateMobile, chromedp.EmulateTouch))
					wrong = "[..." + outsideScript + ", ..." + tooWideScript + "]"
				} else {
					b.do(chromedp.EmulateViewport(width, 800))
				}
				b.await(fmt.Sprintf("innerWidth === %d", width))
				for _, what := range value[[]string](b, wrong) {
					t.Errorf("%s, %d wide: %s", span, width, what)
				}
			}
			if back := value[string](b,
				`getComputedStyle(document.body).backgroundColor`); (back == "rgb(245, 246, 248)") == dark {
				t.Errorf("dark %t: the background is %s", dark, back)
			}
		}
	}
	b.nothingWrong()
}

// axeEnv names the file axe.min.js of the npm package axe-core, which is not in this
// repository: npm pack axe-core, and unpack it.
const axeEnv = "AUTOMUTEX_AXE"

// finding is what axe-core says of a page.
type finding struct {
	ID, Impact, Help, Where string
}

// axeScript runs axe-core and leaves its findings in window.findings.
const axeScript = `;window.findings = null; axe.run(document, {resultTypes: ["violations"]}).then(r => {
	window.findings = r.violations.map(v => ({ID: v.id, Impact: v.impact || "", Help: v.help,
		Where: v.nodes.map(n => n.target.join(" ") + " " + n.failureSummary).slice(0, 3).join("; ")}));
}, e => { window.findings = [{ID: "axe", Impact: "critical", Help: String(e), Where: ""}]; }); true`

// No view has a serious finding of axe-core, in light and in dark.
func TestPage_accessible(t *testing.T) {
	file := os.Getenv(axeEnv)
	if file == "" {
		t.Skipf("set %s to axe.min.js of the npm package axe-core", axeEnv)
	}
	axe, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w, b := start(t), open(t)
	for _, id := range []string{"first", "second", "third", "fourth", "fifth"} {
		w.enqueue(id, "acme")
	}
	key := keys.Key(w.prefix, "report", "acme")
	runs, now := history.New(w.rdb, w.prefix, "worker-1:4242", 10, slog.New(slog.DiscardHandler)), time.Now()
	runs.Add(key, history.Run{Task: "default/before", Outcome: "failed", Came: now.Add(-time.Minute),
		Start: now.Add(-40 * time.Second), End: now})
	runs.Close(context.Background())
	b.do(chromedp.Navigate(w.url("keys")))
	b.text("parked")
	for _, dark := range []bool{false, true} {
		b.dark(dark)
		for view, path := range map[string]string{
			"overview": w.url(""), "blocked": w.url("blocked"), "keys": w.url("keys"), "key": w.keyURL(key),
			"rules": w.url("rules"),
			"ask":   strings.Replace(w.keyURL(key), "key?", "do?action=break&", 1),
			"pause": w.url("do?action=pause&target=report"), "fail": w.url("nothing"),
			"a wrong filter": w.url("keys?longer=soon"),
		} {
			b.do(chromedp.Navigate(path))
			b.await(`document.readyState === "complete"`)
			if view == "key" {
				b.await(`document.querySelectorAll(".bars rect").length >= 2`)
			}
			value[bool](b, string(axe)+axeScript)
			b.await("window.findings !== null")
			for _, f := range value[[]finding](b, "window.findings") {
				if f.Impact == "serious" || f.Impact == "critical" {
					t.Errorf("%s, dark %t: %s (%s): %s: %s", view, dark, f.ID, f.Impact, f.Help, f.Where)
				} else {
					t.Logf("%s, dark %t: %s (%s): %s", view, dark, f.ID, f.Impact, f.Help)
				}
			}
		}
	}
}
