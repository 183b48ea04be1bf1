package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

const hold = time.Millisecond // the work of each turn

// B and C: everybody wants the same key, again and again.
var turnsScenario = scenario{
	name:  "B",
	title: "One key, a millisecond of work: hand-offs a second",
	about: "All goroutines want the same key, hold it for a millisecond and ask again. Only a turn that follows on somebody else's is a hand-off: " +
		"who releases and takes again at once lets nobody in. The gap is from the beginning of a release to the start of another holder. " +
		"Jain's index is 1 when everybody had as many turns; with 128 goroutines each has about nine, so that even a fair lottery comes to about 0.9. " +
		"The longest wait is that of the whole time, from the first ask on, and counts those that were still in vain at the end: it is no longer than the second or two that this takes. " +
		"To ask again at once is the worst case for who polls: turns/s, with those that the releaser took again at once, is what such a lock gets done.",
	metrics: turnsMetrics,
	refs:    []string{"BLPOP token"},
	points: func(b *bench) []point {
		return counts("goroutines", sized(b, []int{2, 8, 32, 128}, []int{2, 32})...)
	},
	entries: waiters,
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		return takeTurns(ctx, b, entry, 1, p.n, sized(b, 1500*time.Millisecond, 400*time.Millisecond))
	},
}

var processesScenario = scenario{
	name:    "C",
	title:   "One key, a millisecond of work, several processes",
	about:   "As B, in processes of their own. The longest wait is shown in rounds too: how many turns of everybody fit into it.",
	metrics: append(slices.Clone(turnsMetrics), metric{"rounds", "longest wait, rounds", 2}),
	refs:    []string{"BLPOP token"},
	points: func(b *bench) []point {
		return []point{{label: sized(b, "4 processes of 8", "4 processes of 2"), n: sized(b, 8, 2)}}
	},
	entries: waiters,
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		return takeTurns(ctx, b, entry, 4, p.n, sized(b, 2*time.Second, 500*time.Millisecond))
	},
}

var turnsMetrics = []metric{
	{"rate", "hand-offs/s", 0}, {"turns", "turns/s", 0}, {"gap50", "gap p50 ms", 3}, {"gap99", "gap p99 ms", 3},
	{"commands", "commands/turn", 2}, {"jain", "Jain", 3}, {"longest", "longest wait ms", 0}, {"overlaps", "overlaps", 0},
}

func waiters(point) []string {
	return namesOf(floors[1:], ours[:1], ours[2:], raws[:3], redislocks[:3], redsyncs, rueidislocks, semaphores)
}

// turn is one stay of one goroutine with the key, in ns of the machine's clock. Got
// is 0 when it waited until the end and got nothing.
type turn struct {
	Who                  int
	Asked, Got, Released int64
}

// takeTurns has processes of n goroutines each take turns for so long.
func takeTurns(ctx context.Context, b *bench, entry string, processes, n int, length time.Duration) (values, error) {
	c := contenderNamed(entry)
	const key = "room:1"
	if c.floor {
		must(b.server.rdb.RPush(ctx, key, "token").Err())
	}
	workers := make([]*worker, 0, processes)
	for range processes {
		w := b.hire(ctx, job{Do: "turns", Contender: entry, Conf: conf{Addr: b.server.addr, N: processes * n, Every: tuned(processes*n, hold)}, Key: key, N: n, Time: length})
		defer w.dismiss()
		workers = append(workers, w)
	}
	for _, w := range workers {
		w.begin()
	}
	// What counts lies between two looks at Redis: everybody has asked by the
	// first, and nobody gives up before the second.
	time.Sleep(length / 5)
	before := b.server.used(ctx, c.sends)
	from := time.Now().UnixNano()
	time.Sleep(length * 7 / 10)
	to := time.Now().UnixNano()
	calls := b.server.since(ctx, before, c.sends).calls
	all := make([]turn, 0, len(workers))
	for i, w := range workers {
		var turns []turn
		w.result(&turns)
		for _, t := range turns {
			t.Who += i * n
			all = append(all, t)
		}
	}
	return turnsValues(all, processes*n, from, to, calls)
}

// turnsValues makes figures of the turns that n goroutines had between two moments,
// in which commands were sent.
func turnsValues(all []turn, n int, from, to int64, commands float64) (values, error) {
	slices.SortFunc(all, func(a, b turn) int { return cmp.Compare(a.Got, b.Got) })
	var gaps []time.Duration
	var longest time.Duration
	var last *turn
	overlaps, turns := 0, 0
	each := make([]float64, n)
	for i, t := range all {
		had := t.Got != 0
		until := to // so long by then, at least
		if had {
			until = min(to, t.Got)
		}
		longest = max(longest, time.Duration(until-t.Asked))
		if !had {
			continue
		}
		each[t.Who]++
		before := last
		last = &all[i]
		if t.Got < from || t.Got > to {
			continue
		}
		turns++
		if before == nil || before.Who == t.Who {
			continue
		}
		gap := time.Duration(t.Got - before.Released)
		if gap < 0 {
			overlaps++
		}
		gaps = append(gaps, gap)
	}
	if turns == 0 {
		return nil, fmt.Errorf("bench: nobody had a turn in %s", time.Duration(to-from))
	}
	length := time.Duration(to - from).Seconds()
	v := values{
		"rate": float64(len(gaps)) / length, "turns": float64(turns) / length, "commands": commands / float64(turns),
		"jain": jain(each), "overlaps": float64(overlaps),
		"longest": milliseconds(longest), "rounds": longest.Seconds() * float64(turns) / length / float64(n),
	}
	if len(gaps) > 0 {
		v["gap50"] = milliseconds(quantile(gaps, 0.5))
	}
	if len(gaps) >= 100 { // else there is no such thing
		v["gap99"] = milliseconds(quantile(gaps, 0.99))
	}
	return v, nil
}

// jain is Jain's index of fairness: 1 when all shares are alike, 1/n when one
// has everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// turnsDuty takes turns with a key on N goroutines for Time.
func turnsDuty(ctx context.Context, m *mate) {
	l := m.openWarm(ctx)
	ctx, cancel := context.WithTimeout(ctx, m.Time)
	defer cancel()
	turns := make([][]turn, m.N) // each goroutine writes its own
	errs := make([]error, m.N)
	var wg sync.WaitGroup
	for i := range m.N {
		wg.Go(func() { turns[i], errs[i] = takeTurnsAs(ctx, i, l.handle(m.Key)) })
	}
	wg.Wait()
	must(errors.Join(errs...))
	m.tell(slices.Concat(turns...))
	m.stay()
	must(l.close())
}

// takeTurnsAs is one goroutine's part. A floor does not look at ctx while it
// waits, so its last turns are passed on at once, and not counted.
func takeTurnsAs(ctx context.Context, who int, h handle) ([]turn, error) {
	turns := make([]turn, 0, 1000)
	for {
		asked := time.Now()
		got, err := h.lock(ctx)
		if err != nil {
			if ctx.Err() == nil {
				return nil, err
			}
			turns = append(turns, turn{Who: who, Asked: asked.UnixNano()})
			return turns, nil // the time is over, as it was to be
		}
		began := time.Now()
		if ctx.Err() != nil {
			return turns, got.release(context.WithoutCancel(ctx))
		}
		for left := hold; left > 0; left = hold - time.Since(began) {
			time.Sleep(left)
		}
		released := time.Now()
		if err := got.release(context.WithoutCancel(ctx)); err != nil {
			return nil, err
		}
		turns = append(turns, turn{who, asked.UnixNano(), began.UnixNano(), released.UnixNano()})
	}
}

// warm makes connections and scripts known, with keys of its own.
func warm(ctx context.Context, l locker, n int) {
	if f, ok := l.(*floorLocker); ok {
		must(f.rdb.Ping(ctx).Err()) // a token that nobody has put there would never come
		return
	}
	handles := make([]handle, n)
	for i := range handles {
		handles[i] = l.handle(fmt.Sprintf("warm:%d:%d", os.Getpid(), i))
	}
	get(pairs(ctx, handles, 20*time.Millisecond))
}
