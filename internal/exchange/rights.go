package exchange

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// neededRights are what the library needs of Redis, as docs/redis.md gives them to a user;
// %[1]s is the prefix.
const neededRights = "resetkeys resetchannels ~%[1]s:* &%[1]s:* +eval +evalsha +scan +subscribe +unsubscribe +ping +hello " +
	"+cluster|slots +asking +time +exists +del +pexpire +pttl +persist +get +mget +set +hlen +hget +hgetall +hset +hdel +zadd +zrem +zscore +zrank +zcard +zcount " +
	"+zrange +zrangebyscore +zrevrangebyscore +zremrangebyscore +publish"

// denials notes which commands Redis refuses to the client: by its access control
// list, or because the command was renamed. It logs each command once.
type denials struct {
	prefix string
	log    *slog.Logger
	// noHash: EVALSHA was refused. From then on the Conn sends scripts by EVAL.
	noHash atomic.Bool
	// noSet: SET was refused. From then on package lock takes no lock as a string.
	noSet  atomic.Bool
	logged sync.Map // command to true
}

// mustSendSource reports whether EVAL may succeed where EVALSHA failed with err: the server
// does not know the script, or does not allow EVALSHA. Such a script has not run.
func (r *denials) mustSendSource(err error) bool {
	if err == nil {
		return false
	}
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return true
	}
	if deniedCommand(nil, err) != "EVALSHA" {
		return false
	}
	r.noHash.Store(true)
	r.logOnce("EVALSHA", "automutex: Redis refuses EVALSHA: scripts are sent by EVAL, whole, until this process restarts")
	return true
}

// SetIsRefused reports whether Redis has refused a SET to this user, so that package lock has
// to ask for every lock.
func (c *Conn) SetIsRefused() bool { return c.denied.noSet.Load() }

// SetRefused reports whether err, of SetFirst, says that the server refused the SET but may
// still run a script that takes the lock or joins its line.
func (c *Conn) SetRefused(err error) bool { return c.denied.setRefused(err) }

// DescribeSet returns err, of SetFirst, or an error that names the command if Redis refused
// it.
func (c *Conn) DescribeSet(err error) error { return c.denied.describe(nil, err) }

// setRefused reports whether the server refused a SET with err, but may still run a script
// that takes the lock or joins its line: the user has no right to SET, or the memory is full.
func (r *denials) setRefused(err error) bool {
	var said redis.Error
	if !errors.As(err, &said) {
		return false
	}
	if deniedCommand(nil, err) == "SET" {
		r.noSet.Store(true)
		r.logOnce("SET", "automutex: Redis refuses SET: locks that nobody waits for cost more until this process restarts")
		return true
	}
	return HasCode(said, "OOM")
}

// noteNoDelete notes that the server has that command of compareDeletes, and that this user may not run it.
func (r *denials) noteNoDelete(command string) {
	if _, before := r.logged.LoadOrStore(command, true); !before {
		r.log.Warn("automutex: Redis has a command that releases a lock at less cost, and this user has no right to it",
			"command", command, "fix", "ACL SETUSER <user> +"+strings.ToLower(command))
	}
}

// describe returns err, or an error that names the command if Redis refused one.
func (r *denials) describe(s *Script, err error) error {
	command := deniedCommand(s, err)
	if command == "" {
		return err
	}
	if s != nil {
		// Scripts renew and release a lock that SET took, and Redis refuses a command of theirs.
		// So take none by SET: an ask fails before it takes anything.
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

// deniedError names a command that Redis refused. It unwraps to Redis' own error,
// which quotes a script or its hash.
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
	scriptCall     = regexp.MustCompile(`redis\.call\('(\w+)'`)
)

// deniedCommand returns the command that Redis refused with err, in capital letters: EVAL,
// EVALSHA, or one that s calls. It is empty for another error. For a script Redis names only
// the line, so deniedCommand returns all commands of that line.
func deniedCommand(s *Script, err error) string {
	if err == nil {
		return ""
	}
	var said redis.Error // allocated, so only for errors
	if !errors.As(err, &said) {
		return ""
	}
	text := said.Error()
	if m := deniedToUser.FindStringSubmatch(text); m != nil {
		return strings.ToUpper(m[1])
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
