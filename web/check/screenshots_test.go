package check

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
)

// The screenshots of docs are made of the demo, and of the tutorial's worker:
//
//	AUTOMUTEX_SCREENSHOTS=$PWD/docs/page GOWORK=off go -C web/check test -run 'Screenshots|Tutorial' .
//
// With AUTOMUTEX_VIEWS set to a folder there is also one of each view, wide and narrow, light and dark.
const (
	screenshotsEnv = "AUTOMUTEX_SCREENSHOTS"
	viewsEnv       = "AUTOMUTEX_VIEWS"
)

// TestScreenshots makes the screenshots of docs/page, where it is asked to.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv(screenshotsEnv)
	if dir == "" {
		t.Skipf("set %s to make the screenshots of the docs", screenshotsEnv)
	}
	addr, printed := freeAddr(t), &output{}
	page := "http://" + addr + "/"
	demo := exec.Command("go", "run", "./examples/worker", "-busy", "park", "-workers", "12", "-work", "1500ms", "-tasks", "300", "-web", addr)
	demo.Dir, demo.Env, demo.Stdout, demo.Stderr = filepath.Join("..", ".."), append(os.Environ(), "GOWORK="), printed, printed
	demo.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go run has a child: both are signalled
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, demo, printed) })
	serves(t, addr)
	b := open(t)
	shoot := func(file string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		defer cancel()
		png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".png", png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	live := `document.getElementById("state").textContent === "live"`
	b.do(chromedp.EmulateViewport(1200, 760))
	b.do(chromedp.Navigate(page))
	b.await(live + ` && document.querySelectorAll(".hot li").length > 3`)
	shoot(filepath.Join(dir, "overview"))
	b.do(chromedp.Navigate(page + "keys"))
	b.await(live + ` && document.querySelectorAll("tbody tr").length > 3`)
	b.do(chromedp.Click(chromedp.CSS(`tbody th a`)))
	b.await(`document.querySelectorAll(".bars .run").length > 8 && ` + live)
	shoot(filepath.Join(dir, "key"))
	key := value[string](b, "location.search")
	all := os.Getenv(viewsEnv)
	if all == "" {
		return
	}
	for _, dark := range []string{"light", "dark"} {
		b.dark(dark == "dark")
		for _, width := range []int64{1280, 360} {
			b.do(chromedp.EmulateViewport(width, 800))
			for name, path := range map[string]string{
				"overview": "", "keys": "keys", "key": "key" + key, "blocked": "blocked", "rules": "rules",
				"ask": "do?action=pause&target=repository",
			} {
				b.do(chromedp.Navigate(page + path))
				b.await(`document.readyState === "complete" && (!document.getElementById("state") || ` + live + `)`)
				shoot(filepath.Join(all, name+"-"+dark+map[int64]string{1280: "-wide", 360: "-narrow"}[width]))
			}
		}
	}
}
