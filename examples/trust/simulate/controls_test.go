package simulate

import (
	"strings"
	"time"
)

// What follows is about the controls, which each Guard reads every other second.

// readsControls tells whether a command is such a read.
func readsControls(command []string) bool {
	return strings.HasPrefix(command[0], "EVAL") && len(command) == 5 && strings.HasSuffix(command[3], ":{control}")
}

// noControls answers a read while there are no controls, as the script does. Callers hold
// commands.
func (s *redisServer) noControls(key string) (answer any, idle bool) {
	if s.mini.Exists(key) {
		return nil, false
	}
	now := time.Now()
	if now.Before(s.clock) {
		now = s.clock
	}
	return []any{now.UnixMicro(), int64(0), []any{}}, true
}
