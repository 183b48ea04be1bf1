package redistest

import (
	"cmp"
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
	"syscall"
	"time"
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

// errPortTaken means that somebody took the port since freePort looked at it.
var errPortTaken = errors.New("port taken")

// process is one redis-server: its place and arguments, and the run that is on.
type process struct {
	binary string
	dir    string
	port   int
	bus    int // port of the cluster bus
	args   []string

	mu     sync.Mutex      // guards what follows; held while the process is started or stopped
	cmd    *exec.Cmd       // nil when it does not run
	exited <-chan struct{} // see launch
}

// startProcess starts a redis-server without persistence on a free port.
func startProcess(binary string, args []string) (*process, error) {
	for try := 1; ; try++ {
		p, err := newProcess(binary, args)
		if err != nil {
			return nil, err
		}
		if err = p.start(); err == nil {
			return p, nil
		}
		p.remove()
		if !errors.Is(err, errPortTaken) || try == 10 {
			return nil, err
		}
	}
}

func newProcess(binary string, args []string) (*process, error) {
	port, err := freePort(len(args) > 0 && args[0] == "--cluster-enabled")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	p := &process{binary: binary, dir: dir, port: port, bus: port + busOffset}
	p.args = append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}, args...)
	if rights := os.Getenv(RightsEnv); rights != "" {
		p.args = append(append(p.args, "--user", limitedUser, "on", ">"+limitedUser), strings.Fields(rights)...)
	}
	return p, nil
}

// busOffset lies between a node's port and that of its cluster bus. Redis 6.2 knows
// no other.
const busOffset = 10000

// freePort finds a port that nobody listens on, nor, where asked for, on
// the port of its cluster bus. It stays out of the range from which systems take the
// ports of outgoing connections (from 32768), so that a server that is down for a while
// finds its port free again.
func freePort(bus bool) (int, error) {
	ports := 12000
	if bus {
		ports = 2768
	}
	var err error
	for range 100 {
		port := 20000 + rand.IntN(ports)
		if err = isFree(port); bus {
			err = errors.Join(err, isFree(port+busOffset))
		}
		if err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("redistest: no free port: %w", err)
}

func isFree(port int) error {
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return ln.Close()
}

func (p *process) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// runs tells whether the process was started and not stopped since.
func (p *process) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil
}

// start executes redis-server and returns when it answers.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("redistest: %s on port %d runs already", p.binary, p.port)
	}
	log, err := os.Create(filepath.Join(p.dir, "redis.log"))
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(p.binary, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	if p.exited, err = launch(cmd); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	p.cmd = cmd
	// Whoever answers must be this process: the port could be another one's.
	pid, answered := fmt.Sprintf("\r\nprocess_id:%d\r\n", cmd.Process.Pid), false
	poll(Patience, func() bool {
		info, _ := ask(p.addr(), "INFO", "server")
		answered = strings.Contains(info, pid)
		return answered || isClosed(p.exited)
	})
	if answered {
		return nil
	}
	text, _ := os.ReadFile(log.Name())
	if text = text[max(0, len(text)-2000):]; strings.Contains(string(text), "Address already in use") {
		err = fmt.Errorf("redistest: %s: %w: %d or %d", p.binary, errPortTaken, p.port, p.bus)
	} else {
		err = fmt.Errorf("redistest: %s does not answer:\n%s", p.binary, text)
	}
	return errors.Join(err, p.stop(os.Kill))
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// launch starts a command that dies with this process. The channel is closed when it has
// exited; how is for its log to say.
func launch(cmd *exec.Cmd) (<-chan struct{}, error) {
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
	return exited, <-started
}

func (p *process) terminate() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = signalContinue(p.cmd.Process) // a frozen process would not see SIGTERM
	}
	return p.stop(syscall.SIGTERM)
}

func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stop(os.Kill)
}

// stop sends the signal and waits for the exit, and kills what does not follow.
// The caller holds mu.
func (p *process) stop(sig os.Signal) error {
	cmd := p.cmd
	if p.cmd = nil; cmd == nil {
		return nil
	}
	for _, sig := range []os.Signal{sig, os.Kill} {
		if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("redistest: %w", err)
		}
		select {
		case <-p.exited:
			return nil
		case <-time.After(Patience):
		}
	}
	return fmt.Errorf("redistest: %s (pid %d) does not end", p.binary, cmd.Process.Pid)
}

func (p *process) pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return errors.New("redistest: cannot pause what does not run")
	}
	return freeze(p.cmd.Process)
}

// freeze stops a process (SIGSTOP) and returns when nothing of it runs any more.
func freeze(process *os.Process) error {
	if err := signalStop(process); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	if !poll(Patience, func() bool { return frozen(process.Pid) }) {
		return fmt.Errorf("redistest: process %d does not freeze", process.Pid)
	}
	return nil
}

func (p *process) resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	return signalContinue(p.cmd.Process)
}

// remove kills the process and removes its files.
func (p *process) remove() {
	_ = p.kill()
	_ = os.RemoveAll(p.dir)
}
