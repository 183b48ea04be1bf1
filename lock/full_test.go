package lock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
)

// A Redis whose memory is full refuses what adds to it. Leases go on: they are
// renewed, extended and released, with replicas to wait for too.
func TestFullRedis(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprintf("MinReplicas %d", replicas), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t, "--maxmemory-policy", "noeviction")
			if replicas > 0 {
				redistest.StartReplica(t, s)
			}
			rdb := s.Client(t)
			l := newLocker(t, rdb, minReplicas(replicas))
			m := l.Mutex(redistest.Name(t), TTL(2*time.Second))
			p := l.Pool(redistest.Name(t), TTL(2*time.Second))
			if _, err := p.Put(t.Context(), "value"); err != nil {
				t.Fatal(err)
			}
			le := mustTry(t, m)
			value, err := p.m.TryLock(t.Context())
			redistest.Must(t, err)
			tell(t, rdb, "CONFIG", "SET", "maxmemory", "1")
			if err := rdb.Set(t.Context(), redistest.Name(t), "more", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
				t.Fatalf("the server is not full: %v", err)
			}
			full := time.Now()
			redistest.Eventually(t, soon, func() bool { return time.Since(full) > 3*time.Second }, "more than a TTL")
			if !le.Held() || !value.Held() {
				t.Fatalf("held while Redis is full: the lock %v, the value %v", le.Held(), value.Held())
			}
			for _, le := range []*Lease{le, value} {
				if err := le.Extend(t.Context(), time.Minute); err != nil {
					t.Error("Extend:", err)
				}
				if err := le.Unlock(t.Context()); err != nil {
					t.Error("Unlock:", err)
				}
			}
		})
	}
}

// What a role change, a full memory or a failed save make a server answer passes,
// as a server of its own and as Redis before 7.0 wraps it for a script; what lacks
// a right, or is of the wrong type, does not.
func TestTransient(t *testing.T) {
	t.Parallel()
	wrapped := "ERR Error running script (call to f_a8e2a1fbd9cbb7a9c7d23c4bc3c1b2b04ba5a0c4): @user_script:27: "
	for text, want := range map[string]bool{
		"READONLY You can't write against a read only replica.":                                               true,
		wrapped + "@user_script: 27: -READONLY You can't write against a read only replica.":                  true,
		"READONLY You can't write against a read only replica. script: a8e2, on @user_script:27.":             true,
		"OOM command not allowed when used memory > 'maxmemory'.":                                             true,
		wrapped + "@user_script: 27: -OOM command not allowed when used memory > 'maxmemory'.":                true,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.":    true,
		wrapped + "-MISCONF Redis is configured to save RDB snapshots, but is currently not able to persist.": true,
		wrapped + "@user_script: 27: -NOREPLICAS Not enough good replicas to write.":                          true,
		"LOADING Redis is loading the dataset in memory":                                                      true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                    true,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":              true,
		"ERR max number of clients reached":                                                                   true,
		"ERR Script attempted to access a non local key in a cluster node script: a8e2, on @user_script:41.":  true,
		wrapped + "@user_script: 27: Lua script attempted to access a non local key in a cluster node":        true,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                    false,
		wrapped + "@user_script: 27: The user executing the script can't run this command or subcommand":      false,
		"ERR ACL failure in script: User x has no permissions to run the 'pexpire' command script: a8e2":      false,
		"WRONGPASS invalid username-password pair or user is disabled.":                                       false,
		"NOAUTH Authentication required.":                                                                     false,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                   false,
		wrapped + "WRONGTYPE Operation against a key holding the wrong kind of value":                         false,
		"ERR unknown command 'evalsha', with args beginning with: 'OOM READONLY' 'x: -READONLY no' ":          false,
		wrapped + "@user_script: 27: Unknown Redis command called from Lua script":                            false,
	} {
		err := exchange.Failed("ask", "key", redistest.ReplyError(text))
		if got := exchange.Transient(err); got != want {
			t.Errorf("%s: transient is %v", text, got)
		}
	}
}

// A waiter bears a role change of a Redis before 7.0, whose scripts fail with a
// wrapped error meanwhile.
func TestRoleChange_wrappedErrors(t *testing.T) {
	t.Parallel()
	rdb := redistest.Real(t).Client(t)
	hook := &redistest.FailHook{}
	rdb.AddHook(hook)
	m := newLocker(t, rdb).Mutex(redistest.Name(t))
	held := mustTry(t, m)
	a := inLine(t, m, 1)
	failed := make(chan struct{}, 100)
	hook.Before(func(cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" {
			return nil
		}
		select {
		case failed <- struct{}{}:
		default:
		}
		return redistest.ReplyError("ERR Error running script (call to f_a8e2a1fb): @user_script:41: " +
			"@user_script: 41: -READONLY You can't write against a read only replica.")
	})
	for range 3 {
		select {
		case <-failed:
		case <-a.done:
			t.Fatalf("the waiter gave up: %v", a.err)
		}
	}
	hook.Before(nil)
	mustUnlock(t, held)
	mustUnlock(t, a.got(t))
}
