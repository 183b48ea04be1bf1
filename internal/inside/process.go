package inside

import (
	"os"
	"strconv"
)

// Host returns the name of this machine, or "unknown-host".
func Host() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown-host"
	}
	return host
}

// Process returns host:pid, by which others know this process if it has no label of its own.
func Process() string { return Host() + ":" + strconv.Itoa(os.Getpid()) }
