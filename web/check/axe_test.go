package check

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/keys"
)

// axeEnv names the file axe.min.js of the npm package axe-core, which is not in this
// repository: npm pack axe-core, and unpack it.
const axeEnv = "AUTOMUTEX_AXE"

// finding is what axe-core says of a page.
type finding struct {
	ID, Impact, Help, Where string
}

// axeScript runs axe-core and leaves its findings in window.findings.
const axeScript = `;window.findings = null; axe.run(document, {resultTypes: ["violations"]}).then(r => {
	window.findings = r.violations.map(v => ({ID: v.id, Impact: v.impact || "", Help: v.help, Where: v.nodes.map(n => n.target.join(" ") + " " + n.failureSummary).slice(0, 3).join("; ")}));
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
	runs.Add(key, history.Run{Task: "default/before", Outcome: "failed", Came: now.Add(-time.Minute), Start: now.Add(-40 * time.Second), End: now})
	runs.Close(context.Background())
	b.do(chromedp.Navigate(w.url("keys")))
	b.text("parked")
	for _, dark := range []bool{false, true} {
		b.dark(dark)
		for view, path := range map[string]string{
			"overview": w.url(""), "blocked": w.url("blocked"), "keys": w.url("keys"), "key": w.keyURL(key), "rules": w.url("rules"),
			"ask": strings.Replace(w.keyURL(key), "key?", "do?action=break&", 1), "pause": w.url("do?action=pause&target=report"), "fail": w.url("nothing"),
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
