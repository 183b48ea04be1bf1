//go:build unix

package e2e

import (
	"syscall"
	"testing"
)

func signalChild(t *testing.T, pid int, name string) {
	t.Helper()
	sig := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "TSTP": syscall.SIGTSTP}[name]
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}
