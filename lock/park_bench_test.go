package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// BenchmarkRelease_inLine is what one ask and one release of a lock with n in
// line cost Redis itself, by its own count, on a server of its own. Parked: one
// that was called takes the lock, and its release calls the next. Waiting: one
// joins the line, and the release grants the first. Either way n stays n.
//
//	go test -run '^$' -bench Release_inLine -benchtime 3000x ./lock
func BenchmarkRelease_inLine(b *testing.B) {
	for _, kind := range []struct {
		name string
		pair func(b *testing.B, m *Lock, n int) func(i int)
	}{{"parked", parkedPair}, {"waiting", waitingPair}} {
		alone := 0.0
		for _, n := range []int{1, 1_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, n), func(b *testing.B) {
				rdb := redistest.StartReal(b).Client(b)
				m := newLocker(b, rdb).Mutex(redistest.Name(b), TTL(time.Hour))
				warm(b, m)
				pair := kind.pair(b, m, n)
				for i := range 200 { // warm caches, of the server too
					pair(i)
				}
				// The median of some hundreds: whoever else uses the machine
				// costs some of them much, but not most.
				const hundred = 100
				var times []float64
				before := scriptTime(b, rdb)
				b.ResetTimer()
				for i := range b.N {
					pair(200 + i)
					if (i+1)%hundred == 0 {
						now := scriptTime(b, rdb)
						times = append(times, (now-before)/hundred)
						before = now
					}
				}
				b.StopTimer()
				if len(times) == 0 {
					return // the trial run, of a few
				}
				slices.Sort(times)
				each := times[len(times)/2]
				if n == 1 {
					alone = each
				}
				b.ReportMetric(each, "us/pair")
				if alone > 0 {
					b.ReportMetric(each/alone, "x-of-1")
					if each > 1.5*alone {
						b.Errorf("%.1f us with %d in line, %.1f with one", each, n, alone)
					}
				}
			})
		}
	}
}

// scriptTime is how long Redis has spent on scripts, in microseconds.
func scriptTime(b *testing.B, rdb redis.UniversalClient) float64 {
	b.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	redistest.Must(b, err)
	_, stat, ok := strings.Cut(info, "cmdstat_evalsha:calls=")
	_, usec, _ := strings.Cut(stat, ",usec=")
	usec, _, _ = strings.Cut(usec, ",")
	us, err := strconv.ParseFloat(usec, 64)
	if !ok || err != nil {
		b.Fatalf("no time of EVALSHA in %q: %v", info, err)
	}
	return us
}

// fabricate puts entries in line by their number, as members makes them.
func fabricate(b *testing.B, m *Lock, n int, members func(i int) []redis.Z) {
	b.Helper()
	for i := 0; i < n; {
		p := raw(m).Pipeline()
		for range 1000 {
			if i < n {
				p.ZAdd(b.Context(), m.Key(), members(i)...)
				i++
			}
		}
		if _, err := p.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// runPart runs one script and wants a reply of a kind.
func runPart[T any](b *testing.B, m *Lock, s *exchange.Script, args ...any) (reply T) {
	b.Helper()
	v, err := m.locker.conn.Run(b.Context(), s, m.keys, args)
	reply, ok := v.(T)
	if err != nil || !ok {
		b.Fatalf("%s: %v, %v", s.Name, v, err)
	}
	return reply
}

func parkedPair(b *testing.B, m *Lock, n int) func(i int) {
	note := func(i int) string { return "default/job-" + strconv.Itoa(i) }
	start := float64(serverNow(b, m).UnixMicro()) - 1.6e15
	entry := func(i int) []redis.Z { return []redis.Z{{Score: 4e15 + start + float64(i), Member: "p:" + note(i)}} }
	held := m.newLease()
	ask := func(body string) []any { return []any{body, m.keepArg} }
	runPart[int64](b, m, wire.AskScript, ask(held.body)...)
	fabricate(b, m, n+1, entry) // one is called, n are parked
	runPart[[]any](b, m, wire.ReleaseScript, held.body, 1, 1, 0, 60_000)
	return func(i int) {
		body := "channel.3000." + strconv.Itoa(i) + "|owner|" + note(i)
		runPart[[]any](b, m, wire.AskScript, ask(body)...)
		redistest.Must(b, raw(m).ZAdd(b.Context(), m.Key(), entry(i+n+1)...).Err())
		r := runPart[[]any](b, m, wire.ReleaseScript, body, 1, 1, 0, 60_000)
		if len(r) != 4 || r[1] != int64(n) || r[3] != note(i+1) {
			b.Fatalf("release replied %v, want %d parked and %s called", r, n, note(i+1))
		}
	}
}

func waitingPair(b *testing.B, m *Lock, n int) func(i int) {
	body := func(i int) string {
		return "channel.3600000." + strconv.Itoa(i) + "|owner|default/job-" + strconv.Itoa(i)
	}
	now := serverNow(b, m)
	ask := func(i, stay int) []any { return []any{body(i), m.keepArg, stay} }
	runPart[int64](b, m, wire.AskScript, ask(0, 0)...)
	fabricate(b, m, n, func(i int) []redis.Z {
		return []redis.Z{
			{Score: 2e15 + float64(now.UnixMicro()) - 1.6e15 - float64(n) + float64(i), Member: "e:" + body(i+1)},
			{Score: -float64(now.Add(time.Hour).UnixMilli()), Member: "d:" + body(i+1)},
		}
	})
	return func(i int) {
		r := runPart[[]any](b, m, wire.AskScript, ask(i+n+1, 3_600_000)...)
		if r[2] != int64(n) {
			b.Fatalf("place %v, want %d", r[2], n)
		}
		// The one that is granted has asked of late; the others need not, for none is looked at.
		redistest.Must(b, raw(m).ZAdd(b.Context(), m.Key(), redis.Z{Score: -float64(time.Now().Add(turn.EntryLifetime).UnixMilli()), Member: "d:" + body(i+1)}).Err())
		if r := runPart[[]any](b, m, wire.ReleaseScript, body(i), 1); r[0] != int64(0) {
			b.Fatalf("%d free, want the next one granted", r[0])
		}
	}
}
