package redisx

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// neededRights are what the scripts need of Redis; %[1]s is the prefix.
const neededRights = "resetkeys resetchannels ~%[1]s:* &%[1]s:* +eval +evalsha +scan +subscribe +unsubscribe +ping +hello " +
	"+cluster|slots +asking +time +exists +del +unlink +pexpire +pexpireat +pttl +get +set +hlen +hget +hgetall +hmget +hset +hdel +hexists " +
	"+zadd +zrem +zscore +zrank +zcard +zcount +zrange +zrevrange +zrangebyscore +zremrangebyscore +zpopmin +publish"

// denials notes which commands Redis refuses to the client: by its access control list, or because the command was renamed. It logs
// each command once.
type denials struct {
	prefix string
	log    *slog.Logger
	noHash atomic.Bool // EVALSHA was refused. From then on the Conn sends scripts by EVAL
	noSet  atomic.Bool // a script was refused, which would have to release what a SET takes
	logged sync.Map    // command to true
}

// mustSendSource reports whether EVAL may succeed where EVALSHA failed with err: the server does not know the script, or does not
// allow EVALSHA. Such a script has not run.
func (r *denials) mustSendSource(err error) bool {
	if err == nil {
		return false
	}
	if HasCode(err, "NOSCRIPT") {
		return true
	}
	if deniedCommand(nil, err) != "EVALSHA" {
		return false
	}
	r.noHash.Store(true)
	r.logOnce("EVALSHA", "automutex: Redis refuses EVALSHA: scripts are sent by EVAL, whole, until this process restarts")
	return true
}

// noteNoDelete notes that the server has that command of compareDeletes, and that this user may not run it.
func (r *denials) noteNoDelete(command string) {
	if _, before := r.logged.LoadOrStore(command, true); !before {
		r.log.Warn("automutex: Redis has a command that releases a lock at less cost, and this user has no right to it",
			"command", command, "fix", "ACL SETUSER <user> +"+command)
	}
}

// describe returns err, or an error that names the command if Redis refused one.
func (r *denials) describe(s *Script, err error) error {
	command := deniedCommand(s, err)
	if command == "" {
		return err
	}
	if s != nil {
		// Scripts renew and release a lock that SET took, and Redis refuses a command of theirs. So take none by SET: an ask fails
		// before it takes anything.
		r.noSet.Store(true)
	}
	r.logOnce(command, "automutex: Redis refuses a command that the locks need")
	return &deniedError{command, err}
}

func (r *denials) logOnce(command, what string) {
	if _, before := r.logged.LoadOrStore(command, true); !before {
		r.log.Error(what, "command", command, "fix", "ACL SETUSER <user> "+fmt.Sprintf(neededRights, r.prefix))
	}
}

// deniedError names a command that Redis refused. It unwraps to Redis' own error, which quotes a script or its hash.
type deniedError struct {
	command string
	cause   error
}

func (e *deniedError) Error() string {
	return fmt.Sprintf("Redis refuses %s (the user has no right to it, or it was renamed): allow it with ACL SETUSER <user> +%s; "+
		"docs/redis.md lists all rights", e.command, strings.ToLower(e.command))
}

func (e *deniedError) Unwrap() error { return e.cause }

var (
	// As Redis 6 and 7 and Valkey 8 write it, for the user and for a command that does not exist.
	deniedToUser   = regexp.MustCompile("(?i)^(?:(?:NOPERM|ERR ACL failure in script:) .*permissions to run the |(?:ERR )?unknown command )['`]([a-z]+)")
	deniedToScript = regexp.MustCompile(`(?i)(?:can't run this command|Unknown (?:Redis )?command called from)`)
	scriptLine     = regexp.MustCompile(`@user_script: ?(\d+)`)
	scriptCall     = regexp.MustCompile(`call\('(\w+)'`)
)

// deniedCommand returns the command that Redis refused with err, in capital letters: EVAL, EVALSHA, or one that s calls. It is empty
// for another error. For a script Redis names only the line, so deniedCommand returns all commands of that line.
func deniedCommand(s *Script, err error) string {
	if !isServers(err) {
		return ""
	}
	text := err.Error()
	if m := deniedToUser.FindStringSubmatch(text); m != nil {
		if name := strings.ToUpper(m[1]); !slices.Contains(compareDeletes[:], m[1]) {
			return name
		}
		return ""
	}
	if s == nil || !deniedToScript.MatchString(text) {
		return ""
	}
	m := scriptLine.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	number, err := strconv.Atoi(m[1])
	lines := strings.Split(s.Source, "\n")
	if err != nil || number < 1 || number > len(lines) {
		return ""
	}
	var names []string
	for _, call := range scriptCall.FindAllStringSubmatch(lines[number-1], -1) {
		names = append(names, call[1])
	}
	return strings.Join(names, " or ")
}
