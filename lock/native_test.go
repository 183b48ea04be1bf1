package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// compareDelete is what DELEX with IFEQ does, and DELIFEQ.
const compareDelete = `
local value = redis.call('MGET', KEYS[1])[1]
if not value and redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('ERR Key should be of string type if conditions are specified')
end
return value == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`

// version is a hook that makes any server one that has the given commands of DELEX and DELIFEQ.
type version struct {
	rdb redis.UniversalClient // without the hook

	mu   sync.Mutex // guards what follows
	has  []string
	sent []string // all of these commands that were sent, in order
	fail func() error
}

func newVersion(t *testing.T, s *redistest.Server, has ...string) (*version, redis.UniversalClient) {
	t.Helper()
	// One connection: of several, one from before a restart might be taken up late, and what it sends is sent again.
	v, rdb := &version{rdb: s.Client(t), has: has}, s.Client(t, func(o *redis.UniversalOptions) { o.PoolSize = 1 })
	rdb.AddHook(v)
	return v, rdb
}

func (v *version) DialHook(next redis.DialHook) redis.DialHook { return next }

func (v *version) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (v *version) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		name, args := cmd.Name(), cmd.Args()
		if name != "delex" && name != "delifeq" {
			return next(ctx, cmd)
		}
		v.mu.Lock()
		v.sent = append(v.sent, name)
		err := error(redistest.ReplyError(fmt.Sprintf("ERR unknown command '%s', with args beginning with: ", name)))
		if slices.Contains(v.has, name) {
			err = nil
		}
		if v.fail != nil {
			err = v.fail()
		}
		v.mu.Unlock()
		if err == nil {
			reply := v.rdb.Eval(ctx, compareDelete, []string{args[1].(string)}, args[len(args)-1])
			n, failed := reply.Int64()
			cmd.(interface{ SetVal(val any) }).SetVal(n)
			err = failed
		}
		cmd.SetErr(err)
		return err
	}
}

// becomes has the server be another version from now on.
func (v *version) becomes(has ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.has, v.sent = has, nil
}

// wantSent holds which of these commands were sent since the last call.
func (v *version) wantSent(t *testing.T, what string, want ...string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.Equal(v.sent, want) {
		t.Errorf("%s: sent %q, want %q", what, v.sent, want)
	}
	v.sent = nil
}

// A node's refusal of a command costs one round trip, once. The next release tries the next command, and a
// node that has one is sent nothing else: a turn is a SET and that command.
func TestNative_versions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, c := range map[string]struct{ has, sent []string }{
			"Redis 8.4":    {[]string{"delex"}, []string{"delex", "delex", "delex", "delex"}},
			"Valkey 9":     {[]string{"delifeq"}, []string{"delex", "delifeq", "delifeq", "delifeq"}},
			"Redis 7":      {nil, []string{"delex", "delifeq"}},
			"both of them": {[]string{"delex", "delifeq"}, []string{"delex", "delex", "delex", "delex"}},
		} {
			v, rdb := newVersion(t, s, c.has...)
			m := newLocker(t, rdb).Mutex(redistest.Name(t) + name)
			for range 4 {
				le := mustTry(t, m)
				wantForm(t, m, "string")
				if free, err := le.Release(t.Context()); free != 1 || err != nil {
					t.Errorf("%s: Release: %d, %v", name, free, err)
				}
				wantForm(t, m, "none")
			}
			v.wantSent(t, name, c.sent...)
		}
	})
}

// A node is upgraded, and downgraded, while it is in use.
func TestNative_versionChanges(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	v, rdb := newVersion(t, s)
	l := newLocker(t, rdb)
	m := l.Mutex(redistest.Name(t))
	turns := func(n int) {
		t.Helper()
		for range n {
			mustUnlock(t, mustTry(t, m))
		}
	}
	turns(3)
	v.wantSent(t, "an old server", "delex", "delifeq")
	v.becomes("delex")
	turns(2)
	v.wantSent(t, "not noticed") // until it fails once, or an hour has passed
	s.Stop(t)
	// Of another lock: what was left of it is released again later, and makes its key count as contended.
	if _, err := l.Mutex(redistest.Name(t) + "-2").TryLock(t.Context()); !errors.Is(err, ErrBackend) {
		t.Fatalf("TryLock without a server: %v", err)
	}
	s.Start(t)
	// A SET over a connection from before is sent again, and then the key counts as contended for a second.
	redistest.Eventually(t, soon, func() bool {
		le, err := m.TryLock(t.Context())
		return err == nil && le.Unlock(t.Context()) == nil && !l.contended.isContended(m.keys[0])
	}, "the client reaches the new server, and its old connections are gone")
	v.becomes("delex")
	turns(2)
	v.wantSent(t, "a new server", "delex", "delex")
	v.becomes()
	turns(3)
	v.wantSent(t, "an old one again", "delex", "delifeq")
}

// The command never decides that a lease is lost. Whatever Redis replies to it, other than that it has deleted the
// key, the script is asked; only what says that the node has no such command, or not for this user, is remembered.
func TestNative_anyOtherReplyRunsTheScript(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for reply, again := range map[string]bool{
			"ERR unknown command `delex`, with args beginning with: ":           false,
			"unknown command 'DELEX'":                                           false,
			"NOPERM User u has no permissions to run the 'delex' command":       false,
			"NOPERM this user has no permissions to run the 'delex' command":    false,
			"NOPERM No permissions to access a key":                             false,
			"ERR unsupported condition":                                         false,
			"ERR wrong number of arguments for 'delex' command":                 false,
			"WRONGTYPE Operation against a key holding the wrong kind of value": true,
			"ERR Key should be of string type if conditions are specified":      true,
			"READONLY You can't write against a read only replica.":             true,
			"LOADING Redis is loading the dataset in memory":                    true,
			"MOVED 1 127.0.0.1:1":                                               true,
			"ASK 1 127.0.0.1:1":                                                 true,
			"TRYAGAIN Multiple keys request during rehashing of slot":           true,
			"CLUSTERDOWN The cluster is down":                                   true,
			"MASTERDOWN Link with MASTER is down":                               true,
			"NOREPLICAS Not enough good replicas to write.":                     true,
			"MISCONF Errors writing to the AOF file":                            true,
			"OOM command not allowed when used memory > 'maxmemory'.":           true,
			"BUSY Redis is busy running a script.":                              true,
			"NOAUTH Authentication required.":                                   true,
		} {
			v, rdb := newVersion(t, s, "delex")
			v.fail = func() error { return redistest.ReplyError(reply) }
			m := newLocker(t, rdb).Mutex(redistest.Name(t) + fmt.Sprint(len(reply), strings.Fields(reply)[0]))
			le := mustTry(t, m)
			if free, err := le.Release(t.Context()); free != 1 || err != nil {
				t.Errorf("%q: Release: %d, %v", reply, free, err)
			}
			wantForm(t, m, "none")
			mustUnlock(t, mustTry(t, m))
			if again {
				v.wantSent(t, reply, "delex", "delex")
			} else {
				v.wantSent(t, reply, "delex", "delifeq")
			}
			// Nor does it make a release succeed that should not.
			le = mustTry(t, m)
			raw(m).Del(t.Context(), m.Key())
			if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("%q: Unlock of a deleted lock: %v, want ErrNotHeld", reply, err)
			}
		}
	})
}

// A lock that others wait for is a sorted set, and its release grants it in the same Unlock.
func TestNative_waitersAreGranted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v, rdb := newVersion(t, s, "delex")
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		w := inLine(t, handle(newLocker(t, s.Client(t)), m), 1)
		if free, err := le.Release(t.Context()); free != 0 || err != nil {
			t.Errorf("Release: %d, %v", free, err)
		}
		v.wantSent(t, "another process waits", "delex")
		next := w.got(t)
		mustUnlock(t, next)

		le = mustTry(t, m)
		if err := le.Cooldown(t.Context(), time.Minute); err != nil {
			t.Error(err)
		}
		if band(t, m, "g:") != 1 {
			t.Errorf("no cooldown; %s", dump(m))
		}
		sem := m.locker.Semaphore(m.name+"2", 2)
		mustUnlock(t, mustTry(t, sem))
		fenced := m.locker.Mutex(m.name+"3", Fenced())
		mustUnlock(t, mustTry(t, fenced))
		v.wantSent(t, "what is no string, or leaves more than nothing")

		// Where this process wants the key, it knows that the key is no string any more.
		m = m.locker.Mutex(m.name + "4")
		le = mustTry(t, m)
		w = inLine(t, m, 1)
		mustUnlock(t, le)
		v.wantSent(t, "this process waits")
		mustUnlock(t, w.got(t))
		free(t, m, soon)
	})
}

// A copy of the command that arrives late leaves a successor alone, and the caller of Unlock is not told that it
// has succeeded.
func TestRule02_LateCompareAndDeleteLeavesTheSuccessorAlone(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	near, far, p := through(t, s, func(o *redis.UniversalOptions) {
		o.MaxRetries, o.ReadTimeout = -1, time.Second
	})
	m := near.Mutex(redistest.Name(t), TTL(time.Minute))
	for range 2 { // far learns which commands the server has
		mustUnlock(t, mustTry(t, handle(far, m)))
	}
	le := mustTry(t, handle(far, m))
	held := p.Hold(isRelease(m), 1)
	if err := le.Unlock(t.Context()); !errors.Is(err, ErrBackend) {
		t.Fatalf("Unlock without an answer: %v, want ErrBackend", err)
	}
	free(t, m, soon)
	next := mustTry(t, m)
	lines := monitor(t, s)
	held.Release()
	for line := come(t, lines, "the late copy"); !strings.Contains(line, le.body); line = come(t, lines, "the late copy") {
	}
	if _, ok := holds(t, next); !ok {
		t.Errorf("the successor is gone; %s", dump(m))
	}
	mustUnlock(t, next)
}

// The reply is lost, so that go-redis sends the command again: the second copy finds nothing, and nor does the script.
// The lease was held until now all the same.
func TestRule03_ResentCompareAndDeleteIsSuccess(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		if !hasCompareAndDelete(t, s) {
			t.Skip("this server has neither DELEX nor DELIFEQ")
		}
		_, far, p := through(t, s)
		m := far.Mutex(redistest.Name(t))
		for n := 1; n <= 3; n++ {
			le := mustTry(t, m)
			p.DropReplyTo(isRelease(m), n)
			if err := le.Unlock(t.Context()); err != nil {
				t.Errorf("%d replies lost: %v", n, err)
			}
			free(t, m, soon)
		}
		// Deleted by somebody else, and one copy sent: that is a lost lease.
		le := mustTry(t, m)
		raw(m).Del(t.Context(), m.Key())
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock of a deleted lock: %v, want ErrNotHeld", err)
		}
	})
}

// hasCompareAndDelete tells whether the server has a command of its own.
func hasCompareAndDelete(t *testing.T, s *redistest.Server) bool {
	t.Helper()
	key := redistest.Name(t) + "none"
	rdb := s.Client(t)
	return rdb.Do(t.Context(), "delex", key, "ifeq", "x").Err() == nil || rdb.Do(t.Context(), "delifeq", key, "x").Err() == nil
}

// On a server that has the command, MONITOR shows two commands for a turn. On another one, nothing that it counts as
// an error after the first turns.
func TestNative_steadyState(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	m := newLocker(t, rdb).Mutex(redistest.Name(t))
	for range 3 {
		mustUnlock(t, mustTry(t, m))
	}
	errorsBefore := errorStats(t, rdb)
	lines := monitor(t, s)
	const turns = 20
	for range turns {
		le, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		redistest.Must(t, le.Unlock(t.Context()))
	}
	if after := errorStats(t, rdb); after != errorsBefore {
		t.Errorf("errors that the server counts: %q became %q", errorsBefore, after)
	}
	const ended = "the last command"
	redistest.Must(t, rdb.Echo(t.Context(), ended).Err())
	sent := map[string]int{}
	for line := come(t, lines, "what MONITOR shows"); !strings.Contains(line, ended); line = come(t, lines, "what MONITOR shows") {
		if lua, args := monitored(t, line); !lua && len(args) > 1 && strings.Contains(strings.Join(args, " "), m.Key()) {
			sent[strings.ToLower(args[0])]++
		}
	}
	release := "evalsha"
	if hasCompareAndDelete(t, s) {
		release = "delex"
		if sent["delifeq"] > 0 {
			release = "delifeq"
		}
	}
	if sent["set"] != turns || sent[release] != turns || len(sent) != 2 {
		t.Errorf("%d turns sent %v", turns, sent)
	}
}

// A waiter that makes a sorted set of a string is nothing that the server counts as an error.
func TestNative_waitingIsNoError(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	m := newLocker(t, rdb).Mutex(redistest.Name(t))
	for range 3 { // learns which commands the server has
		mustUnlock(t, mustTry(t, m))
	}
	le := mustTry(t, m)
	w := inLine(t, handle(newLocker(t, s.Client(t)), m), 1)
	wantForm(t, m, "zset")
	if counted := errorStats(t, rdb); strings.Contains(counted, "WRONGTYPE") { // others are of new connections
		t.Errorf("errors that the server counts: %q", counted)
	}
	mustUnlock(t, le)
	mustUnlock(t, w.got(t))
}

// errorStats is what a server says of the errors that it has replied.
func errorStats(t *testing.T, rdb redis.UniversalClient) string {
	t.Helper()
	text, err := rdb.Info(t.Context(), "errorstats").Result()
	redistest.Must(t, err)
	return text
}
