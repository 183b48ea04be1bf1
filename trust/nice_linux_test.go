package trust

import (
	"os"
	"strconv"
	"syscall"
)

// giveWay lets other packages' tests go first, which run beside these and look at
// the clock: all threads of this process, those that they begin and the processes
// that it starts have a lower priority from now on. Where that cannot be, they
// have the same.
func giveWay() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, 10)
		}
	}
}
