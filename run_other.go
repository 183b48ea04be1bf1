//go:build !unix

package automutex

import "os"

// stopSignals are those on which the server takes no new tasks and goes on.
var stopSignals []os.Signal
