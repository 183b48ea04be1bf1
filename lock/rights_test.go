package lock

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// documentedRights are what docs/redis.md gives to the user of the locks.
func documentedRights(t *testing.T) []string {
	t.Helper()
	return redistest.DocumentedRights(t, "../docs/redis.md", "automutex")
}

// conformance are tests of what the engine promises that look at Redis with the
// rights of the engine only. (Others load scripts, count commands or put foreign
// keys there, which takes more.)
var conformance = []string{
	"Rule01_AtMostNHolders", "Rule01_RaisingNCountsForThoseWhoGiveIt", "Rule01_LoweringNTakesEffectAsHoldersLeave",
	"Rule02_LateReleaseLeavesTheSuccessorAlone", "Rule02_OnlyTheGrantedTokenRenews", "Rule04_ReleaseAndGrantAreOneScript",
	"Rule06_GrantedLeaseIsRenewedToItsFullTTL", "Rule07_MessagesWake", "Rule11_FenceGrows", "Rule12_KeyOutlivesItsEntries",
	"CooldownKeepsTheSlotForThatLong", "FirstComeFirstServed", "NewcomerNeverOvertakes",
	"BreakOneOfSeveral", "BreakAll", "BreakDuringDo", "Delete", "ByKey",
	"PoolTakeIsWokenByAPut", "PoolDelete", "Claim_one", "Claim_besideTheLock", "Rights_walk", "Rights_pool", "Rights_slotThatMoves",
}

// TestRights runs the conformance tests again, in a process whose clients are a
// user with the documented rights and no others.
func TestRights(t *testing.T) {
	t.Parallel()
	redistest.AsUser(t, documentedRights(t), conformance)
}

// The documented rights are no wider than what is used: by the scripts, or as
// said here.
func TestRights_noneTooMany(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("../internal/wire/lua")
	redistest.Must(t, err)
	used := []string{
		"resetkeys", "resetchannels", "~automutex:*", "&automutex:*",
		"+eval", "+evalsha", "+scan", // the engine itself
		"+subscribe", "+unsubscribe", "+ping", // its wake channel
		"+hello", "+cluster|slots", "+asking", // go-redis, to connect, and to follow a slot that moves
	}
	call := regexp.MustCompile(`redis\.p?call\('(\w+)'`)
	for _, f := range files {
		source, err := os.ReadFile("../internal/wire/lua/" + f.Name())
		redistest.Must(t, err)
		for _, m := range call.FindAllStringSubmatch(string(source), -1) {
			used = append(used, "+"+strings.ToLower(m[1]))
		}
	}
	rights := documentedRights(t)
	for _, right := range rights {
		if !slices.Contains(used, right) {
			t.Errorf("%s is used by nothing", right)
		}
	}
	for _, right := range used {
		if !slices.Contains(rights, right) {
			t.Errorf("%s is missing", right)
		}
	}
}

// What walks all keys, under a prefix that the rights cover. It is the test's own, since a
// sweep removes what has expired under its prefix, also that of other tests.
func TestRights_walk(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), prefixed(inside.DefaultPrefix+":"+redistest.Name(t)))
		m := l.Mutex(redistest.Name(t))
		le := mustTry(t, m)
		found := false
		for info, err := range l.list(t.Context()) {
			redistest.Must(t, err)
			found = found || info.Key == m.Key()
		}
		if !found {
			t.Error("List does not tell the lock")
		}
		if _, err := l.sweep(t.Context()); err != nil {
			t.Error(err)
		}
		if locked, err := m.Locked(t.Context()); err != nil || !locked {
			t.Errorf("Locked: %v, %v", locked, err)
		}
		if err := le.Extend(t.Context(), DefaultTTL); err != nil {
			t.Error(err)
		}
		mustUnlock(t, le)
	})
}

// In a Cluster, what lies in a slot that moves to another node: the old one sends
// the client there, and the client has to be allowed to ask.
func TestRights_slotThatMoves(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		move := func(_ *Lock, while func()) { while() }
		if s.Kind() == redistest.KindCluster {
			s = redistest.StartCluster(t, 0)
			move = func(m *Lock, while func()) { s.MoveSlot(t, m.Key(), while) }
		}
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		move(m, func() { mustUnlock(t, mustTry(t, m)) })
		le := mustTry(t, m)
		move(m, func() { mustBeBusy(t, m) })
		mustUnlock(t, le)
	})
}

// Every operation of a pool.
func TestRights_pool(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := newLocker(t, s.Client(t)).Pool(redistest.Name(t))
		if _, err := p.Put(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		le, err := p.m.TryLock(t.Context())
		redistest.Must(t, err)
		if n, err := p.available(t.Context()); err != nil || n != 1 {
			t.Errorf("Available: %d, %v", n, err)
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if le, err = p.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := le.Consume(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := p.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
