package redistest

import "syscall"

// Windows refuses these signals, and a test that sends one fails.
const signalStop, signalContinue = syscall.Signal(0x13), syscall.Signal(0x12)
