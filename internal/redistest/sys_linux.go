package redistest

import "syscall"

const signalStop, signalContinue = syscall.SIGSTOP, syscall.SIGCONT

// dieWithParent has the kernel kill the process when the thread that started it ends, which it does also when the test
// binary is killed itself.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
