//go:build !linux

package main

import "syscall"

// dieWithParent is for Linux only: elsewhere this program, when it is killed
// itself, leaves its server behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
