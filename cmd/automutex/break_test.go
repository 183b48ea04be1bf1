package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
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
		r := b.runWith(t, "y\n", nil, tr.flags("break", keys.Key(tr.prefix, "work", "7"))...)
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
	for _, id := range []string{"a", "b"} { // the question counts
		tr.enqueue(id, "report", `{}`)
		tr.holds(id)
	}
	for _, c := range []struct{ key, answer, question string }{
		{"work|7", "", "1 holder"}, {"work|7", "\n", "1 holder"}, {"work|7", "yess\n", "1 holder"}, {"work|7", "\x00\xff\n", "1 holder"}, {"report", "n\n", "2 holders"},
	} {
		r := b.runWith(t, c.answer, nil, tr.flags("break", c.key)...)
		r.wantErrorLine(t, exitNo, "nothing was done")
		if !strings.Contains(r.stderr, "Take the lock from "+c.question+"? [y/N] ") {
			t.Errorf("%.20q: the question is %q", c.answer, r.stderr)
		}
	}
	q := asked(t, b, tr.flags("break", "work|7")...)
	redistest.Must(t, q.cmd.Process.Signal(os.Interrupt))
	q.ends().wantErrorLine(t, exitNo, "interrupted; nothing was done")
	if r := b.run(t, tr.flags("show", "work|7")...); r.exit != exitOK || tr.context("first").Err() != nil {
		t.Errorf("the lock was broken without a yes: %s%s", r.stdout, r.stderr)
	}
}

// question is a break that waits for its answer.
type question struct {
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *strings.Builder
	seen           chan struct{} // closed when the question was asked
}

// asked runs the program until it asks.
func asked(t *testing.T, b binary, args ...string) *question {
	t.Helper()
	q := &question{cmd: b.command(t, nil, args...), stdout: &strings.Builder{}, stderr: &strings.Builder{}, seen: make(chan struct{})}
	var err error
	q.stdin, err = q.cmd.StdinPipe()
	redistest.Must(t, err)
	q.cmd.Stdout, q.cmd.Stderr = q.stdout, q
	redistest.Must(t, q.cmd.Start())
	select {
	case <-q.seen:
	case <-time.After(patience):
		t.Fatal("no question")
	}
	return q
}

// Write is called by one goroutine of exec's, one call after the other.
func (q *question) Write(p []byte) (int, error) {
	before := strings.Contains(q.stderr.String(), "[y/N]")
	n, err := q.stderr.Write(p)
	if !before && strings.Contains(q.stderr.String(), "[y/N]") {
		close(q.seen)
	}
	return n, err
}

func (q *question) answer(t *testing.T, text string) *question {
	t.Helper()
	_, err := io.WriteString(q.stdin, text)
	redistest.Must(t, err)
	return q
}

func (q *question) ends() result {
	_ = q.cmd.Wait() // the exit code says it
	_ = q.stdin.Close()
	return result{args: q.cmd.Args, exit: q.cmd.ProcessState.ExitCode(), stdout: q.stdout.String(), stderr: q.stderr.String()}
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

// testBreakHangs: a Redis that falls silent after the question is an error, and no success.
func testBreakHangs(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	proxy := redistest.NewProxy(t, tr.server.Addr())
	q := asked(t, b, "break", "work|7", "--prefix", tr.prefix, "--uri", proxy.Addr(), "--timeout", "1s")
	proxy.Blackhole(true)
	q.answer(t, "y\n").ends().wantErrorLine(t, exitRedis, "0 of 1 broken")
	if tr.context("first").Err() != nil {
		t.Error("broken all the same")
	}
}

// testBreakLate: what has ended by itself before the yes is said to be over.
func testBreakLate(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	held, err := tr.others.Mutex("held").TryLock(t.Context())
	redistest.Must(t, err)
	closes, err := tr.others.Mutex("closed").TryLock(t.Context())
	redistest.Must(t, errors.Join(err, inner.CloseGate(t.Context(), closes, time.Hour), closes.Unlock(t.Context())))
	for name, end := range map[string]func() error{
		"held":   func() error { return held.Unlock(t.Context()) },
		"closed": func() error { _, err := inner.OpenGate(t.Context(), tr.others.Mutex("closed")); return err },
	} {
		q := asked(t, b, tr.flags("break", name)...)
		redistest.Must(t, end())
		q.answer(t, "y\n").ends().wantErrorLine(t, exitNo, "is over; nothing was done")
	}
}

// testBreakGate: break ends a hold or a cooldown, whether or not somebody holds the lock, and show tells of one that
// nobody holds. A rate is left alone, and so is a hold where one holder is named.
func testBreakGate(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	take := func(name string, options ...lock.Option) *lock.Lease {
		t.Helper()
		lease, err := tr.others.Semaphore(name, 2, options...).TryLock(t.Context())
		redistest.Must(t, err)
		return lease
	}
	closed := func(name string, want bool) {
		t.Helper()
		info, err := inner.Inspect(t.Context(), tr.others.Mutex(name))
		if err != nil || info.Gate.OpensIn > 0 != want {
			t.Errorf("the gate of %s: %+v, %v; want closed: %v", name, info.Gate, err, want)
		}
	}
	held := take("free")
	redistest.Must(t, errors.Join(inner.CloseGate(t.Context(), held, time.Hour), held.Unlock(t.Context())))
	b.run(t, tr.flags("list")...).want(t, exitOK, keys.Key(tr.prefix, "free"), "(closed)")
	b.run(t, tr.flags("show", "free")...).want(t, exitOK, "held by 0", "nobody starts for", "closed")
	b.run(t, tr.flags("show", "free", "--json")...).want(t, exitOK, `"closed":"closed"`)
	r := b.runWith(t, "y\n", nil, tr.flags("break", "free")...)
	if r.exit != exitOK || !strings.Contains(r.stderr, "End the closed gate? [y/N]") || !strings.HasSuffix(r.stdout, "\nended: the closed gate\n") {
		t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
	}
	closed("free", false)
	b.run(t, tr.flags("break", "free", "--yes")...).wantError(t, exitNo, "nobody holds")
	b.run(t, tr.flags("show", "free")...).wantError(t, exitNo, "nobody holds or waits for")

	stays, cools := take("both"), take("both")
	redistest.Must(t, cools.Cooldown(t.Context(), time.Hour))
	r = b.runWith(t, "y\n", nil, tr.flags("break", "both")...)
	if r.exit != exitOK || !strings.HasSuffix(r.stdout, "\nbroken: 1 of 1\nended: the cooldown\n") || !strings.Contains(r.stderr, "Take the lock from 1 holder, and end the cooldown? [y/N]") {
		t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
	}
	closed("both", false)
	if err := stays.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("Extend of the broken lease: %v", err)
	}

	one := take("one")
	redistest.Must(t, inner.CloseGate(t.Context(), one, time.Hour))
	b.run(t, tr.flags("break", "one", "--yes", "--holder", one.Token())...).want(t, exitOK, "broken: 1 of 1")
	closed("one", true)

	redistest.Must(t, take("rated", lock.Rate(1, 2*time.Hour, 1)).Unlock(t.Context()))
	b.run(t, tr.flags("break", "rated", "--yes")...).wantError(t, exitNo, "its rate is used up, which break leaves as it is")
	closed("rated", true)
}
