package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"testing"
)

// TestServers_dieWithTheBinary kills a test binary that has a server. It starts that binary, which is this one running only
// this test, with an environment variable that says so.
func TestServers_dieWithTheBinary(t *testing.T) {
	const asked = "REDISTEST_PRINT_PID"
	if os.Getenv(asked) != "" {
		fmt.Println("pid", StartReal(t).nodes[0].run.cmd.Process.Pid)
		Must(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	t.Parallel()
	needBinary(t)
	// The orphan becomes a child of this process, so that it can wait for it.
	const setChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		t.Fatalf("prctl: %v", errno)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), asked+"=1", "TMPDIR="+t.TempDir()) // who is killed removes no files
	out, _ := cmd.Output()                                            // it was killed
	printed := regexp.MustCompile(`(?m)^pid (\d+)$`).FindSubmatch(out)
	if printed == nil {
		t.Fatalf("the server did not start: %s", out)
	}
	pid, err := strconv.Atoi(string(printed[1]))
	Must(t, err)
	var status syscall.WaitStatus
	dead := poll(Patience, func() bool {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		return err == nil && got == pid
	})
	if !dead || status.Signal() != syscall.SIGKILL {
		t.Errorf("server %d: dead: %t, status %#x; want it killed with the test binary", pid, dead, status)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
