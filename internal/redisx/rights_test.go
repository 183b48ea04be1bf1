package redisx

import (
	"context"
	"fmt"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// What servers of several versions answer.
func TestDeniedCommand(t *testing.T) {
	t.Parallel()
	s := NewScript("some", "local n = 1\nredis.call('ZADD', KEYS[1], n, 'm')\nredis.call('PEXPIRE', KEYS[1], 1000)\n")
	const line = 3
	for text, want := range map[string]string{
		"NOPERM this user has no permissions to run the 'evalsha' command or its subcommand":                                                                                       "EVALSHA",
		"NOPERM User o'neil has no permissions to run the 'evalsha' command":                                                                                                       "EVALSHA",
		"ERR unknown command `EVALSHA`, with args beginning with: `abc`, `1`, ":                                                                                                    "EVALSHA",
		"ERR unknown command 'eval', with args beginning with: 'unknown command 'evalsha'' ":                                                                                       "EVAL",
		"NOPERM this user has no permissions to access one of the keys used as arguments":                                                                                          "",
		"NOSCRIPT No matching script. Please use EVAL.":                                                                                                                            "",
		"ERR wrong number of arguments for 'evalsha' command":                                                                                                                      "",
		fmt.Sprintf("ERR Unknown Redis command called from script script: abc, on @user_script:%d.", line):                                                                         "PEXPIRE",
		fmt.Sprintf("ERR Error running script (call to f_abc): @user_script:%d: @user_script: %d: The user executing the script can't run this command or subcommand", line, line): "PEXPIRE",
		"ERR The user executing the script can't run this command or subcommand script: abc, on @user_script:99999.":                                                               "",
		"ERR The user executing the script can't run this command or subcommand":                                                                                                   "",
	} {
		if got := deniedCommand(s, redistest.ReplyError(text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if got := deniedCommand(s, context.Canceled); got != "" {
		t.Errorf("an error that is not the server's: %q", got)
	}
}
