package check

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/automutex/automutex/internal/keys"
)

// tooWideScript gives what makes the page wider than the screen or cannot be reached on it:
// what ends outside of it and is in no box that scrolls by itself, and a button that is too
// small for a finger.
const tooWideScript = `(() => {
  const wide = document.documentElement.clientWidth, found = [];
  const name = e => e.tagName + " " + (e.id || e.className || e.name || "") + " " + (e.innerText || "").slice(0, 60);
  if (document.documentElement.scrollWidth > wide) found.push("the page is " + document.documentElement.scrollWidth + " wide");
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || e.closest(".skip, svg, .u-wrap")) continue;
    const inBox = e.parentElement.closest(".scroll");
    if (!inBox && (box.left < 0 || box.right > wide + .5)) found.push(Math.round(box.right) + " of " + wide + ": " + name(e));
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
	if err := w.locker.Controls().Pause(context.Background(), "report", time.Time{}, strings.Repeat("because", 20)); err != nil {
		t.Fatal(err)
	}
	key := keys.Key(w.prefix, "report", long)
	ask := func(rest string) string { return w.url("do?" + rest) }
	views := map[string]string{
		"keys": w.url("keys"), "narrowed keys": w.url("keys?longer=soon&q=" + strings.Repeat("x", 80)), "key": w.keyURL(key), "rules": w.url("rules"),
		"break": ask("action=break&key=" + url.QueryEscape(key)), "pause": ask("action=pause&target=" + url.QueryEscape("report|"+long)),
		"limit": ask("action=limit&target=report"), "sweep": ask("action=sweep"), "fail": w.url("key?key=" + strings.Repeat("x}", 150)),
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
				if inset := value[float64](b, `parseFloat(getComputedStyle(document.querySelector(".levels.card")).paddingLeft)`); inset < 8 {
					t.Errorf("the text of a list begins %v pixels from the edge of its card", inset)
				}
			}
			if high := value[int](b, `document.querySelector("main .filter")?.offsetHeight ?? 0`); view == "keys" && width == 360 && high > 190 {
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

// The chart has the times that the tables have, UTC, in whatever zone the browser is, and the
// page says so.
func TestPage_timesAreUTC(t *testing.T) {
	w, b := start(t), open(t)
	b.before(drawnScript)
	b.command(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kathmandu"}) // UTC+5:45
		return err
	})
	w.leaseOf("a")
	b.do(chromedp.Navigate(w.url("")))
	// The chart begins with its second point.
	b.await(`document.querySelector("#plot .u-legend") && drawn.some(text => /^\d\d:\d\d$/.test(text))`)
	b.text("Times are UTC.")
	if offset := value[int](b, "new Date().getTimezoneOffset()"); offset != -345 {
		t.Fatalf("the browser's zone is %d minutes from UTC", offset)
	}
	now := time.Now().UTC()
	for _, text := range value[[]string](b, `drawn.filter(text => /\d:\d\d/.test(text))`) {
		at, err := time.Parse("15:04", text)
		if err != nil {
			t.Errorf("%q is on the chart: %v", text, err)
			continue
		}
		// The chart has the last hour, and a tick a minute from now at most.
		const day = 24 * 60
		if late := (now.Hour()*60 + now.Minute() - at.Hour()*60 - at.Minute() + 1 + day) % day; late > 121 {
			t.Errorf("%s is on the chart at %s UTC", text, now.Format("15:04"))
		}
	}
	b.nothingWrong()
}
