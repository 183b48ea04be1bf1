package simulate

import (
	"fmt"
	"strings"
	"time"
)

// What follows is about the controls, which each Guard reads every other second.

// readsControls tells whether a command is such a read.
func readsControls(command []string) bool {
	return strings.HasPrefix(command[0], "EVAL") && len(command) == 5 && strings.HasSuffix(command[3], ":{control}")
}

// noControls answers a read while there are no controls, as the script does, so that quiet
// hours are cheap. Callers hold commands.
func (s *redisServer) noControls(command []string) string {
	if !readsControls(command) || s.mini.Exists(command[3]) {
		return ""
	}
	now := time.Now().Add(s.step)
	if now.Before(s.clock) {
		now = s.clock
	}
	return fmt.Sprintf("*3\r\n:%d\r\n:0\r\n*0\r\n", now.UnixMicro())
}
