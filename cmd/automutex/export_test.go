package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/web"
)

// The rules of a running Go program become a file that the other commands take.
func testExport(t *testing.T, b binary) {
	s := redistest.Mini(t)
	rules := []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}
	page, err := web.New(s.Client(t), web.Options{RootPath: "/locks", Prefix: "mine", Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	program := httptest.NewServer(page)
	defer program.Close()
	text := b.run(t, "export", program.URL+"/locks").want(t, exitOK, "prefix: mine", "task: work", "busy: park").stdout
	for _, at := range []string{"/locks/", "/locks/rules.yaml"} {
		if again := b.run(t, "export", program.URL+at).want(t, exitOK).stdout; again != text {
			t.Errorf("%s gives\n%s", at, again)
		}
	}
	name := file(t, text)
	b.run(t, "check", name).want(t, exitOK, "<type>|<id>", "park")
	b.run(t, "key", name, "--type", "work", "--payload", `{"id": 7}`).want(t, exitOK, "mine:{work|7}")

	b.run(t, "export", program.URL+"/elsewhere").wantError(t, exitNo, "404")
	b.run(t, "export", "localhost:8080").wantError(t, exitUsage, "want the URL")
	b.run(t, "export", "http://127.0.0.1:1").wantError(t, exitNo, "refused")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "<h1>Hello</h1>") }))
	defer other.Close()
	b.run(t, "export", other.URL).wantError(t, exitNo, "does not answer with rules")

	keyed, err := web.New(s.Client(t), web.Options{Rules: []automutex.Rule{
		{Task: "work", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, nil }},
	}})
	if err != nil {
		t.Fatal(err)
	}
	inCode := httptest.NewServer(keyed)
	defer inCode.Close()
	r := b.run(t, "export", inCode.URL)
	if r.exit != exitNo || r.stdout != "" || !strings.Contains(r.stderr, `rule "work" (Rules[0]): Key: cannot be in a file`) {
		t.Errorf("exit %d, %q, %q", r.exit, r.stdout, r.stderr)
	}
}

// A page with a login is asked with that of the environment.
func testExportLogin(t *testing.T, b binary) {
	s := redistest.Mini(t)
	login := []string{"AUTOMUTEX_WEB_USER=ops", "AUTOMUTEX_WEB_PASSWORD=secret"}
	w := startWeb(t, b, login, file(t, "rules: [{task: work}]"), "--uri", s.Addr())
	b.run(t, "export", w.url).wantError(t, exitNo, "AUTOMUTEX_WEB_PASSWORD")
	b.runWith(t, "", login, "export", w.url).want(t, exitOK, "task: work")
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Wait(); err != nil {
		t.Error(err)
	}
}
