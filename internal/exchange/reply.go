package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// HasCode reports whether a server's error has that code: at its beginning, or, as
// Redis before 7.0 answers for a command within a script, inside of
// "ERR Error running script (call to f_<hash>): @user_script:7: @user_script: 7: -OOM command not allowed...".
func HasCode(said redis.Error, code string) bool {
	if redis.HasErrorPrefix(said, code) {
		return true
	}
	_, inner, wrapped := strings.Cut(said.Error(), "Error running script (call to ")
	return wrapped && (strings.Contains(inner, ": -"+code+" ") || strings.Contains(inner, ": "+code+" "))
}

// NotRun reports whether err says that the server has refused a command or a script as a whole, or before
// its first write: nothing has changed.
func NotRun(err error) bool {
	var said redis.Error // allocated, so only for errors
	return err != nil && errors.As(err, &said) && slices.ContainsFunc([]string{
		"OOM", "READONLY", "LOADING", "MISCONF", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN",
		"BUSY", "NOAUTH", "WRONGPASS", "NOSCRIPT",
	}, func(code string) bool { return HasCode(said, code) })
}

// SlotMoves reports whether err is that of a script in a slot that a Cluster is moving: its
// key was on the other node already. Each version of Redis begins this text in another way.
func SlotMoves(err error) bool {
	if err == nil {
		return false
	}
	var said redis.Error // allocated, so only for errors
	return errors.As(err, &said) && strings.Contains(said.Error(), "attempted to access a non local key in a cluster node")
}
