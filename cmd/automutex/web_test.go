package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// served is a running "automutex web".
type served struct {
	t      *testing.T
	url    string
	cmd    *exec.Cmd
	stderr *strings.Builder // the command's own until it has ended
}

func startWeb(t *testing.T, b binary, env []string, args ...string) served {
	t.Helper()
	cmd := b.command(t, env, append([]string{"web", "--listen", "127.0.0.1:0"}, args...)...)
	out, err := cmd.StdoutPipe()
	redistest.Must(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	redistest.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	_, at, ok := strings.Cut(strings.TrimSpace(line), "the page is at ")
	if err != nil || !ok {
		t.Fatalf("%q: %q, %v; %s", args, line, err, stderr.String())
	}
	return served{t, at, cmd, &stderr}
}

func (s served) get(path string, change func(*http.Request)) (int, string) {
	s.t.Helper()
	return s.send(http.MethodGet, path, nil, change)
}

// send sends a request, without following redirects.
func (s served) send(method, path string, body io.Reader, change func(*http.Request)) (int, string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.url, "/")+path, body)
	redistest.Must(s.t, err)
	if change != nil {
		change(req)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	redistest.Must(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	redistest.Must(s.t, err)
	return resp.StatusCode, string(text)
}

// The page shows the locks of real tasks, named by the file's rules, and ends at an
// interrupt although somebody watches.
func testWeb(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s)
	tr.enqueue("the-task", "work", `{"id": 7}`)
	tr.holds("the-task")
	w := startWeb(t, b, nil, file(t, "prefix: "+tr.prefix+"\nrules:\n  - {name: the-rule, task: work, on: [id]}\n"),
		"--uri", s.Addr(), "--asynqmon-path", "/asynq")
	redistest.Eventually(t, patience, func() bool {
		status, body := w.get("/keys", nil)
		return status == http.StatusOK && strings.Contains(body, "<bdi>work|7</bdi>") && strings.Contains(body, "the-rule") &&
			strings.Contains(body, "/the-task</a>") && strings.Contains(body, "worker-1:4242")
	}, "the page shows the lock")
	for host, want := range map[string]int{"evil.example.com": http.StatusMisdirectedRequest,
		"192.0.2.1:80": http.StatusMisdirectedRequest, "localhost": http.StatusOK, "[::1]:80": http.StatusOK} {
		if status, _ := w.get("/", func(r *http.Request) { r.Host = host }); status != want {
			t.Errorf("under the name %s: status %d, want %d", host, status, want)
		}
	}
	live, err := http.Get(w.url + "live?view=keys")
	redistest.Must(t, err)
	defer live.Body.Close()
	redistest.Must(t, w.cmd.Process.Signal(syscall.SIGINT))
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}

// With a user and a password in the environment, nobody gets in without them.
func testWebOperator(t *testing.T, b binary) {
	s := redistest.Real(t)
	for by, login := range map[string][]string{
		"ops ann": {"AUTOMUTEX_WEB_USER=ops ann", "AUTOMUTEX_WEB_PASSWORD=secret"}, "automutex web": nil,
	} {
		flags := []string{"--uri", s.Addr(), "--prefix", redistest.Name(t)}
		w := startWeb(t, b, login, append([]string{"--operate"}, flags...)...)
		as := func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.SetBasicAuth("ops ann", "secret")
		}
		for _, wrong := range [][2]string{{"", ""}, {"ops ann", ""}, {"ops ann", "wrong"}, {"other", "secret"}} {
			status, _ := w.get("/static/app.css", func(r *http.Request) { r.SetBasicAuth(wrong[0], wrong[1]) })
			if (status == http.StatusUnauthorized) != (login != nil) {
				t.Errorf("login %q: %q gets %d", login, wrong, status)
			}
		}
		act := func(form url.Values, want int) {
			t.Helper()
			if status, body := w.send(http.MethodPost, "/do", strings.NewReader(form.Encode()), as); status != want {
				t.Fatalf("%v: status %d\n%s", form, status, body)
			}
		}
		act(url.Values{"action": {"pause"}, "target": {"report"}, "for": {"1h"}, "why": {"the API is down"}},
			http.StatusSeeOther)
		b.run(t, append([]string{"controls", "--json"}, flags...)...).want(t, exitOK, `"by":"`+by+`"`,
			`"why":"the API is down"`)
		act(url.Values{"action": {"resume"}, "target": {"report"}}, http.StatusSeeOther)
		act(url.Values{"action": {"resume"}, "target": {"report"}}, http.StatusConflict) // it is not paused any more
		redistest.Must(t, w.cmd.Process.Signal(syscall.SIGTERM))
		if err := w.cmd.Wait(); err != nil {
			t.Error(err)
		}
		logged := `by=""`
		if login != nil {
			logged = `by="ops ann"`
		}
		for _, line := range []string{
			`an action was done" action=pause target=report ` + logged +
				` why="the API is down" result="report is paused for 1h."`,
			`an action failed" action=resume target=report ` + logged,
		} {
			if !strings.Contains(w.stderr.String(), line) {
				t.Errorf("login %q: %s is not in the log:\n%s", login, line, w.stderr.String())
			}
		}
	}
}
