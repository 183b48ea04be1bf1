package check

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// The screenshots of docs are made of the demo, while it runs:
//
//	go run ./examples/worker -workers 30 -web 127.0.0.1:8081
//	AUTOMUTEX_PAGE=http://127.0.0.1:8081/ AUTOMUTEX_SCREENSHOTS=$PWD/docs/page GOWORK=off go -C web/check test -run Screenshots .
const (
	pageEnv        = "AUTOMUTEX_PAGE"
	screenshotsEnv = "AUTOMUTEX_SCREENSHOTS"
)

// TestScreenshots makes the screenshots of docs/page, where it is asked to.
func TestScreenshots(t *testing.T) {
	page, dir := os.Getenv(pageEnv), os.Getenv(screenshotsEnv)
	if page == "" || dir == "" {
		t.Skipf("set %s and %s to make the screenshots of the docs", pageEnv, screenshotsEnv)
	}
	b := open(t)
	b.do(chromedp.EmulateViewport(1200, 720))
	shoot := func(name string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		defer cancel()
		png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.do(chromedp.Navigate(page))
	b.await(`document.querySelectorAll("tbody tr").length > 3 && document.getElementById("state").textContent === "live"`)
	b.await(`document.querySelector("#chart-data") && !document.querySelector("#chart-data[data-empty='true']") && !document.getElementById("plot").hidden`)
	shoot("keys")
	b.do(chromedp.Click(chromedp.CSS(`tbody th a`)))
	b.await(`document.querySelector("h1.key") && document.querySelectorAll("tbody tr").length > 3 && document.getElementById("state").textContent === "live"`)
	shoot("key")
	b.dark(true)
	b.do(chromedp.Navigate(page + "rules"))
	b.await(`document.getElementById("state").textContent === "live"`)
	shoot("rules")
}
