package lock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// deny takes rights from a user that has connected.
func deny(t *testing.T, admin redis.UniversalClient, user string, rights ...any) {
	t.Helper()
	tell(t, admin, append([]any{"ACL", "SETUSER", user}, rights...)...)
}

// wantDenied holds err against what is to be said of a command that Redis refuses.
func wantDenied(t *testing.T, what string, err error, command string) {
	t.Helper()
	if !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) {
		t.Errorf("%s: %v; want ErrBackend", what, err)
		return
	}
	var said redis.Error
	if !strings.Contains(err.Error(), "refuses "+command) || !errors.As(err, &said) {
		t.Errorf("%s: %v; want that it names %s, and wraps Redis' error", what, err, command)
	}
	for _, s := range []*exchange.Script{wire.AskScript, wire.ReleaseScript, wire.PoolTakeScript, wire.ArriveScript} {
		if strings.Contains(err.Error(), s.SHA) {
			t.Errorf("%s quotes the hash of a script: %v", what, err)
		}
	}
}

// keysWithoutTTL are all keys of a server that would stay for ever.
func keysWithoutTTL(t *testing.T, admin redis.UniversalClient) (found []string) {
	t.Helper()
	keys, err := admin.Keys(t.Context(), "*").Result()
	redistest.Must(t, err)
	for _, key := range keys {
		if ttl, err := admin.PTTL(t.Context(), key).Result(); err != nil || ttl == -1 {
			found = append(found, fmt.Sprintf("%s (%v)", key, err))
		}
	}
	return found
}

// Where a user has no right to PEXPIRE, each call that needs it fails, again and
// again, with an error that says so; nothing is taken, and no key stays.
func TestDeniedPEXPIRE_nothingStays(t *testing.T) {
	t.Parallel()
	for how, start := range map[string]func(*testing.T) (admin redis.UniversalClient, rdb redis.UniversalClient, name string){
		"no right": func(t *testing.T) (redis.UniversalClient, redis.UniversalClient, string) {
			s := redistest.StartReal(t)
			admin := s.Client(t)
			rdb := withUser(t, s, admin, "user")
			deny(t, admin, "user", "-pexpire")
			return admin, rdb, redistest.Name(t)
		},
		"renamed": func(t *testing.T) (redis.UniversalClient, redis.UniversalClient, string) {
			s := redistest.StartReal(t, "--rename-command", "PEXPIRE", "OTHER")
			return s.Client(t), s.Client(t), redistest.Name(t)
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			admin, rdb, name := start(t)
			l := asksAlways(newLocker(t, rdb))
			m, sem, p := l.Mutex(name, Note("note")), l.Semaphore(name+"3", 3), l.Pool(name)
			ctx := t.Context()
			for range 3 {
				for what, call := range map[string]func() error{
					"TryLock":      func() error { _, err := m.TryLock(ctx); return err },
					"Lock":         func() error { _, err := m.Lock(ctx); return err },
					"LockOrPark":   func() error { _, err := m.lockOrPark(ctx, closedYield); return err },
					"of semaphore": func() error { _, err := sem.TryLock(ctx); return err },
					"Take":         func() error { _, err := p.Take(ctx); return err },
					"Arrive":       func() error { _, _, err := m.arrive(ctx); return err },
				} {
					wantDenied(t, what, call(), "PEXPIRE")
				}
			}
			redistest.Eventually(t, soon, func() bool {
				left, err := admin.Keys(ctx, "*").Result()
				return err == nil && len(left) == 0
			}, "no key")
		})
	}
}

// The right to PEXPIRE is taken away while a lock is held and waited for: no key loses
// its TTL or goes without, and once the right is back the lock goes on as before.
func TestDeniedPEXPIRE_whileTaken(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	holder := newLocker(t, admin).Semaphore(redistest.Name(t), 2, Note("holder"), TTL(time.Minute))
	other := handle(newLocker(t, withUser(t, s, admin, "user")), holder, Note("other"), TTL(10*time.Minute))
	held, second := mustTry(t, holder), mustTry(t, holder)
	deny(t, admin, "user", "-pexpire")
	before := stored(t, holder)
	for what, call := range map[string]func() error{
		"LockOrPark": func() error { _, err := other.lockOrPark(t.Context(), closedYield); return err },
		"TryLock":    func() error { mustUnlock(t, second); _, err := other.TryLock(t.Context()); return err },
	} {
		wantDenied(t, what, call(), "PEXPIRE")
		if n := band(t, holder, "p:") + band(t, holder, "e:"); n != 0 {
			t.Errorf("%s left a place in line; %s", what, dump(holder))
		}
	}
	if found := keysWithoutTTL(t, admin); len(found) > 0 {
		t.Errorf("without a TTL: %s", found)
	}
	if _, holds := stored(t, holder)["h:"+held.body]; !holds || len(stored(t, holder)) >= len(before) {
		t.Errorf("stored: %s", dump(holder))
	}
	deny(t, admin, "user", "+pexpire")
	mustUnlock(t, mustTry(t, other))
	mustUnlock(t, held)
	free(t, holder, 0)
}

// Where a user has no right to EVALSHA, or it is renamed, everything goes by EVAL,
// over each transport, and is said once.
func TestDeniedEVALSHA_goesByEVAL(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	renamed := redistest.StartReal(t, "--rename-command", "EVALSHA", "")
	open := map[string]func(t *testing.T) (redis.UniversalClient, Transport){
		"renamed": func(t *testing.T) (redis.UniversalClient, Transport) { return renamed.Client(t), nil },
		"client":  func(t *testing.T) (redis.UniversalClient, Transport) { return denied(t, s, admin, "-evalsha"), nil },
	}
	for name, transport := range transports {
		open[name] = func(t *testing.T) (redis.UniversalClient, Transport) {
			rdb := denied(t, s, admin, "-evalsha")
			return rdb, transport(t, rdb)
		}
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, transport := open(t)
			log := &redistest.Log{}
			m := newLocker(t, rdb, logTo(log), func(o *Options) { o.Transport = transport }).Mutex(redistest.Name(t))
			le := mustTry(t, m)
			waiter := inLine(t, m, 1)
			first := le.Deadline()
			renewNow(m.locker)
			redistest.Eventually(t, soon, func() bool { return le.Deadline().After(first) }, "a renewal") // by a pipeline
			mustUnlock(t, le)
			mustUnlock(t, waiter.got(t))
			free(t, m, soon)
			if n := strings.Count(log.String(), "command=EVALSHA"); n != 1 {
				t.Errorf("said %d times:\n%s", n, log.String())
			}
		})
	}
}

// A user loses the right to SET: from then on each lock is asked for by the script, and that is said once.
func TestDeniedSET_goesByTheScript(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin, log := s.Client(t), &redistest.Log{}
	l := newLocker(t, withUser(t, s, admin, "user"), logTo(log))
	mustUnlock(t, mustTry(t, l.Mutex(redistest.Name(t))))
	deny(t, admin, "user", "-set")
	for range 3 {
		m := l.Mutex(redistest.Name(t))
		le := mustTry(t, m)
		waiter := inLine(t, m, 1)
		mustUnlock(t, le)
		mustUnlock(t, waiter.got(t))
		free(t, m, soon)
	}
	if !l.conn.SetIsRefused() {
		t.Error("SET is sent again for each lock")
	}
	if n := strings.Count(log.String(), "Redis refuses SET: locks that nobody waits for cost more"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
}

// Where EVAL is refused too, errors and one line of the log say so, and what to do.
func TestDeniedEVAL_isNamed(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	log := &redistest.Log{}
	l := asksAlways(newLocker(t, denied(t, s, admin, "-evalsha", "-eval"), logTo(log)))
	m := l.Mutex(redistest.Name(t))
	for range 3 {
		_, err := m.TryLock(t.Context())
		wantDenied(t, "TryLock", err, "EVAL")
		_, err = m.Lock(t.Context())
		wantDenied(t, "Lock", err, "EVAL")
	}
	if n := strings.Count(log.String(), "command=EVAL "); n != 1 {
		t.Errorf("EVAL was named %d times:\n%s", n, log.String())
	}
	documented := strings.ReplaceAll(strings.Join(documentedRights(t), " "), "automutex:", l.prefix+":")
	if fix := "ACL SETUSER <user> " + documented; !strings.Contains(log.String(), fix) {
		t.Errorf("the log does not have the documented rights, %s:\n%s", fix, log.String())
	}
}

func logTo(log *redistest.Log) func(*Options) {
	return func(o *Options) { o.Logger = log.Logger() }
}

// denied makes a client of a new user with all rights but those.
func denied(t *testing.T, s *redistest.Server, admin redis.UniversalClient, rights ...any) redis.UniversalClient {
	t.Helper()
	user := redistest.Name(t)
	rdb := withUser(t, s, admin, user)
	deny(t, admin, user, rights...)
	return rdb
}
