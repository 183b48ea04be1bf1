package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

func testWatch(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait)
		tr.enqueue("idle", "work", `{"id": "idle"}`)
		tr.holds("idle")
		tr.enqueue("first", "work", `{"id": "hot"}`)
		tr.holds("first")
		tr.enqueue("second", "work", `{"id": "hot"}`)
		tr.line(1, "work", "hot")
		r := b.run(t, tr.flags("watch", "--count", "2", "--interval", "100ms")...).want(t, exitOK, "2 locks, 2 held, 1 in line", "KEY")
		if strings.Count(r.stdout, "KEY") != 2 || strings.Contains(r.stdout, "\x1b") {
			t.Errorf("not two plain tables:\n%q", r.stdout)
		}
		hot, idle := strings.Index(r.stdout, "work|hot"), strings.Index(r.stdout, "work|idle")
		if hot < 0 || idle < hot {
			t.Errorf("the lock with the longest line is not first:\n%s", r.stdout)
		}
		b.run(t, tr.flags("watch", "--count", "1", "--match", "idle")...).want(t, exitOK, "1 lock, 1 held, 0 in line")
		b.run(t, tr.flags("watch", "--interval", "1ms")...).wantError(t, exitUsage, "--interval")
		b.run(t, tr.flags("watch", "--count", "-1")...).wantError(t, exitUsage, "--count")
	})
}

// terminal is a program that runs in one.
type terminal struct {
	cmd    *exec.Cmd
	pty    *os.File
	read   chan struct{} // closed when all that it wrote was read
	mu     sync.Mutex    // guards shown
	shown  bytes.Buffer
	stderr bytes.Buffer // of the program alone; whole when it has ended
}

func inTerminal(t *testing.T, cmd *exec.Cmd, columns, rows uint16) *terminal {
	t.Helper()
	tm := &terminal{cmd: cmd, read: make(chan struct{})}
	cmd.Stderr = &tm.stderr
	var err error
	if tm.pty, err = startInTerminal(cmd, columns, rows); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("makes a terminal as Linux does")
	}
	redistest.Must(t, err)
	go func() { // ends when the program has ended, and with it its side of the pty
		defer close(tm.read)
		buffer := make([]byte, 4096)
		for {
			n, err := tm.pty.Read(buffer)
			tm.mu.Lock()
			tm.shown.Write(buffer[:n])
			tm.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // may have been waited for
		select {
		case <-tm.read:
			_ = tm.pty.Close()
		case <-time.After(patience): // a read of a terminal has no deadline
			t.Errorf("the terminal stays open though its program has ended; it showed %q", tm.text())
		}
	})
	return tm
}

func (tm *terminal) text() string {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	return tm.shown.String()
}

// shows waits for text after the first n bytes.
func (tm *terminal) shows(t *testing.T, n int, text string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the terminal shows %q", tm.text()[n:])
		}
	}()
	redistest.Eventually(t, patience, func() bool { return strings.Contains(tm.text()[n:], text) }, "the terminal shows %q", text)
}

// testWatchTerminal: on a terminal the table is drawn in place, fits the window
// also after it was resized, and Ctrl-C leaves the screen as it was.
func testWatchTerminal(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	for _, id := range []string{"1", "2", "3", "4"} {
		tr.enqueue(id, "work", `{"id": "`+strings.Repeat("long", 20)+id+`"}`)
		tr.holds(id)
	}
	tm := inTerminal(t, b.command(t, []string{"TERM=screen-256color"}, tr.flags("watch", "--interval", "100ms")...), 60, 6)
	tm.shows(t, 0, "4 locks, 4 held")
	tm.shows(t, 0, home)
	frames := strings.Split(tm.text(), home)
	if !strings.HasPrefix(frames[0], enterScreen) {
		t.Errorf("begins with %q", frames[0])
	}
	tm.shows(t, len(tm.text()), home) // a whole frame is there by then
	frame := strings.Split(tm.text(), home)[1]
	rows := strings.Split(frame, "\r\n")
	if len(rows) != 6 {
		t.Errorf("%d rows on a screen of 6:\n%q", len(rows), frame)
	}
	for _, row := range rows {
		if text, _, ok := strings.Cut(row, clearLine); !ok || len([]rune(text)) > 60 {
			t.Errorf("a row of %d columns on a screen of 60, or one that is not cleared: %q", len([]rune(text)), row)
		}
	}
	redistest.Must(t, resize(tm.pty, 400, 30))
	tm.shows(t, len(tm.text()), tr.queue+"/4")

	if _, err := io.WriteString(tm.pty, "\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	if err := tm.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v, %s", err, tm.stderr.String())
	}
	<-tm.read
	if !strings.HasSuffix(tm.text(), leaveScreen) || tm.stderr.Len() > 0 {
		t.Errorf("left with %q and %q", tm.text()[max(0, len(tm.text())-40):], tm.stderr.String())
	}
}

// testWatchQ: q leaves, and the terminal is as it was before.
func testWatchQ(t *testing.T, b binary) {
	s := redistest.Real(t)
	tm := inTerminal(t, b.command(t, nil, "watch", "--interval", "100ms", "--uri", s.Addr(), "--prefix", redistest.Name(t)), 100, 6)
	tm.shows(t, 0, "0 locks")
	tm.shows(t, 0, "q leaves")
	if _, err := io.WriteString(tm.pty, "xq"); err != nil { // x means nothing
		t.Fatal(err)
	}
	if err := tm.cmd.Wait(); err != nil {
		t.Errorf("after q: %v, %s", err, tm.stderr.String())
	}
	<-tm.read
	if !strings.HasSuffix(tm.text(), leaveScreen) || tm.stderr.Len() > 0 {
		t.Errorf("left with %q and %q", tm.text()[max(0, len(tm.text())-40):], tm.stderr.String())
	}
}

// testWatchOutage: a Redis that goes away and comes back is waited for on a
// terminal; elsewhere it ends the command.
func testWatchOutage(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	tm := inTerminal(t, b.command(t, nil, "watch", "--interval", "100ms", "--uri", s.Addr()), 100, 10)
	tm.shows(t, 0, "0 locks")
	plain := b.command(t, nil, "watch", "--interval", "100ms", "--uri", s.Addr())
	var stderr bytes.Buffer
	plain.Stderr = &stderr
	stdout, err := plain.StdoutPipe()
	redistest.Must(t, err)
	redistest.Must(t, plain.Start())
	if _, err := io.ReadFull(stdout, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	s.Stop(t)
	if _, err := io.Copy(io.Discard, stdout); err != nil {
		t.Error(err)
	}
	_ = plain.Wait()
	if plain.ProcessState.ExitCode() != exitRedis || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("%d, %q", plain.ProcessState.ExitCode(), stderr.String())
	}
	tm.shows(t, 0, "trying again")
	s.Start(t)
	tm.shows(t, len(tm.text()), "0 locks")
	if _, err := io.WriteString(tm.pty, "q"); err != nil {
		t.Fatal(err)
	}
	if err := tm.cmd.Wait(); err != nil {
		t.Errorf("after q: %v, %s", err, tm.stderr.String())
	}
}

// Where the input is no terminal, its q means nothing.
func TestUntilQ_noTerminal(t *testing.T) {
	t.Parallel()
	ctx, listening, restore := untilQ(t.Context(), strings.NewReader("q"))
	restore()
	if listening || ctx.Err() != nil {
		t.Errorf("listens: %v, the context: %v", listening, ctx.Err())
	}
}
