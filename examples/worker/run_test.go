package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	redistest.Main(m)
}

// outcome is what a run told.
type outcome struct {
	exit           int
	stdout, stderr string
	n              map[string]int // what the last line counts
}

// try runs the program with words of flags; the last line of its output must be the result.
func try(t *testing.T, ctx context.Context, flags string) (o outcome) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o.exit = run(ctx, strings.Fields(flags), &stdout, &stderr)
	o.stdout, o.stderr = stdout.String(), stderr.String()
	_, result, told := strings.Cut(o.stdout, "\nresult: ")
	result, _, _ = strings.Cut(result, "\n") // of -noisy the first
	if o.n = map[string]int{}; !told {
		t.Fatal(flags, o.stdout, o.stderr)
	}
	for _, pair := range strings.Fields(result) {
		name, n, _ := strings.Cut(pair, "=")
		o.n[name], _ = strconv.Atoi(n)
	}
	return o
}

var late = regexp.MustCompile("the controls can|subscription broke")

// expect checks the exit status and how many tasks there were, done, or ended by the policy. Redis may be late.
func (o outcome) expect(t *testing.T, exit, tasks int) {
	t.Helper()
	ended := o.n["done"] + o.n["skipped"] + o.n["replaced"] + o.n["archived"]
	if o.exit != exit || o.n["tasks"] != tasks || ended != tasks || exit == 0 &&
		strings.Count(o.stderr, "\n") != len(late.FindAllString(o.stderr, -1)) {
		t.Errorf("exit %d, want %d with %d tasks, nothing lost or said\nstdout:\n%s\nstderr:\n%s", o.exit, exit, tasks,
			o.stdout, o.stderr)
	}
}

// With the guard nobody overlaps and nobody is lost, whatever the policy, on every kind of Redis.
func TestRun_guarded(t *testing.T) {
	t.Parallel()
	for flags, ends := range map[string]string{
		"": "done", "-limit 2": "done", "-busy retry": "done", "-workers 1": "done", "-on sender.login -work 3ms": "done",
		"-in-order":           "done",
		"-busy skip -wait 0s": "skipped", "-busy archive -wait 0s": "archived", "-busy replace": "replaced",
	} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			o := try(t, t.Context(), "-tasks 60 "+flags)
			o.expect(t, 0, 60)
			if o.n[ends] == 0 || ends == "done" && o.n["done"] != 60 || o.n["overlaps"] > 0 ||
				strings.Contains(flags, "order") && !strings.Contains(o.stdout, "in order: 0 tasks began after one") {
				t.Error(o.stdout)
			}
		})
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		address := "redis://" + s.Addr()
		if s.Kind() == redistest.KindCluster {
			address = strings.Join(s.Addrs(), ",")
		}
		try(t, t.Context(), "-tasks 60 -work 3ms -redis "+address).expect(t, 0, 60)
	})
}

// The tasks of a file run, of whatever type; a line that cannot is named, and nothing runs.
func TestRun_input(t *testing.T) {
	t.Parallel()
	flags := "-on tenant -input " + filepath.Join(t.TempDir(), "tasks")
	const good = `{"type": "report", "payload": {"tenant": 7}}` + "\n" + `{"tenant": "7", "type": "a"}` + "\n"
	for text, wrong := range map[string]string{
		good + "x": "tasks:3: ", good + "\n" + good: "tasks:3: ", "null": "task 1: ", good: "",
		`{"type": 1, "payload": {}}`: "tasks:1: ", good + `{"tenants": 1}`: "task 3: ",
	} {
		redistest.Must(t, os.WriteFile(strings.Fields(flags)[3], []byte(text), 0o600))
		if wrong != "" {
			refused(t, flags, wrong)
		} else if o := try(t, t.Context(), flags); o.n["done"] != 2 || !strings.Contains(o.stdout, "\n7  ") {
			t.Error(o.stdout)
		}
	}
}

// With -web it stays until it is interrupted.
func TestRun_web(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	out, in := io.Pipe()
	go func() { // ends with interrupt
		defer in.Close()
		run(ctx, strings.Fields("-tasks 5 -web 127.0.0.1:0"), in, io.Discard)
	}()
	told, lines := "", bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "result: ") {
		told += lines.Text() + " "
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Get(regexp.MustCompile(`http://\S+`).FindString(told))
	redistest.Must(t, err)
	if redistest.Must(t, got.Body.Close()); !strings.Contains(told, " tasks run, ") {
		t.Error(told)
	}
	interrupt()
	_, _ = io.Copy(io.Discard, out) // until it returns
}

// Without the guard tasks overlap, as in the first run of -noisy, and so they do under a policy that lets them: those
// that work for longer than a busy machine needs to start another one.
func TestRun_overlaps(t *testing.T) {
	for flags, exit := range map[string]int{"-unguarded": 0, "-noisy": 0, "-busy allow -wait 0s": 1} {
		var o outcome
		for work := 5 * time.Millisecond; o.n["overlaps"] == 0 && work < time.Second; work *= 10 {
			o = try(t, t.Context(), fmt.Sprintf("-tasks 60 %s -work %s", flags, work))
		}
		o.expect(t, exit, 60)
		if o.n["overlaps"] == 0 || o.n["done"] != 60 || strings.Contains(o.stdout, "without the rule") == (flags[1] != 'n') {
			t.Errorf("%q: no overlaps:\n%s", flags, o.stdout)
		}
	}
}

func refused(t *testing.T, flags, why string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if exit := run(t.Context(), strings.Fields(flags), &stdout, &stderr); exit != 2 ||
		strings.Contains(stdout.String(), "result") || !strings.Contains(stderr.String(), why) {
		t.Error(flags, exit, stdout.String(), stderr.String(), "want", why)
	}
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{
		"-workers 0", "-limit -1", "-busy never", "-on a..b", "-busy retry -wait -1s", "-redis nonsense",
		"-redis redis://127.0.0.1:1", "-web 0.0.0.0:0", "-web x", "-in-order -unguarded", "-noisy -unguarded", "stray",
		"-nosuch", "-input nosuch",
	} {
		refused(t, flags, "worker: ")
	}
	var stderr bytes.Buffer
	if exit := run(t.Context(), []string{"-h"}, io.Discard, &stderr); exit != 0 ||
		!strings.Contains(stderr.String(), "-unguarded") {
		t.Error(exit, stderr.String())
	}
}
