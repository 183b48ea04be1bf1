package check

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/keys"
)

// outsideScript gives the bars that are not in the picture or not to be seen, and the times on its axis that run into
// each other or out of the screen.
const outsideScript = `(() => {
  const found = [], box = document.querySelector(".bars svg").getBoundingClientRect();
  for (const e of document.querySelectorAll(".bars rect")) {
    const r = e.getBoundingClientRect();
    if (r.left < box.left - 1 || r.right > box.right + 1 || r.bottom > box.bottom || r.width < .5 || r.height < 2) found.push("a bar from " + r.left + " to " + r.right + ", " + r.height + " high");
  }
  let end = 0;
  for (const e of [...document.querySelectorAll(".bars text")].filter(e => e.getBoundingClientRect().width)) {
    const r = e.getBoundingClientRect();
    if (r.left < end + 4 || r.right > innerWidth) found.push(e.textContent + " from " + r.left + " to " + r.right + " after " + end);
    end = r.right;
  }
  return found;
})()`

// With nothing known of a key its page says so in a sentence. Runs come to it by themselves, as bars on an axis that fits
// any screen and any span, in light and dark.
func TestPage_runs(t *testing.T) {
	w, b := start(t), open(t)
	key := keys.Key(w.prefix, "report", `<b>"acme`)
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
			runs.Add(key, history.Run{Task: fmt.Sprintf("default/<i>%d-%d", i, n), Outcome: outcome, Came: end.Add(-span), Start: at, End: at.Add(span / 4)})
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
			if back := value[string](b, `getComputedStyle(document.body).backgroundColor`); (back == "rgb(245, 246, 248)") == dark {
				t.Errorf("dark %t: the background is %s", dark, back)
			}
		}
	}
	b.nothingWrong()
}
