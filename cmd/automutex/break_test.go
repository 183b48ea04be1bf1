package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// lost waits until a task's handler was told that its lease is lost.
func (tr *traffic) lost(id string) {
	tr.t.Helper()
	redistest.Eventually(tr.t, patience, func() bool {
		ctx := tr.context(id)
		return ctx != nil && errors.Is(context.Cause(ctx), lock.ErrLost)
	}, "the handler of %s is told", id)
}

func testBreak(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait, automutex.Rule{Task: "report", Limit: 3})
		tr.enqueue("first", "work", `{"id": 7}`)
		tr.holds("first")
		tr.enqueue("second", "work", `{"id": 7}`)
		tr.line(1, "work", "7")
		tr.enqueue("other", "work", `{"id": 8}`)
		tr.holds("other")
		r := b.runWith(t, "y\n", nil, tr.flags("break", keytext.Key(tr.prefix, "work", "7"))...)
		if r.exit != exitOK || !strings.Contains(r.stderr, "Take the lock from 1 holder? [y/N]") || !strings.Contains(r.stdout, tr.queue+"/first") ||
			!strings.HasSuffix(r.stdout, "broken: 1 of 1\n") {
			t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
		}
		tr.lost("first")
		tr.holds("second")
		// Only that one.
		if ctx := tr.context("other"); ctx.Err() != nil {
			t.Error("another lock's holder was told")
		}
		for _, id := range []string{"a", "b"} {
			tr.enqueue(id, "report", `{}`)
			tr.holds(id)
		}
		b.run(t, tr.flags("break", "report", "--yes")...).want(t, exitOK, "broken: 2 of 2")
		tr.lost("a")
		tr.lost("b")
	})
}

// testBreakAsks: without a yes nothing is done.
func testBreakAsks(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait, automutex.Rule{Task: "report", Limit: 3})
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	flags := tr.flags("break", "work|7")
	for _, answer := range []string{"", "\n", "n\n", "no\n", "yess\n", "\x00\xff\n", strings.Repeat("y", 1<<16)} {
		r := b.runWith(t, answer, nil, flags...)
		r.wantErrorLine(t, exitNo, "nothing was done")
		if !strings.Contains(r.stderr, "Take the lock from 1 holder? [y/N] ") {
			t.Errorf("%.20q: the question is %q", answer, r.stderr)
		}
	}
	// The question counts: the holders of a lock with a limit.
	for _, id := range []string{"a", "b"} {
		tr.enqueue(id, "report", `{}`)
		tr.holds(id)
	}
	several := b.runWith(t, "n\n", nil, tr.flags("break", "report")...)
	several.wantErrorLine(t, exitNo, "nothing was done")
	if !strings.Contains(several.stderr, "Take the lock from 2 holders? [y/N] ") {
		t.Errorf("the question is %q", several.stderr)
	}
	// Interrupted at the question.
	cmd := b.command(t, nil, flags...)
	stdin, err := cmd.StdinPipe() // stays open and says nothing
	redistest.Must(t, err)
	stderr, err := cmd.StderrPipe()
	redistest.Must(t, err)
	redistest.Must(t, cmd.Start())
	var said strings.Builder
	buffer := make([]byte, 100)
	for !strings.Contains(said.String(), "[y/N]") {
		n, err := stderr.Read(buffer)
		if err != nil {
			t.Fatalf("%v after %q", err, said.String())
		}
		said.Write(buffer[:n])
	}
	redistest.Must(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	_ = stdin.Close()
	if cmd.ProcessState.ExitCode() != exitNo {
		t.Errorf("interrupted: %s", cmd.ProcessState)
	}
	if r := b.run(t, tr.flags("show", "work|7")...); r.exit != exitOK || tr.context("first").Err() != nil {
		t.Errorf("the lock was broken without a yes: %s%s", r.stdout, r.stderr)
	}
}

func testBreakHolder(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), automutex.Rule{Task: "report", Limit: 3})
	for _, id := range []string{"a", "b"} {
		tr.enqueue(id, "report", `{}`)
		tr.holds(id)
	}
	all := lines[inspect.Lock](t, b.run(t, tr.flags("list", "--json")...).want(t, exitOK).stdout)
	token := ""
	for _, h := range all[0].Holders {
		if h.Task == "b" {
			token = h.Token
		}
	}
	b.run(t, tr.flags("break", "report", "--holder", "nobody.3000.1", "--yes")...).wantError(t, exitNo, `nobody with the token "nobody.3000.1"`)
	b.run(t, tr.flags("break", "report", "--holder", "", "--yes")...).wantError(t, exitUsage, "--holder")
	r := b.run(t, tr.flags("break", "report", "--holder", token, "-y")...).want(t, exitOK, "broken: 1 of 1")
	if strings.Contains(r.stdout, tr.queue+"/a") {
		t.Errorf("shows another holder:\n%s", r.stdout)
	}
	tr.lost("b")
	if tr.context("a").Err() != nil {
		t.Error("the other holder was told")
	}
	b.run(t, tr.flags("break", "work|none", "--yes")...).wantError(t, exitNo, "nobody holds")
}

// testBreakHangs: a Redis that falls silent after the question is an error
// within the timeout.
func testBreakHangs(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	proxy := redistest.NewProxy(t, tr.server.Addr())
	cmd := b.command(t, nil, "break", "work|7", "--prefix", tr.prefix, "--uri", proxy.Addr(), "--timeout", "1s")
	stdin, err := cmd.StdinPipe()
	redistest.Must(t, err)
	var stdout, stderr strings.Builder
	question := &prompt{w: &stderr, seen: make(chan struct{}), text: "[y/N]"}
	cmd.Stdout, cmd.Stderr = &stdout, question
	redistest.Must(t, cmd.Start())
	select {
	case <-question.seen:
	case <-time.After(patience):
		t.Fatal("no question")
	}
	proxy.Blackhole(true)
	began := time.Now()
	if _, err := stdin.Write([]byte("y\n")); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	r := result{args: cmd.Args, exit: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String(), took: time.Since(began)}
	r.wantErrorLine(t, exitRedis, "0 of 1 broken")
	if r.took > 10*time.Second {
		t.Errorf("took %s with a timeout of 1s", r.took)
	}
	if tr.context("first").Err() != nil {
		t.Error("broken all the same")
	}
}

// prompt closes seen when text was written.
type prompt struct {
	w    *strings.Builder
	seen chan struct{}
	text string
	done bool
}

// Write is called by one goroutine of exec's, one call after the other.
func (w *prompt) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if !w.done && strings.Contains(w.w.String(), w.text) {
		w.done = true
		close(w.seen)
	}
	return n, err
}

// testBreakLate: what has ended by itself before the yes is said to be over.
func testBreakLate(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	held, err := tr.others.Mutex("held").TryLock(t.Context())
	redistest.Must(t, err)
	closes, err := tr.others.Mutex("closed").TryLock(t.Context())
	redistest.Must(t, errors.Join(err, inner.CloseGate(t.Context(), closes, time.Hour), closes.Unlock(t.Context())))
	for name, c := range map[string]struct {
		end  func() error
		want string
	}{
		"held":   {func() error { return held.Unlock(t.Context()) }, "what was shown of"},
		"closed": {func() error { _, err := inner.OpenGate(t.Context(), tr.others.Mutex("closed")); return err }, "what was shown of"},
	} {
		cmd := b.command(t, nil, tr.flags("break", name)...)
		stdin, err := cmd.StdinPipe()
		redistest.Must(t, err)
		var stderr strings.Builder
		question := &prompt{w: &stderr, seen: make(chan struct{}), text: "[y/N]"}
		cmd.Stderr = question
		redistest.Must(t, cmd.Start())
		select {
		case <-question.seen:
		case <-time.After(patience):
			t.Fatal("no question")
		}
		redistest.Must(t, c.end())
		if _, err := stdin.Write([]byte("y\n")); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the exit code says it
		if exit := cmd.ProcessState.ExitCode(); exit != exitNo || !strings.Contains(stderr.String(), c.want) || !strings.Contains(stderr.String(), "nothing was done") {
			t.Errorf("%s: exit code %d, %s", name, exit, stderr.String())
		}
	}
}
