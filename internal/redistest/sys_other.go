//go:build !linux

package redistest

import "syscall"

// The numbers of SIGSTOP and SIGCONT where they are not those of Linux. Windows refuses these signals, and a test that
// sends one fails.
const signalStop, signalContinue = syscall.Signal(17), syscall.Signal(19)

// dieWithParent is for Linux only: elsewhere a test binary that is killed leaves its servers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
