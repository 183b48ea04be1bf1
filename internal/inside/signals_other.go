//go:build !unix

package inside

import "os"

// StopSignals are those on which the server takes no new tasks and goes on.
var StopSignals []os.Signal
