//go:build unix

package main

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used so far.
func cpuTime() (time.Duration, error) {
	var r syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}
