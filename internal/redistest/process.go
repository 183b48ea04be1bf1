package redistest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// ServerEnv is the environment variable with the path of the server that tests on real servers start: redis-server (6.2
// or newer), valkey-server, or what takes the same arguments. It is also run with --sentinel. Not set: the redis-server
// in PATH.
const ServerEnv = "AUTOMUTEX_TEST_SERVER"

func binary() string { return cmp.Or(os.Getenv(ServerEnv), "redis-server") }

type process struct {
	cmd    *exec.Cmd
	exited <-chan struct{} // closed when it has exited
}

// launch starts a command that dies with this process.
func launch(cmd *exec.Cmd) (process, error) {
	cmd.SysProcAttr = dieWithParent()
	started, exited := make(chan error), make(chan struct{}) // started: from the goroutine below, once
	// This goroutine lives as long as the command and keeps its thread: the command is killed when the thread that started
	// it ends (dieWithParent). The caller ends the command, and thereby this goroutine.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(exited)
		}
	}()
	return process{cmd, exited}, <-started
}

func (p process) PID() int { return p.cmd.Process.Pid }

func (p process) runs() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p process) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		Must(t, err)
	}
}

// Pause stops it (SIGSTOP) and returns when nothing of it runs any more.
func (p process) Pause(t testing.TB) {
	t.Helper()
	p.signal(t, signalStop)
	Eventually(t, Patience, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			return runtime.GOOS != "linux" // where nobody tells, the signal takes effect soon enough
		}
		// "pid (name) state ...", where the name may hold anything.
		return strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " T")
	}, "a process that stands still")
}

// Resume lets a paused one go on (SIGCONT).
func (p process) Resume(t testing.TB) { t.Helper(); p.signal(t, signalContinue) }

// Kill ends it at once (SIGKILL), also when it is paused, and returns when it is gone. Without effect when it is gone
// already.
func (p process) Kill() {
	_ = p.cmd.Process.Kill() // fails only when it has ended
	<-p.exited
}

// node is one redis-server: its place and arguments, and its latest run.
type node struct {
	process
	dir  string
	port int
	args []string
	env  []string // beside ours
}

// manyPorts is how many ports servers choose from, but for the nodes of a Cluster: they have a second port above them
// all. All are below those that systems take for outgoing connections (32768), so that a server that is down for a
// while finds its own free again.
const manyPorts, nodePorts = 10000, 2768

// startNode starts a server on one of the ports from 20000 on, with the arguments that args gives for it.
func startNode(t testing.TB, ports int, args func(*node) []string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "redistest-")
	Must(t, err)
	n := &node{dir: dir}
	for range 5 { // somebody else may have the port
		n.port = 20000 + rand.IntN(ports)
		n.args = args(n)
		if err = n.start(); err == nil {
			return n
		}
	}
	t.Fatal(err)
	return nil
}

// startServer starts a redis-server without persistence.
func startServer(t testing.TB, ports int, env []string, args ...string) *node {
	t.Helper()
	return startNode(t, ports, func(n *node) []string {
		its := append([]string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(n.port), "--dir", n.dir, "--save", "", "--appendonly", "no",
		}, args...)
		if rights := os.Getenv(RightsEnv); rights != "" {
			its = append(append(its, "--user", limitedUser, "on", ">"+limitedUser), strings.Fields(rights)...)
		}
		n.env = env
		return its
	})
}

func (n *node) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }

// start executes redis-server and returns when it answers.
func (n *node) start() error {
	log, err := os.Create(filepath.Join(n.dir, "redis.log"))
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(binary(), n.args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append(os.Environ(), n.env...), n.dir, log, log
	if n.process, err = launch(cmd); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	// Whoever answers must be this process: the port could be another one's.
	pid, answered := fmt.Sprintf("\r\nprocess_id:%d\r\n", n.PID()), false
	poll(Patience, func() bool {
		info, _ := n.ask("INFO", "server")
		answered = strings.Contains(info, pid)
		return answered || !n.runs()
	})
	if answered {
		return nil
	}
	n.Kill()
	text, _ := os.ReadFile(log.Name())
	return fmt.Errorf("redistest: %s does not answer:\n%s", binary(), text)
}

// stop is Server.Stop.
func (n *node) stop(t testing.TB) {
	t.Helper()
	n.signal(t, signalContinue) // a paused one would not see it
	n.signal(t, syscall.SIGTERM)
	Eventually(t, Patience, func() bool { return !n.runs() }, "the end of a server")
}

func (n *node) remove() {
	n.Kill()
	_ = os.RemoveAll(n.dir)
}

// ask sends one command on a connection of its own. It gives the text of a string, and of a number.
func (n *node) ask(command ...string) (string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: n.addr(), MaxRetries: -1, DialTimeout: time.Second,
		ReadTimeout: 2 * time.Second, Protocol: 2, DisableIdentity: true})
	defer func() { _ = rdb.Close() }()
	args := make([]any, len(command))
	for i, word := range command {
		args[i] = word
	}
	text, err := rdb.Do(context.Background(), args...).Text()
	if err != nil {
		err = fmt.Errorf("redistest: %s on %s: %w", strings.Join(command, " "), n.addr(), err)
	}
	return text, err
}

// tell has the server do something, and gives the answer. It may be too busy to accept, or not be ready for it yet.
func (n *node) tell(t testing.TB, command ...string) (answer string) {
	t.Helper()
	var err error
	if !poll(ownWithin, func() bool { answer, err = n.ask(command...); return err == nil }) {
		t.Fatal(err)
	}
	return answer
}
