//go:build unix

package lock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

const stoppedChild = "AUTOMUTEX_TEST_STOPPED_CHILD"

// TestControls_stoppedChild is the process that TestControls_stoppedProcess stops. It prints when
// each TryLock that succeeded returned.
func TestControls_stoppedChild(t *testing.T) {
	addr := os.Getenv(stoppedChild)
	if addr == "" {
		t.Skip("runs in a process of its own")
	}
	m := New(redis.NewClient(&redis.Options{Addr: addr}), Options{Prefix: "stopped"}).Mutex("report")
	for {
		if le, err := m.TryLock(t.Context()); err == nil {
			fmt.Println("TOOK", time.Now().UnixMicro())
			_ = le.Unlock(t.Context())
		}
		time.Sleep(500 * time.Microsecond)
	}
}

// A process that was stopped for longer than ControlDelay reads the controls before a caller gets a
// lock, also if it was stopped while it took one: it obeys a pause that was ordered meanwhile.
func TestControls_stoppedProcess(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	operator := newLocker(t, s.Client(t), func(o *Options) { o.Prefix = "stopped" })
	for range 3 {
		child := exec.Command(os.Args[0], "-test.run=^TestControls_stoppedChild$", "-test.v", "-test.timeout=60s")
		child.Env = append(os.Environ(), stoppedChild+"="+s.Addr())
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		redistest.Must(t, err)
		said := func() string {
			text, err := os.ReadFile(out.Name())
			redistest.Must(t, err)
			return string(text)
		}
		child.Stdout = out
		redistest.Must(t, child.Start())
		_ = out.Close() // the child has its own
		ended := func() { _ = child.Process.Kill(); _ = child.Wait() }
		t.Cleanup(ended)
		redistest.Eventually(t, soon, func() bool { return strings.Count(said(), "TOOK") > 10 }, "a child that takes the lock")
		redistest.Must(t, child.Process.Signal(syscall.SIGSTOP))
		pause(t, operator, "report", time.Time{}, "")
		time.Sleep(ControlDelay + 100*time.Millisecond) // it is stopped for that long
		resumed := time.Now().UnixMicro()
		redistest.Must(t, child.Process.Signal(syscall.SIGCONT))
		time.Sleep(200 * time.Millisecond) // it took the lock at once, if at all
		ended()
		for line := range strings.Lines(said()) {
			var took int64
			if _, err := fmt.Sscanf(line, "TOOK %d", &took); err == nil && took > resumed {
				t.Errorf("took the lock %d us after it went on; it was paused while the process was stopped", took-resumed)
				break
			}
		}
		resume(t, operator, "report")
	}
}
