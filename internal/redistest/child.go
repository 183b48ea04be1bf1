package redistest

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Child is this test binary run as a process of its own, to be killed or stopped. Its TestMain sees by the environment
// that it is one, runs no tests, and ends when its standard input does. Safe for concurrent use.
type Child struct {
	process
	stdin io.Closer
}

// StartChild starts one with these further variables ("NAME=value"). What it prints is seen among the test's output. It
// is killed when the test ends, and on Linux also when the test binary dies.
func StartChild(t testing.TB, env ...string) *Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), os.Stderr, os.Stderr
	stdin, err := cmd.StdinPipe()
	Must(t, err)
	c := &Child{stdin: stdin}
	c.process, err = launch(cmd)
	Must(t, err)
	t.Cleanup(c.Kill)
	return c
}

// End closes its standard input and returns when it has ended by itself; when it has not within that time it is killed
// and the test fails.
func (c *Child) End(t testing.TB, within time.Duration) {
	t.Helper()
	_ = c.stdin.Close() // who is gone reads no more
	Eventually(t, within, func() bool { return !c.runs() }, "the end of the child")
	if state := c.cmd.ProcessState; !state.Success() {
		t.Errorf("redistest: the child (pid %d) ended with %s", c.PID(), state)
	}
}
