package lock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// rights that the server takes away from a client that works: from then on it
// answers the set-up of each new connection with an error reply.
var refusals = map[string]func(t *testing.T, admin redis.UniversalClient, user string){
	"user deleted": func(t *testing.T, admin redis.UniversalClient, user string) {
		tell(t, admin, "ACL", "DELUSER", user)
	},
	"user switched off": func(t *testing.T, admin redis.UniversalClient, user string) {
		tell(t, admin, "ACL", "SETUSER", user, "off")
		tell(t, admin, "CLIENT", "KILL", "USER", user)
	},
	"other password": func(t *testing.T, admin redis.UniversalClient, user string) {
		tell(t, admin, "ACL", "SETUSER", user, "resetpass", ">other")
		tell(t, admin, "CLIENT", "KILL", "USER", user)
	},
}

func tell(t *testing.T, rdb redis.UniversalClient, command ...any) {
	t.Helper()
	if err := rdb.Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(command, err)
	}
}

// withUser makes a client that is a user of its own with all rights.
func withUser(t *testing.T, s *redistest.Server, admin redis.UniversalClient, user string) redis.UniversalClient {
	t.Helper()
	tell(t, admin, "ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all")
	return s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = user, "secret" })
}

// A renewal that never reached Redis, since the server refused the set-up of the
// connection, renews nothing: the lease is lost at its deadline, its context ends,
// and only then there is another holder.
func TestRefusedSetUp_leaseIsLost(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		for _, replicas := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, MinReplicas %d", name, replicas), func(t *testing.T) {
				t.Parallel()
				s := redistest.StartReal(t)
				if replicas > 0 {
					redistest.StartReplica(t, s)
				}
				admin := s.Client(t)
				first := newLocker(t, withUser(t, s, admin, "first"), minReplicas(replicas)).Mutex(redistest.Name(t), TTL(2*time.Second))
				second := handle(newLocker(t, withUser(t, s, admin, "second"), minReplicas(replicas)), first, TTL(time.Minute))
				le := mustTry(t, first)
				bound := le.Bind(t.Context())
				refuse(t, admin, "first")
				next := lockBeside(t, second).got(t)
				if le.Held() || !next.Held() {
					t.Errorf("held by the first: %v, by the second: %v", le.Held(), next.Held())
				}
				if !errors.Is(context.Cause(bound), ErrLost) {
					t.Errorf("the first one's context: %v", context.Cause(bound))
				}
				mustUnlock(t, next)
			})
		}
	}
}

// A server whose password was changed, and whose connections were cut.
func TestRefusedSetUp_requirepass(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	tell(t, admin, "CONFIG", "SET", "requirepass", "secret")
	password := func(text string) func(o *redis.UniversalOptions) {
		return func(o *redis.UniversalOptions) { o.Password = text }
	}
	m := newLocker(t, s.Client(t, password("secret"))).Mutex(redistest.Name(t), TTL(2*time.Second))
	le := mustTry(t, m)
	tell(t, admin, "AUTH", "secret")
	tell(t, admin, "CONFIG", "SET", "requirepass", "other")
	tell(t, admin, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	next := lockBeside(t, handle(newLocker(t, s.Client(t, password("other"))), m, TTL(time.Minute))).got(t)
	if le.Held() || !next.Held() {
		t.Errorf("held by the first: %v, by the second: %v", le.Held(), next.Held())
	}
}

// The lease is renewed as soon as the server lets its owner in again.
func TestRefusedSetUp_rightsComeBack(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	le := mustTry(t, newLocker(t, withUser(t, s, admin, "first")).Mutex(redistest.Name(t), TTL(3*time.Second)))
	before := le.Deadline()
	refusals["user switched off"](t, admin, "first")
	time.Sleep(time.Until(before.Add(-time.Second))) // several renewals have failed
	if !le.Held() || le.Deadline() != before {
		t.Fatalf("held: %v, and its deadline moved by %s while nothing could be renewed", le.Held(), le.Deadline().Sub(before))
	}
	tell(t, admin, "ACL", "SETUSER", "first", "on")
	redistest.Eventually(t, soon, func() bool { return time.Now().After(before.Add(time.Second)) }, "more time than the lease had")
	if !le.Held() {
		t.Error("the lease was lost although its owner was let in again in time")
	}
	mustUnlock(t, le)
}

// Whatever is asked for through a connection whose set-up is refused ends with an
// error that Is ErrBackend, over each transport.
func TestRefusedSetUp_everyCall(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			user := redistest.Name(t)
			rdb := withUser(t, s, admin, user)
			transport := open(t, rdb)
			l := newLocker(t, rdb, func(o *Options) { o.Transport = transport })
			tell(t, admin, "ACL", "DELUSER", user)
			everyCall(t, l, user)
		})
	}
}
