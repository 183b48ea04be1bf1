package redistest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestServers_dieWithTheBinary kills a test binary that has servers. It starts
// that binary, which is this one running only this test, with an environment
// variable that says so.
func TestServers_dieWithTheBinary(t *testing.T) {
	const asked = "REDISTEST_PRINT_PIDS"
	if os.Getenv(asked) != "" {
		fmt.Println("pids", StartReal(t).nodes[0].cmd.Process.Pid, Real(t).nodes[0].cmd.Process.Pid)
		select {} // until it is killed
	}
	t.Parallel()
	needBinary(t)
	// The orphans become children of this process, so that it can wait for them.
	const setChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		t.Fatalf("prctl: %v", errno)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	// Whoever is killed removes no files: this test does, by its TempDir.
	cmd.Env = append(os.Environ(), asked+"=1", "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []string
	for lines := bufio.NewScanner(out); pids == nil && lines.Scan(); {
		if list, ok := strings.CutPrefix(lines.Text(), "pids "); ok {
			pids = strings.Fields(list)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(pids) != 2 {
		t.Fatalf("the servers did not start: pids %q", pids)
	}
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		var status syscall.WaitStatus
		dead := poll(within, func() bool {
			got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
			return err == nil && got == pid
		})
		if !dead || status.Signal() != syscall.SIGKILL {
			t.Errorf("server %d: dead: %t, status %#x; want it killed with the test binary", pid, dead, status)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A server lives on while threads of the test binary come and go: only the end
// of the thread that started it would kill it.
func TestServers_outliveThreads(t *testing.T) {
	t.Parallel()
	s := StartReal(t)
	for range 20 {
		ended := make(chan struct{}) // closed by the goroutine, whose thread ends with it
		go func() {
			defer close(ended)
			runtime.LockOSThread() // and never unlocks: the thread is not used again
		}()
		<-ended
	}
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	select {
	case <-s.nodes[0].exited:
		t.Error("the server died with a thread")
	case <-time.After(10 * time.Millisecond):
	}
}
