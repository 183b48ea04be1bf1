package main

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// E: what one lock costs in memory, on both sides.
var footprintScenario = scenario{
	name:  "E",
	title: "What a held lock costs",
	about: "1,000 keys are held (names of seven to eight bytes; owners and tokens as each library has them, and once for automutex those of a task in the middleware). The first column is Redis' MEMORY USAGE of all keys of one lock, the second what used_memory grew by for each, " +
		"the rest is the holder's side. Allocations per pair are those of one goroutine.",
	metrics: []metric{
		{"key", "Redis bytes/lock", 0}, {"used", "used_memory/lock", 0}, {"goroutines", "goroutines/lock", 2},
		{"heap", "process bytes/lock", 0}, {"allocs", "allocations/pair", 0},
	},
	refs:   []string{"raw SET NX PX, default"},
	points: func(*bench) []point { return counts("held", 1000) },
	entries: func(point) []string {
		return namesOf(ours, []*contender{asTasks}, raws[:1], redislocks[:1], redsyncs[:1], rueidislocks, semaphores[:1])
	},
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		v := b.holdMany(ctx, entry, p.n, 0)
		b.server.clear(ctx)
		var got pairsResult
		b.alone(ctx, job{
			Do: "pairs", Contender: entry, Conf: conf{Addr: b.server.addr, N: 1}, N: 1, Time: sized(b, time.Second, 100*time.Millisecond),
		}, nil, &got)
		v["allocs"] = float64(got.Mallocs) / max(1, float64(got.Pairs))
		return v, nil
	},
}

// I: a worker with many leases. Only those are here that renew by themselves,
// and raw, which does nothing at all, to compare with.
var leasesScenario = scenario{
	name:  "I",
	title: "A worker with many held leases",
	about: "All are held by one process, each library with its own default TTL (automutex 30 s, rueidislock 5 s) and with that of automutex. " +
		"CPU is that of the process while it does nothing but renew, for one period of renewal or several, 10 s at least, in percent of a core.",
	metrics: []metric{
		{"heap", "bytes/lease", 0}, {"goroutines", "goroutines/lease", 2}, {"cpu", "% of a core", 2}, {"redis", "Redis % of a core", 2},
	},
	refs:   []string{"automutex, default"},
	points: func(b *bench) []point { return counts("leases", sized(b, 10_000, 1000)) },
	entries: func(point) []string {
		names := namesOf(ours[:1], rueidislocks, raws[:1])
		return append(names, names[1]+slow, names[2]+slow)
	},
	takes: 15 * time.Second,
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		return b.holdMany(ctx, entry, p.n, sized(b, renewals(entry), time.Second)), nil
	},
}

// renewals is how long an entry is looked at: for whole periods of its renewal,
// which is each third of the TTL with automutex and each half with rueidislock.
func renewals(entry string) time.Duration {
	if strings.HasPrefix(entry, "rueidislock") && strings.HasSuffix(entry, slow) {
		return longTTL / 2
	}
	return longTTL / 3 // four times half of rueidislock's 5 s, too
}

// slow marks an entry that gets the TTL of automutex.
const slow = " (TTL 30 s)"

// holdMany has a process hold n keys, and measures it; and how much CPU it takes
// for so long.
func (b *bench) holdMany(ctx context.Context, entry string, n int, length time.Duration) values {
	with := conf{Addr: b.server.addr, N: 16}
	name, isSlow := strings.CutSuffix(entry, slow)
	if isSlow {
		with.TTL = longTTL
	}
	if b.quick {
		with.TTL = 1500 * time.Millisecond // else nothing would be renewed
	}
	c := contenderNamed(name)
	w := b.hire(ctx, job{Do: "leases", Contender: name, Conf: with, N: n, Time: length})
	defer w.dismiss()
	empty := b.server.memory(ctx)
	w.begin()
	var got leasesResult
	w.result(&got)
	v := values{"heap": got.Heap / float64(n), "goroutines": got.Goroutines / float64(n)}
	if length == 0 {
		v["used"], v["key"] = (b.server.memory(ctx)-empty)/float64(n), b.server.keyMemory(ctx, "")/float64(n)
		return v
	}
	before := b.server.used(ctx, c.sends)
	began := time.Now()
	w.result(&got)
	v["cpu"] = 100 * got.CPU.Seconds() / length.Seconds()
	v["redis"] = 100 * b.server.since(ctx, before, c.sends).busy.Seconds() / time.Since(began).Seconds()
	return v
}

// keyMemory is the MEMORY USAGE of all keys that match a pattern; an empty one is everything there is.
func (s *server) keyMemory(ctx context.Context, pattern string) float64 {
	sum := 0.0
	keys := s.rdb.Scan(ctx, 0, pattern, 1000).Iterator()
	for keys.Next(ctx) {
		// 0: all members are looked at, not a few of them.
		sum += float64(get(s.rdb.MemoryUsage(ctx, keys.Val(), 0).Result()))
	}
	must(keys.Err())
	return sum
}

type leasesResult struct {
	Heap, Goroutines float64
	CPU              time.Duration
}

// leasesDuty takes N keys and keeps them. It tells what they cost, and then how
// much CPU Time takes, where that is not 0.
func leasesDuty(ctx context.Context, m *mate) {
	l := m.open()
	const together = 16
	warm(ctx, l, together)
	m.ready()
	had := footprint()
	stays := make([]held, m.N)
	had.Heap += 16 * float64(m.N) // the slice itself
	errs := make([]error, together)
	var wg sync.WaitGroup
	for i := range together {
		wg.Go(func() {
			for k := i; k < m.N && errs[i] == nil; k += together {
				stays[k], errs[i] = own(ctx, l.handle("room:"+strconv.Itoa(k)))
			}
		})
	}
	wg.Wait()
	must(errors.Join(errs...))
	has := footprint()
	m.tell(leasesResult{Heap: has.Heap - had.Heap, Goroutines: has.Goroutines - had.Goroutines})
	if m.Time > 0 {
		before := get(cpuTime())
		time.Sleep(m.Time)
		m.tell(leasesResult{CPU: get(cpuTime()) - before})
	}
	m.stay()
	runtime.KeepAlive(stays) // the keys go with the server's next clear
}

// footprint is what the heap and the stacks have in use.
func footprint() leasesResult {
	runtime.GC()
	runtime.GC() // what had finalizers, or was in pools, goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return leasesResult{Heap: float64(m.HeapAlloc + m.StackInuse), Goroutines: float64(runtime.NumGoroutine())}
}
