package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// G: how long a line takes to empty when nobody works.
var drainScenario = scenario{
	name:  "G",
	title: "A line of one-shot waiters drained",
	about: "So many goroutines wait for a key that is held; then it is released, and each takes it and releases it at once. Median of several rounds; " +
		"a round in which somebody still waits after 30 s ends the cell, and is counted in vain.",
	metrics: []metric{{"took", "ms", 2}, {"vain", "rounds in vain", 0}},
	refs:    []string{"BLPOP token"},
	points: func(b *bench) []point {
		return counts("waiters", sized(b, []int{32, 128}, []int{32})...)
	},
	entries: waiters,
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		c := contenderNamed(entry)
		const key = "room:1"
		if c.floor {
			must(b.server.rdb.RPush(ctx, key, "token").Err())
		}
		var got drainResult
		b.alone(ctx, job{
			Do: "drain", Contender: entry, Conf: conf{Addr: b.server.addr, N: p.n + 1, Every: tuned(p.n, shortestHold)},
			Key: key, N: p.n, Time: sized(b, 1500*time.Millisecond, 300*time.Millisecond),
		}, nil, &got)
		if len(got.Took) == 0 {
			return values{"took": milliseconds(patience), "vain": 1}, errUnfinished
		}
		v := values{"took": spreadOf(got.Took).median, "vain": 0}
		if got.InVain {
			v["vain"] = 1
		}
		return v, nil
	},
}

// shortestHold is about how long a key is held that is released at once: a round trip.
const shortestHold = 60 * time.Microsecond

// settled is what N waiters get to ask and stand in line, or to come to their
// own rhythm of polling, before it begins.
const settled = 300 * time.Millisecond

// patience is how long a line may take. (A waiter that is never woken, as can
// happen with some, would wait for ever.)
const patience = 30 * time.Second

type drainResult struct {
	Took   []float64 // ms
	InVain bool      // somebody waited in vain
}

// drainDuty drains lines of N for about Time, and at least once.
func drainDuty(ctx context.Context, m *mate) {
	l := m.openWarm(ctx)
	var r drainResult
	for began := time.Now(); len(r.Took) == 0 || time.Since(began) < m.Time && len(r.Took) < 10; {
		d, err := drain(ctx, l, m.Key, m.N)
		if errors.Is(err, context.DeadlineExceeded) {
			r.InVain = true
			break
		}
		must(err)
		r.Took = append(r.Took, milliseconds(d))
	}
	m.tell(r)
	m.stay()
	must(l.close())
}

func drain(ctx context.Context, l locker, key string, n int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	first, err := l.handle(key).lock(ctx)
	if err != nil {
		return 0, err
	}
	errs := make([]error, n) // each goroutine writes its own
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			got, err := l.handle(key).lock(ctx)
			if err == nil {
				err = got.release(ctx)
			}
			if err != nil {
				errs[i] = fmt.Errorf("waiter %d: %w", i, err)
			}
		})
	}
	time.Sleep(settled)
	began := time.Now()
	must(first.release(ctx))
	wg.Wait()
	return time.Since(began), errors.Join(errs...)
}
