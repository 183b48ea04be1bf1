package main

import "syscall"

// dieWithParent has the kernel kill a process with the thread that started it,
// which it does also when this program is killed itself.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
