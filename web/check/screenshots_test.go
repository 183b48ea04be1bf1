package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/automutex/automutex/internal/redistest"
)

// TestScreenshots makes the screenshots of docs/page that are made of the demo, where it is asked to.
func TestScreenshots(t *testing.T) {
	if os.Getenv(screenshotsEnv) == "" {
		t.Skipf("set %s to make the screenshots of the docs", screenshotsEnv)
	}
	addr, printed := freeAddr(t), &output{}
	demo := exec.Command("go", "run", "./examples/worker", "-busy", "park", "-workers", "12", "-work", "1500ms", "-tasks", "300", "-web", addr)
	demo.Dir, demo.Env, demo.Stdout, demo.Stderr = filepath.Join("..", ".."), append(os.Environ(), "GOWORK="), printed, printed
	demo.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go run has a child: both are signalled
	redistest.Must(t, demo.Start())
	t.Cleanup(func() { stop(t, demo, printed) })
	serves(t, addr)
	b := open(t)
	b.do(chromedp.EmulateViewport(1200, 760))
	b.do(chromedp.Navigate("http://" + addr + "/"))
	b.await(live + ` && document.querySelectorAll(".hot li").length > 3`)
	b.shoot("overview")
	b.do(chromedp.Navigate("http://" + addr + "/keys"))
	b.await(live + ` && document.querySelectorAll("tbody tr").length > 3`)
	b.do(chromedp.Click(chromedp.CSS(`tbody th a`)))
	b.await(`document.querySelectorAll(".bars .run").length > 8 && ` + live)
	b.shoot("key")
}
