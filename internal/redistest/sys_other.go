//go:build !linux

package redistest

import "syscall"

// dieWithParent is for Linux only: elsewhere a test binary that is killed leaves its servers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }

// frozen cannot be asked for here; the signal takes effect soon enough.
func frozen(int) bool { return true }
