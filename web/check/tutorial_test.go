package check

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/automutex/automutex/internal/redistest"
)

// block is one block of code of the tutorial.
type block struct {
	kind string // sh, go or text
	file string // of a program: the last file that was named before it
	text string
}

func readTutorial(t *testing.T) (blocks []block) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "tutorial.md"))
	redistest.Must(t, err)
	named := regexp.MustCompile("as `([a-z/]+\\.go)`")
	at := 0
	for _, m := range regexp.MustCompile("(?s)```(sh|go|text)\n(.*?)```\n").FindAllSubmatchIndex(page, -1) {
		b := block{kind: string(page[m[2]:m[3]]), text: string(page[m[4]:m[5]])}
		if files := named.FindAllSubmatch(page[at:m[0]], -1); b.kind == "go" && len(files) > 0 {
			b.file = string(files[len(files)-1][1])
		}
		at, blocks = m[1], append(blocks, b)
	}
	return blocks
}

// output keeps what a command prints. It is for the goroutines of exec and for the test.
type output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// TestTutorial does what docs/tutorial.md says, in an empty folder, with the library of the working tree.
func TestTutorial(t *testing.T) {
	b := open(t)
	folder, shell := t.TempDir(), &strings.Builder{} // what was entered so far
	addr := freeAddr(t)
	env := append(os.Environ(), "REDIS_ADDR="+redistest.Real(t).Addr(), "PAGE_ADDR="+addr, "GOWORK=off")
	printed := &output{}
	begin := func(command string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("bash", "-e", "-c", shell.String()+command)
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = folder, env, printed, printed
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go run has a child: both are signalled
		redistest.Must(t, cmd.Start())
		return cmd
	}
	var worker *exec.Cmd
	texts := 0
	for _, block := range readTutorial(t) {
		switch {
		case block.kind == "go":
			name := filepath.Join(folder, "payments", block.file)
			redistest.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
			redistest.Must(t, os.WriteFile(name, []byte(block.text), 0o600))
		case block.kind == "text":
			texts++
			for line := range strings.Lines(block.text) {
				redistest.Eventually(t, patience, func() bool { return strings.Contains(printed.String(), line) },
					"the output has %q", line)
			}
		case strings.HasPrefix(block.text, "go run ./worker"):
			worker = begin(block.text)
			t.Cleanup(func() { stop(t, worker, printed) })
			serves(t, addr)
		default:
			if err := begin(block.text).Wait(); err != nil {
				t.Fatalf("%s: %v\n%s", block.text, err, printed)
			}
			if strings.HasPrefix(block.text, "mkdir") {
				shell.WriteString("cd payments\n")
				env = append(env, "GOPROXY="+fromTree(t, begin))
			}
		}
	}
	if worker == nil || texts < 2 {
		t.Fatalf("the tutorial starts no worker, or shows no output: %d", texts)
	}
	if out := printed.String(); strings.Contains(out, "at work: 2") {
		t.Errorf("two payments of an account at once:\n%s", out)
	}
	b.do(chromedp.EmulateViewport(1200, 600))
	b.do(chromedp.Navigate("http://" + addr + "/keys"))
	b.await(`document.querySelectorAll("tbody tr").length === 3 && document.querySelector("td[data-name=Rule]").innerText && ` + live)
	b.shoot("tutorial")
}

// fromTree has the tutorial's module take the library from the working tree, and returns the proxies with which go get
// finds no release of it.
func fromTree(t *testing.T, begin func(command string) *exec.Cmd) (proxies string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	redistest.Must(t, err)
	gomod, err := os.ReadFile(filepath.Join(root, "web", "go.mod"))
	redistest.Must(t, err)
	release := regexp.MustCompile(`github.com/automutex/automutex (v[^\s]+)`).FindSubmatch(gomod) // the next one
	if release == nil {
		t.Fatal("web requires no automutex")
	}
	proxy := t.TempDir()
	for _, module := range []string{"", "/web"} {
		path := "github.com/automutex/automutex" + module
		redistest.Must(t, begin("go mod edit -replace "+path+"@"+string(release[1])+"="+root+module).Wait())
		versions := filepath.Join(proxy, filepath.FromSlash(path), "@v")
		redistest.Must(t, os.MkdirAll(versions, 0o755))
		redistest.Must(t, os.WriteFile(filepath.Join(versions, "list"), nil, 0o600))
	}
	others, err := exec.Command("go", "env", "GOPROXY").Output()
	redistest.Must(t, err)
	return "file://" + proxy + "," + strings.TrimSpace(string(others))
}

// serves waits until a program serves its page at addr.
func serves(t *testing.T, addr string) {
	t.Helper()
	redistest.Eventually(t, 3*patience, func() bool { // go run compiles all of it first
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, "the program serves its page")
}

// stop ends a command and its children as Ctrl-C does.
func stop(t *testing.T, cmd *exec.Cmd, printed *output) {
	t.Helper()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		t.Errorf("the program did not end by Ctrl-C:\n%s", printed)
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	redistest.Must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// TestScreenshots makes the screenshots of docs/page that are made of the demo, where it is asked to.
func TestScreenshots(t *testing.T) {
	if os.Getenv(screenshotsEnv) == "" {
		t.Skipf("set %s to make the screenshots of the docs", screenshotsEnv)
	}
	addr, printed := freeAddr(t), &output{}
	demo := exec.Command("go", "run", "./examples/worker", "-busy", "park", "-workers", "12", "-work", "1500ms", "-tasks",
		"300", "-web", addr)
	demo.Dir, demo.Env, demo.Stdout, demo.Stderr = filepath.Join("..", ".."), append(os.Environ(), "GOWORK="), printed,
		printed
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
