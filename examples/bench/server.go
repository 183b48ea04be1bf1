package main

import (
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
	"time"

	"github.com/redis/go-redis/v9"
)

// server is the redis-server of one run of the program.
type server struct {
	addr   string
	dir    string
	rdb    *redis.Client
	cmd    *exec.Cmd
	exited chan struct{} // closed by the goroutine that started cmd, when it has exited
}

const (
	startWithin = 10 * time.Second
	stopWithin  = 5 * time.Second
)

// startServer starts a redis-server without persistence on a free port of the
// loopback interface.
func startServer(ctx context.Context, binary string) (*server, error) {
	var failed error
	for range 5 { // a port may be taken by somebody between the look and the start
		s, err := tryServer(ctx, binary)
		if err == nil {
			return s, nil
		}
		failed = err
		if errors.Is(err, exec.ErrNotFound) || ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("bench: %s does not start: %w; it has to be installed, 7.0 or newer", binary, failed)
}

func tryServer(ctx context.Context, binary string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "automutex-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir, exited: make(chan struct{})}
	log, err := os.Create(filepath.Join(dir, "redis.log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// It outlives every context: stop ends it, and so does the end of this program
	s.cmd = exec.Command(binary, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--maxclients", "5000")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	// It keeps its thread as long as the server runs: the kernel kills the server
	// when the thread that started it ends. stop ends the server and thereby it.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		_ = log.Close()
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // how it ended is in its log
		}
		close(s.exited)
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.rdb = redis.NewClient(&redis.Options{Addr: s.addr, ReadTimeout: time.Minute}) // FLUSHALL of much takes a while
	if err := s.answers(ctx); err != nil {
		said, _ := os.ReadFile(log.Name()) // the end of it is all there is to tell
		return nil, errors.Join(fmt.Errorf("%w: %s", err, said[max(0, len(said)-1000):]), s.stop())
	}
	return s, nil
}

// freePort stays out of the range that outgoing connections take theirs from.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 20000 + rand.IntN(12000)
		var ln net.Listener
		if ln, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, ln.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// answers waits until this very process answers on the port.
func (s *server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		info, err := s.info(ctx, "server")
		if err == nil {
			if info["process_id"] != strconv.Itoa(s.cmd.Process.Pid) {
				return fmt.Errorf("another server answers on %s", s.addr)
			}
			return nil
		}
		select {
		case <-s.exited:
			return errors.New("it exited at once")
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stop ends the server and removes its files.
func (s *server) stop() error {
	_ = s.rdb.Close()
	err := s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
		err = nil // also when it had exited before
	case <-time.After(stopWithin):
		err = errors.Join(err, s.cmd.Process.Kill())
		<-s.exited
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// clear empties the server and its statistics, so that a cell finds what the
// one before it found. Scripts go as well.
func (s *server) clear(ctx context.Context) error {
	p := s.rdb.Pipeline()
	p.FlushAll(ctx)
	p.ScriptFlush(ctx)
	p.ConfigResetStat(ctx)
	_, err := p.Exec(ctx)
	return err
}

// info is a section of INFO, by name.
func (s *server) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.rdb.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			values[name] = value
		}
	}
	return values, nil
}

// usage is what commands have cost so far: how many clients sent, and Redis' own
// time for them.
type usage struct {
	calls float64
	busy  time.Duration
	cpu   time.Duration // of the server's main thread
}

func (u usage) minus(before usage) usage {
	return usage{u.calls - before.calls, u.busy - before.busy, u.cpu - before.cpu}
}

// used sums up the commands named. What runs inside a script is part of that
// script's time; its calls are not counted as long as it is not among them.
func (s *server) used(ctx context.Context, commands []string) (usage, error) {
	info, err := s.info(ctx, "commandstats")
	if err != nil {
		return usage{}, err
	}
	var sum usage
	if sum.cpu, err = s.cpu(ctx); err != nil {
		return usage{}, err
	}
	for _, command := range commands {
		line, ok := info["cmdstat_"+command]
		if !ok {
			continue // never sent
		}
		var calls, usec float64
		if _, err := fmt.Sscanf(line, "calls=%f,usec=%f", &calls, &usec); err != nil {
			return usage{}, fmt.Errorf("bench: INFO commandstats says %q of %s: %w", line, command, err)
		}
		sum.calls += calls
		sum.busy += time.Duration(usec) * time.Microsecond
	}
	return sum, nil
}

// has reports whether the server has a command; it has the empty one.
func (s *server) has(ctx context.Context, command string) (bool, error) {
	if command == "" {
		return true, nil
	}
	found, err := s.rdb.Do(ctx, "COMMAND", "INFO", command).Slice()
	return err == nil && len(found) == 1 && found[0] != nil, err
}

// cpu is what the thread that runs commands has used so far, reading and writing included.
func (s *server) cpu(ctx context.Context) (time.Duration, error) {
	info, err := s.info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, part := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		seconds, err := strconv.ParseFloat(info[part], 64)
		if err != nil {
			return 0, fmt.Errorf("bench: INFO cpu has no %s: %w", part, err)
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}

func (s *server) memory(ctx context.Context) (float64, error) {
	info, err := s.info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(info["used_memory"], 64)
}
