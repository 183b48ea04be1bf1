package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A: keys that nobody else wants, taken and released as fast as it goes.
var pairsScenario = scenario{
	name:  "A",
	title: "Uncontended: take and release, pairs a second",
	about: "Each goroutine takes and releases a key of its own. Redis' own time is what its commandstats say, without reading and writing; " +
		"client CPU and allocations are those of the whole process. Nobody else wants a key, so a try in vain is one that the client gave up too early. " +
		"Two PINGs are a floor for who has a connection for each goroutine, not for who shares one.",
	metrics: []metric{
		{"rate", "pairs/s", 0}, {"redis", "Redis µs/pair", 1}, {"cpu", "client CPU µs/pair", 1}, {"allocs", "allocations/pair", 0}, {"bytes", "bytes/pair", 0},
		{"missed", "tries in vain/1,000", 1},
	},
	refs: []string{"raw SET NX PX, default", "two PINGs"},
	points: func(b *bench) []point {
		return counts("goroutines", sized(b, []int{1, 16, 64, 256}, []int{1, 64})...)
	},
	entries: func(p point) []string {
		entries := namesOf(floors[:1], ours, raws, rawNatives, redislocks, redsyncs, rueidislocks, semaphores[:1])
		return slices.DeleteFunc(entries, func(name string) bool {
			c := contenderNamed(name)
			// How to wait makes no difference here; with one goroutine there is
			// nothing to gather in a pipeline.
			return slices.Contains([]string{"tuned polling", "tuned backoff", "tuned delay"}, c.setting) ||
				p.n == 1 && slices.Contains([]string{"auto-pipeline", "auto-pipeline, full duplex"}, c.setting)
		})
	},
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		c := contenderNamed(entry)
		if !b.server.has(ctx, c.needs) {
			return nil, errNotHere
		}
		var got pairsResult
		spent := b.alone(ctx, job{
			Do: "pairs", Contender: entry, Conf: conf{Addr: b.server.addr, N: p.n},
			N: p.n, Time: sized(b, 700*time.Millisecond, 100*time.Millisecond),
		}, c.sends, &got)
		pairs := float64(got.Pairs)
		return values{
			"rate": pairs / got.Took.Seconds(), "redis": microseconds(spent.busy) / pairs, "cpu": microseconds(got.CPU) / pairs,
			"allocs": float64(got.Mallocs) / pairs, "bytes": float64(got.Bytes) / pairs,
			"missed": 1000 * float64(got.Missed) / pairs,
		}, nil
	},
}

type pairsResult struct {
	Pairs, Missed  int64
	Took, CPU      time.Duration
	Mallocs, Bytes uint64
}

// pairsDuty takes and releases N keys on N goroutines, for Time.
func pairsDuty(ctx context.Context, m *mate) {
	l := m.open()
	handles := make([]handle, m.N)
	for i := range handles {
		handles[i] = l.handle("room:" + strconv.Itoa(i))
	}
	// Connections are made and scripts known before anything counts.
	get(pairs(ctx, handles, 20*time.Millisecond))
	m.ready()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpuBefore := get(cpuTime())
	result := get(pairs(ctx, handles, m.Time))
	result.CPU = get(cpuTime()) - cpuBefore
	runtime.ReadMemStats(&after)
	result.Mallocs, result.Bytes = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	m.tell(result)
	m.stay()
	must(l.close())
}

func pairs(ctx context.Context, handles []handle, length time.Duration) (pairsResult, error) {
	var wg sync.WaitGroup
	var over atomic.Bool
	done := make([]int64, len(handles)) // each goroutine writes its own
	errs := make([]error, len(handles))
	missed := make([]int64, len(handles))
	began := time.Now()
	timer := time.AfterFunc(length, func() { over.Store(true) })
	defer timer.Stop()
	for i, h := range handles {
		wg.Go(func() {
			for first := true; first || !over.Load(); first = false { // also on a machine that is late
				got, err := h.try(ctx)
				if errors.Is(err, errBusy) {
					// Nobody else wants it: the client gave up too early.
					missed[i]++
					continue
				}
				if err == nil {
					err = got.release(ctx)
				}
				if err != nil {
					errs[i] = err
					return
				}
				done[i]++
			}
		})
	}
	wg.Wait()
	r := pairsResult{Took: time.Since(began)}
	for i := range handles {
		r.Pairs += done[i]
		r.Missed += missed[i]
	}
	if r.Pairs == 0 && errors.Join(errs...) == nil {
		return r, fmt.Errorf("bench: not a single pair in %s", length)
	}
	return r, errors.Join(errs...)
}
