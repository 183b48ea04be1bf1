//go:build unix

package automutex

import (
	"os"
	"syscall"
)

// stopSignals are those on which the server takes no new tasks and goes on.
var stopSignals = []os.Signal{syscall.SIGTSTP}
