package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

// go-redis sends a release again that a demoted master refused with READONLY. The refused copy did not
// release the lock, so Unlock of a lock that was lost meanwhile says so.
func TestUnlock_refusedByADemotedMaster(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	if _, asks := any(redis.NewCmd(t.Context())).(interface{ NoRetry() bool }); !asks {
		t.Skip("this go-redis sends a command again by itself, and says nothing of the copies")
	}
	slow := func(o *redis.UniversalOptions) {
		o.MinRetryBackoff, o.MaxRetryBackoff = 400*time.Millisecond, 500*time.Millisecond
	}
	for _, lost := range []bool{true, false} {
		for _, semaphore := range []int{1, 2} {
			l := newLocker(t, s.Client(t, slow))
			m := l.Semaphore(redistest.Name(t), semaphore, TTL(time.Minute))
			warm(t, m)
			le := mustTry(t, m)
			direct := s.Client(t)
			redistest.Must(t, direct.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
			done := make(chan error, 1)
			go func() { done <- le.Unlock(context.Background()) }()
			redistest.Eventually(t, turn.Patience, func() bool { return refused(t, direct) }, "the release was refused")
			redistest.Must(t, direct.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
			if lost { // the next master has never seen it
				redistest.Must(t, direct.Del(t.Context(), m.Key()).Err())
			}
			switch err := <-done; {
			case lost && !errors.Is(err, ErrNotHeld):
				t.Errorf("Unlock of a lost lock, refused once by READONLY: %v, want ErrNotHeld", err)
			case !lost && err != nil:
				t.Errorf("Unlock of a held lock, refused once by READONLY: %v, want nil", err)
			}
			redistest.Must(t, direct.ConfigResetStat(t.Context()).Err())
		}
	}
}

// refused reports whether the server has refused a command with READONLY.
func refused(t *testing.T, rdb redis.UniversalClient) bool {
	t.Helper()
	text, err := rdb.Info(t.Context(), "errorstats").Result()
	redistest.Must(t, err)
	return strings.Contains(text, "errorstat_READONLY:")
}

// In a slot that a Cluster moves, the first copy of a command is answered ASK. It did not run: nothing is
// released again later, and Unlock of a lock that is gone does not say nil.
func TestUnlock_redirectedInACluster(t *testing.T) {
	t.Parallel()
	s := redistest.StartCluster(t, 0)
	l, other, replicated := newLocker(t, s.Client(t)), newLocker(t, s.Client(t)), newLocker(t, s.Client(t), minReplicas(1))
	mustUnlock(t, mustTry(t, l.Mutex("warm")))
	for _, semaphore := range []int{1, 2} {
		m := l.Semaphore(redistest.Name(t), semaphore, TTL(time.Minute))
		// With MinReplicas the redirection is followed to the node that then has no replica: ASK, and MOVED below.
		notReplicated := func() {
			t.Helper()
			if _, err := handle(replicated, m).TryLock(t.Context()); !errors.Is(err, ErrNotReplicated) {
				t.Errorf("with MinReplicas: %v, want ErrNotReplicated", err)
			}
			free(t, m, soon)
		}
		s.MoveSlot(t, m.Key(), func() {
			notReplicated()
			le, err := m.TryLock(t.Context())
			redistest.Must(t, err)
			if le.asks.MayRunYet() {
				t.Errorf("a redirection counts as %d copies of the ask without a reply", le.asks.Copies())
			}
			redistest.Must(t, handle(other, m).Delete(t.Context()))
			if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("Unlock of a lock that was deleted: %v, want ErrNotHeld", err)
			}
			if le = mustTry(t, m); le.Unlock(t.Context()) != nil {
				t.Error("Unlock of a held lock in that slot fails")
			}
		})
		notReplicated()
	}
}
