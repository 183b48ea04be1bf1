package redisx

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrBackend says that Redis could not be reached, or replied with an error.
var ErrBackend = errors.New("lock: backend error")

// Failed makes an ErrBackend of err, for the operation op on key.
func Failed(op, key string, err error) error {
	return fmt.Errorf("%w: %s %q: %w", ErrBackend, op, key, err)
}

// refusal matches how Redis 6 and 7 and Valkey 8 refuse a command to a user, and one that does not exist or was
// renamed.
var refusal = regexp.MustCompile("(?i)^NOPERM |ACL failure in script|unknown (redis )?command|can't run this command")

// explain returns err, and says where the rights stand if the server refuses a command to this client.
func explain(err error) error {
	if IsServers(err) && refusal.MatchString(err.Error()) {
		return fmt.Errorf("%w; docs/redis.md has the ACL line that suffices", err)
	}
	return err
}

// errNoReply: go-redis returned a command with neither a reply nor an error, and its pipeline with no error either. The
// command may have run or not.
var errNoReply = errors.New("the client returned neither a reply nor an error")

// replyOf returns the reply of a script or the error, and never neither. exec is the error of the whole pipeline or of
// the sender.
//
// go-redis leaves each command of a pipeline without a reply and without an error when the server answers the set-up of
// the connection with an error reply, such as WRONGPASS after a change of the password. Only the error of the pipeline
// then says that nothing ran. No script replies nil.
func replyOf(cmd *redis.Cmd, exec error) (any, error) {
	reply, err := cmd.Result()
	if err == nil && reply == nil {
		err = cmp.Or(exec, errNoReply)
	}
	return reply, err
}

// HasCode reports whether err is a server's error with one of these codes: at its beginning, or, as Redis before 7.0
// answers for a command within a script, inside of "ERR Error running script (call to f_<hash>): @user_script:7:
// @user_script: 7: -OOM command not allowed...".
func HasCode(err error, codes ...string) bool {
	its := servers(err)
	if its == nil {
		return false
	}
	_, inner, wrapped := strings.Cut(its.Error(), "Error running script (call to ")
	return slices.ContainsFunc(codes, func(code string) bool {
		return redis.HasErrorPrefix(its, code) || wrapped && (strings.Contains(inner, ": -"+code+" ") ||
			strings.Contains(inner, ": "+code+" "))
	})
}

// IsTransient reports whether a repeated command may succeed: after an error of the network, or of a server that is
// loading, failing over, moving slots or busy. Other errors of Redis (a missing right, a wrong type) come again.
func IsTransient(err error) bool {
	if !IsServers(err) {
		return !errors.Is(err, redis.ErrClosed)
	}
	return isSlotMoving(err) || HasCode(err, "LOADING", "READONLY", "BUSY", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN",
		"NOREPLICAS", "OOM", "MISCONF", "max number of clients")
}

// IsNotRun reports whether err says that the server has refused a command or a script as a whole, or before its first
// write: nothing has changed.
func IsNotRun(err error) bool {
	return HasCode(err, "OOM", "READONLY", "LOADING", "MISCONF", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "MOVED", "ASK",
		"TRYAGAIN", "BUSY", "NOAUTH", "WRONGPASS", "NOSCRIPT")
}

// IsWrongType reports whether a key has another type than the command expects. Before Redis 7 an error inside a script
// is wrapped.
func IsWrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE ") }

// IsServers reports whether err is a reply of a server.
func IsServers(err error) bool { return servers(err) != nil }

func servers(err error) redis.Error {
	if err == nil {
		return nil
	}
	var reply redis.Error // allocated, so only for errors
	errors.As(err, &reply)
	return reply
}

// isSlotMoving reports whether err is that of a script in a slot that a Cluster is moving: some of its keys are on the
// other node already, or not there at all, or go-redis was redirected more often than it follows. Each version of Redis
// words the second text in another way.
func isSlotMoving(err error) bool {
	return HasCode(err, "TRYAGAIN", "MOVED", "ASK") || IsServers(err) &&
		strings.Contains(err.Error(), "attempted to access a non local key in a cluster node")
}
