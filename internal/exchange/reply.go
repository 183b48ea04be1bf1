package exchange

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// errNoReply: go-redis returned a command with neither a reply nor an error, and
// its pipeline with no error either. The command may have run or not.
var errNoReply = errors.New("the client returned neither a reply nor an error")

// replyOf returns the reply of a script or the error, and never neither. exec is
// the error of the whole pipeline; nil for a command that was sent by itself.
//
// go-redis leaves each command of a pipeline without a reply and without an error
// when the server answers the set-up of the connection with an error reply, such
// as WRONGPASS after a change of the password. Only the error of the pipeline
// then says that nothing ran. No script of package lock replies nil.
func replyOf(cmd *redis.Cmd, exec error) (any, error) {
	reply, err := cmd.Result()
	if err == nil && reply == nil {
		err = cmp.Or(exec, errNoReply)
	}
	return reply, err
}

// setReplyOf reports whether SET with NX set the key. exec as for replyOf.
func setReplyOf(cmd *redis.StatusCmd, exec error) (bool, error) {
	switch text, err := cmd.Result(); {
	case errors.Is(err, redis.Nil):
		return false, nil // the key exists
	case err != nil:
		return false, err
	case text == "":
		return false, cmp.Or(exec, errNoReply)
	case text != "OK":
		return false, fmt.Errorf("unexpected reply %q", text)
	}
	return true, nil
}
