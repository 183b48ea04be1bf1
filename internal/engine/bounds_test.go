package engine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
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
	// add puts that many dead holders there and, in front of the line, waiters, which are dead or live.
	add := func(holders, waiters int, live bool) {
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
	}
	fill := func(holders, waiters int, live bool) {
		rdb.FlushAll(ctx)
		w.set(startUS, 0)
		for i := range 2 {
			e.run("ask", keys, fmt.Sprintf("c0.h%d|w|", i), 100, i, 3000)
		}
		add(holders, waiters, live)
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
		fill(0, 0, true)
		for i := range 1000 {
			e.run("ask", keys, fmt.Sprintf("c3.h%d|w|n%d", i+1, i+1), 600000, 0, 0, 2000, 0, 1)
		}
		add(0, 1000, true)
		asks := 1
		for isBusy(most(t, 640, "ask", "c9.x|w|other", 30000, 3000, 3000, 5000, 0, 1)) {
			if asks++; asks > 11 {
				t.Fatal("who stands behind 1,000 that stand aside does not get a slot that is free")
			}
		}
		// Nobody looks at them again, neither another one nor they.
		if isBusy(most(t, 60, "ask", "c9.y|w|another", 30000, 0, 0, 5000, 0, 1)) {
			t.Error("busy, want a slot at once")
		}
		for i := range 1000 {
			l, ok := most(t, 60, "ask", fmt.Sprintf("c2.w%d|w|n%d", i+1, i+1), 30000, 3000, 3000, 5000, 0, 1).([]any)
			if !ok || l[1] == int64(0) {
				t.Fatalf("%v, want that it waits", l)
			}
		}
		if l := list(e.run("line", keys, 5)); l[1] != "1" || len(l) != 15 {
			t.Errorf("the line is %v, want five by their tickets", l)
		}
		// A holder leaves, and the waiter with its note comes.
		e.run("release", keys, "c3.h901|w|n901", 5000)
		if rdb.ZScore(ctx, keys[1], "c2.w901|w|n901").Err() != nil {
			t.Error("who stands aside for it is not granted the slot")
		}
	})
	t.Run("sweep and break", func(t *testing.T) {
		fill(0, 1000, false)
		from, calls := "0", 0
		for left := int64(1); left > 0; calls++ {
			l := list(most(t, 650, "sweep", 0, from))
			from, left = l[1].(string), num(l[2])
		}
		if left := rdb.ZCard(ctx, keys[2]).Val(); left != 0 || calls > 12 {
			t.Errorf("%d waiters are left after %d sweeps", left, calls)
		}
		fill(0, 1000, true)
		for range 11 {
			e.run("ask", keys, "c9.x|w|", 30000, 3000, 3000, 5000)
		}
		broken := int64(0)
		for some := range slices.Chunk(list(most(t, 10, "break", 5000, "list"))[1:], 100) {
			broken += num(list(most(t, 1150, "break", append([]any{5000, "take"}, some...)...))[0])
		}
		if broken < 900 {
			t.Errorf("%d broken", broken)
		}
		fill(150, 60, true)
		broken = num(list(e.run("break", keys, 1, "open"))[0])
		if held := rdb.ZCount(ctx, keys[1], fmt.Sprint(now+1000), "+inf").Val(); held != 1 || broken != 0 {
			t.Errorf("%d broken, %d hold it beside the dead, want none and one", broken, held)
		}
	})
	t.Run("the oldest of 1,000 holders is not among the first", func(t *testing.T) {
		rdb.FlushAll(ctx)
		sub := rdb.PSubscribe(ctx, "automutex:*")
		defer sub.Close()
		_, err := sub.Receive(ctx)
		redistest.Must(t, err)
		for i := range int64(1002) { // the first waits; next attempts of 100 others stand aside behind it
			w.set(startUS+i, 0)
			e.run("arrive", newestKeys(key), i, 1000)
			if i > 0 {
				e.run("ask", keys, fmt.Sprintf("c1.h.%d|w|%d", startUS+i, i), 90000-i, 0, 0, 1000)
			}
		}
		for i := range int64(101) {
			e.run("ask", keys, fmt.Sprintf("c1.w.%d|w|%d", startUS+i, i), 90000, 3000, 3000, 1000, 0, 1)
		}
		e.run("stop", append(keysOf(key), newestKeys(key)...), 1000, startUS+1001)
		want := fmt.Sprintf("[c1: c1.w.%d -2 %[2]d c1: c1.h.%[3]d -2 %[2]d]", startUS, startUS+1001, startUS+1)
		if got := fmt.Sprint(messages(rdb, sub.Channel())); got != want {
			t.Errorf("%s are asked to stop, want %s", got, want)
		}
	})
}
