//go:build unix

package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

func signalStop(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func signalContinue(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// aloneEnv is set while this process, or one that started it, has the machine.
const aloneEnv = "AUTOMUTEX_TEST_ALONE"

// alone waits until no other package's tests run under the race detector: they look at the clock, and have no time
// for two of them. go test begins as many packages at once as there are cores. The lock on the file ends with the
// process, however that ends.
func alone() {
	if !raced || os.Getenv(aloneEnv) != "" {
		return // the latter: a test began this process, and waits for it
	}
	name := filepath.Join(os.TempDir(), "automutex-tests.lock")
	// The descriptor is closed by nobody but the end of the process.
	fd, err := syscall.Open(name, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o666)
	if err == nil {
		err = syscall.Flock(fd, syscall.LOCK_EX)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "redistest: tests of other packages may run beside these: %v\n", err)
		return
	}
	_ = os.Setenv(aloneEnv, "1") // fails for names that are none
}
