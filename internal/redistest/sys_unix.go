//go:build unix

package redistest

import "syscall"

const signalStop, signalContinue = syscall.SIGSTOP, syscall.SIGCONT
