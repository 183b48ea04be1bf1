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
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ServerEnv is the environment variable with the path of the server that tests on real
// servers start: redis-server, valkey-server, or what takes the same arguments. It is
// also run with --sentinel. Not set: the redis-server in PATH.
const ServerEnv = "AUTOMUTEX_TEST_SERVER"

// binary is the path or name of the server.
func binary() string { return cmp.Or(os.Getenv(ServerEnv), "redis-server") }

// Version returns what the server says of itself with --version.
func Version() (string, error) {
	out, err := exec.Command(binary(), "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redistest: %s --version: %w: %s", binary(), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// errPortTaken means that another process has the port.
var errPortTaken = errors.New("port taken")

// command is what runs: a command, and a channel that is closed when it has exited; how is for its log to say.
type command struct {
	cmd    *exec.Cmd
	exited <-chan struct{}
}

// launch starts a command that dies with this process.
func launch(cmd *exec.Cmd) (command, error) {
	cmd.SysProcAttr = dieWithParent()
	started, exited := make(chan error), make(chan struct{}) // started: from the goroutine below, once
	// This goroutine lives as long as the command and keeps its thread: the command is
	// killed when the thread that started it ends (dieWithParent). The caller ends the
	// command, and thereby this goroutine.
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
	return command{cmd, exited}, <-started
}

// isFrozen tells whether a process that was sent SIGSTOP has stopped. Only Linux says so; elsewhere the signal takes effect
// soon enough.
func isFrozen(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return runtime.GOOS != "linux"
	}
	// "pid (name) state ...", where the name may hold anything.
	return strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " T")
}

// freeze stops the process (SIGSTOP) and returns when nothing of it runs any more.
func (c command) freeze() error {
	process := c.cmd.Process
	if err := process.Signal(signalStop); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	if !poll(Patience, func() bool { return isFrozen(process.Pid) }) {
		return fmt.Errorf("redistest: process %d does not freeze", process.Pid)
	}
	return nil
}

// end sends the signal and waits for the exit, and kills what does not follow.
func (c command) end(sig os.Signal) error {
	for _, sig := range []os.Signal{sig, os.Kill} {
		if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("redistest: %w", err)
		}
		select {
		case <-c.exited:
			return nil
		case <-time.After(Patience):
		}
	}
	return fmt.Errorf("redistest: pid %d does not end", c.cmd.Process.Pid)
}

// process is one redis-server: its place and arguments, and the run that is on.
type process struct {
	dir  string
	port int
	args []string

	mu  sync.Mutex // guards run; held while the process is started or stopped
	run *command   // nil when it does not run
}

// startProcess starts a server on a port from which on there are so many to choose from, with the arguments that are for
// its process. All ports are below those that systems take for outgoing connections (32768), so that a server that is
// down for a while finds its own free again.
func startProcess(port, ports int, args func(*process) []string) (*process, error) {
	for try := 1; ; try++ {
		dir, err := os.MkdirTemp("", "redistest-")
		if err != nil {
			return nil, fmt.Errorf("redistest: %w", err)
		}
		p := &process{dir: dir, port: port + rand.IntN(ports)}
		p.args = args(p)
		if err = p.start(); err == nil {
			return p, nil
		}
		p.remove()
		if !errors.Is(err, errPortTaken) || try == 10 {
			return nil, err
		}
	}
}

// startServer starts a redis-server without persistence, a node of a cluster or not.
func startServer(isNode bool, args ...string) (*process, error) {
	port, ports := 20000, busOffset
	if isNode {
		port, ports = 30000-busOffset, 2768
	}
	return startProcess(port, ports, func(p *process) []string {
		its := append([]string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(p.port), "--dir", p.dir, "--save", "", "--appendonly", "no", "--daemonize", "no",
		}, args...)
		if rights := os.Getenv(RightsEnv); rights != "" {
			its = append(append(its, "--user", limitedUser, "on", ">"+limitedUser), strings.Fields(rights)...)
		}
		return its
	})
}

// busOffset lies between a node's port and that of its cluster bus. Redis 6.2 knows
// no other.
const busOffset = 10000

func (p *process) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// runs tells whether the process was started and not stopped since.
func (p *process) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run != nil
}

// start executes redis-server and returns when it answers.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		return fmt.Errorf("redistest: the server on port %d runs already", p.port)
	}
	log, err := os.Create(filepath.Join(p.dir, "redis.log"))
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(binary(), p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	run, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	// Whoever answers must be this process: the port could be another one's.
	pid, answered, ended := fmt.Sprintf("\r\nprocess_id:%d\r\n", cmd.Process.Pid), false, false
	poll(Patience, func() bool {
		info, _ := ask(p.addr(), "INFO", "server")
		answered = strings.Contains(info, pid)
		select {
		case <-run.exited:
			ended = true
		default:
		}
		return answered || ended
	})
	if answered {
		p.run = &run
		return nil
	}
	text, _ := os.ReadFile(log.Name())
	if text = text[max(0, len(text)-2000):]; strings.Contains(string(text), "Address already in use") {
		err = fmt.Errorf("redistest: %s: %w: %d", binary(), errPortTaken, p.port)
	} else {
		err = fmt.Errorf("redistest: %s does not answer:\n%s", binary(), text)
	}
	return errors.Join(err, run.end(os.Kill))
}

// stop ends the process with the signal, and returns when it is gone. Without effect when it does not run.
func (p *process) stop(sig os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	run := p.run
	if p.run = nil; run == nil {
		return nil
	}
	if sig != os.Kill {
		_ = run.cmd.Process.Signal(signalContinue) // a frozen process would not see it
	}
	return run.end(sig)
}

func (p *process) pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		return errors.New("redistest: cannot pause what does not run")
	}
	return p.run.freeze()
}

func (p *process) resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		return nil
	}
	return p.run.cmd.Process.Signal(signalContinue)
}

// remove kills the process and removes its files.
func (p *process) remove() {
	_ = p.stop(os.Kill)
	_ = os.RemoveAll(p.dir)
}

// ask sends one command on a connection of its own. It gives the text of a string, and of a number.
func ask(addr string, command ...string) (string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: 2 * time.Second, Protocol: 2, DisableIdentity: true})
	defer func() { _ = rdb.Close() }()
	args := make([]any, len(command))
	for i, word := range command {
		args[i] = word
	}
	text, err := rdb.Do(context.Background(), args...).Text()
	if err != nil {
		err = fmt.Errorf("redistest: %s on %s: %w", strings.Join(command, " "), addr, err)
	}
	return text, err
}
