package check

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// tabTo presses Tab until an element of the page has the focus, and holds that each one on the
// way shows that it has it.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	for range 60 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if !value[bool](b, `document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
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
	b.text("hostile|a")
	b.await(live)
	b.tabTo(".skip")
	if left := value[float64](b, "document.activeElement.getBoundingClientRect().left"); left < 0 {
		t.Error("the link past the navigation is not on the screen while it has the focus")
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await(`document.activeElement.id === "main"`)
	b.tabTo(`a[href*="key?key="]`)
	w.leaseOf("b")
	b.text("hostile|b")
	if focused := value[string](b, "document.activeElement.innerText"); focused != "hostile|a" {
		t.Errorf("after an update the focus is on %q, and was on hostile|a", focused)
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
	b.text("hostile|a is paused for 2h.")
	b.nothingWrong()
	if at := value[string](b, "document.querySelector('h1.key').innerText"); at != "hostile|a" {
		t.Errorf("after the action this is the page of %q", at)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.actions) != 1 || w.actions[0].Target != "hostile|a" || w.actions[0].Why != "its data is repaired" {
		t.Errorf("Audit got %+v", w.actions)
	}
}
