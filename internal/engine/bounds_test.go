package engine

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

var commandCalls = regexp.MustCompile(`cmdstat_[a-z]+:calls=(\d+)`)

// TestBounds: no script makes more than some hundred calls, however much there is; what is left comes with the next
// calls.
func TestBounds(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	rdb := w.rdb
	e := newSender(t, rdb, nil)
	ctx, key := context.Background(), "automutex:{b}"
	keys := keysOf(key)
	now := startUS / 1000
	most := func(t *testing.T, calls int, name string, args ...any) any {
		t.Helper()
		rdb.ConfigResetStat(ctx)
		reply := e.run(name, keys, args...)
		got := -2 // the EVALSHA, and this INFO's CONFIG
		for _, m := range commandCalls.FindAllStringSubmatch(rdb.Info(ctx, "commandstats").Val(), -1) {
			n, err := strconv.Atoi(m[1])
			redistest.Must(t, err)
			got += n
		}
		if got > calls {
			t.Errorf("%s made %d calls, want at most %d", name, got, calls)
		}
		return reply
	}
	// fill makes a lock with that many dead holders and, in front of the line, waiters, which are dead or live.
	fill := func(holders, waiters int, live bool) {
		rdb.FlushAll(ctx)
		w.set(startUS, 0)
		for i := range 2 {
			e.run("ask", keys, fmt.Sprintf("c0.h%d|w|", i), 100, i, 3000)
		}
		till := now - 1000
		if live {
			till = now + 600000
		}
		const fillIn = `for i = 1, tonumber(ARGV[1]) do redis.call('ZADD', KEYS[1], ARGV[2], 'c1.d' .. i .. '|w|') end
			for i = 1, tonumber(ARGV[3]) do
				redis.call('ZADD', KEYS[2], i, 'c2.w' .. i)
				redis.call('HSET', KEYS[3], 'c2.w' .. i, ARGV[4] .. ' 3000 1 w|n' .. i)
			end return 1`
		redistest.Must(t, rdb.Eval(ctx, fillIn, []string{keys[1], keys[2], keys[5]}, holders, now-1000, waiters, till).Err())
		w.set(startUS+1_000_000, 0) // the leases of the two end
	}
	isBusy := func(reply any) bool { _, busy := reply.([]any); return busy }
	t.Run("a hundred called notes do not come", func(t *testing.T) {
		rdb.FlushAll(ctx)
		w.set(startUS, 0)
		e.run("ask", keys, "c0.h|w|", 60000)
		for i := range 130 {
			e.run("ask", keys, fmt.Sprintf("c3.p%d|w|n%d", i, i), 30000, 0, 3000, 1, 1, 1)
		}
		e.run("release", keys, "c0.h|w|")
		called := map[string]bool{}
		for i := range 300 {
			w.set(startUS+int64(2+i)*1_000_000, 0)
			reply, _ := e.run("check", keys, 1, 1, 500, "", "").([]any)
			for _, note := range reply[min(3, len(reply)):] {
				called[fmt.Sprint(note)] = true
			}
		}
		if len(called) != 130 {
			t.Errorf("%d of 130 were called, want each", len(called))
		}
	})
	t.Run("a try behind 20,000 dead waiters", func(t *testing.T) {
		fill(0, 20000, false)
		asks := 1
		for isBusy(most(t, 330, "ask", "c9.x|w|", 30000)) {
			asks++
		}
		if asks < 200 || asks > 203 {
			t.Errorf("%d asks, want one in 100", asks)
		}
	})
	t.Run("4,000 waiters are granted", func(t *testing.T) {
		fill(0, 4000, true)
		for i := range 40 {
			l, ok := most(t, 620, "ask", "c9.x|w|", 30000, 3000, 3000, 5000).([]any)
			if !ok || l[1] != int64(0) {
				t.Fatalf("ask %d replied %v, want that it stopped", i, l)
			}
		}
		if held := rdb.ZCard(ctx, keys[1]).Val(); held < 3900 || held > 4000 {
			t.Errorf("%d hold it, want 100 more with each ask", held)
		}
		if isBusy(most(t, 620, "ask", "c9.x|w|", 30000, 3000, 3000, 5000)) {
			t.Error("busy, want the lock for who asked 40 times")
		}
	})
	t.Run("20,000 dead holders", func(t *testing.T) {
		fill(20000, 0, false)
		if isBusy(most(t, 130, "ask", "c9.x|w|", 30000)) {
			t.Error("busy, want the lock: the dead do not count")
		}
		if reply := most(t, 130, "release", "c9.x|w|"); reply != int64(1) {
			t.Errorf("the release replied %v, want 1", reply)
		}
		if n := rdb.Exists(ctx, keys...).Val(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
	t.Run("1,000 waiters whose notes are taken", func(t *testing.T) {
		fill(0, 1000, true)
		for i := range 1000 {
			e.run("ask", keys, fmt.Sprintf("c3.h%d|w|n%d", i, i+1), 600000, 0, 0, 2000, 0, 1)
		}
		if held := rdb.ZCard(ctx, keys[1]).Val(); held < 900 {
			t.Fatalf("%d hold it", held)
		}
		asks := 1
		for isBusy(most(t, 640, "ask", "c9.x|w|other", 30000, 3000, 3000, 5000, 0, 1)) {
			if asks++; asks > 30 {
				t.Fatal("who stands behind 1,000 that are passed over does not get a slot that is free")
			}
		}
	})
	t.Run("sweep and break", func(t *testing.T) {
		fill(0, 1000, false)
		from, calls := int64(0), 0
		for again := true; again; calls++ {
			l := list(most(t, 650, "sweep", 0, from))
			from, again = num(l[1]), num(l[2]) == 1
		}
		if left := rdb.ZCard(ctx, keys[2]).Val(); left != 0 || calls > 12 {
			t.Errorf("%d waiters are left after %d sweeps", left, calls)
		}
		fill(0, 1000, true)
		for range 11 {
			e.run("ask", keys, "c9.x|w|", 30000, 3000, 3000, 5000)
		}
		broken := int64(0)
		for again := true; again; {
			l := list(most(t, 650, "break", 0, "", "0", 0))
			broken, again = broken+num(l[0]), num(l[1]) == 1
		}
		if broken < 900 {
			t.Errorf("%d broken", broken)
		}
		fill(150, 60, true)
		broken = num(list(e.run("break", keys, 1, "", "0", 0))[0])
		if held := rdb.ZCount(ctx, keys[1], fmt.Sprint(now+1000), "+inf").Val(); held != 1 || broken != 0 {
			t.Errorf("%d broken, %d hold it beside the dead, want none and one", broken, held)
		}
	})
}
