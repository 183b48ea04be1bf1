package check

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/automutex/automutex/internal/redistest"
)

// patience is how long a test waits for what should come at once.
const patience = 60 * time.Second

// browser is a tab of a Chromium of its own.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// watchScript runs before every page's own scripts and keeps what goes wrong: violations of
// the policy, and errors of scripts.
const watchScript = `
window.wrong = [];
document.addEventListener("securitypolicyviolation", e =>
  wrong.push("policy: " + e.violatedDirective + " " + e.blockedURI));
window.addEventListener("error", e => wrong.push("error: " + e.message));
window.addEventListener("unhandledrejection", e => wrong.push("rejection: " + e.reason));`

// open starts Chromium. Without one a test fails where real servers are required, and is skipped elsewhere.
func open(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("AUTOMUTEX_TEST_REDIS") == "require" {
			t.Fatal("there is no chromium here: apt-get install chromium")
		}
		t.Skip("there is no chromium here: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-component-update", true),
	)
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b := &browser{t, ctx}
	b.before(watchScript)
	return b
}

// before has a script run before every page's own.
func (b *browser) before(script string) {
	b.t.Helper()
	b.command(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, page.AddScriptToEvaluateOnNewDocument,
			page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	})
}

// live is an expression that is true once the view renews itself.
const live = `document.getElementById("state")?.textContent === "live"`

func (b *browser) command(f func(ctx context.Context, tab *chromedp.Target) error) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Func(f)); err != nil {
		b.t.Fatalf("the browser: %v", err)
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("the browser: %v", err)
	}
}

// value evaluates an expression in the page.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// await waits until an expression is true in the page, and tells how long that took.
func (b *browser) await(expression string) time.Duration {
	b.t.Helper()
	began := time.Now()
	redistest.Eventually(b.t, patience, func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		defer cancel()
		// An error is a page that is on its way out, or not there yet.
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		return is && err == nil
	}, "in the page: %s", expression)
	return time.Since(began)
}

func (b *browser) text(text string) time.Duration {
	b.t.Helper()
	return b.await("document.body.innerText.includes(" + quoted(text) + ")")
}

// nothingWrong holds that no script failed and no policy was violated in this page.
func (b *browser) nothingWrong() {
	b.t.Helper()
	for _, what := range value[[]string](b, "window.wrong") {
		b.t.Errorf("in the page: %s", what)
	}
}

func (b *browser) dark(on bool) {
	b.t.Helper()
	scheme := "light"
	if on {
		scheme = "dark"
	}
	b.command(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

// shoot makes a picture of the screen, where AUTOMUTEX_SCREENSHOTS names a folder for those of docs/page:
//
//	AUTOMUTEX_SCREENSHOTS=$PWD/docs/page GOWORK=off go -C web/check test -run 'Screenshots|Tutorial' .
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv(screenshotsEnv)
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	redistest.Must(b.t, err)
	redistest.Must(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

const screenshotsEnv = "AUTOMUTEX_SCREENSHOTS"

func TestMain(m *testing.M) { redistest.Main(m) }
