package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// H: what a take and a release cost Redis when there is much of something.
var growthScenario = scenario{
	name:  "H",
	title: "Redis' own time for a take and a release, with much held, waiting or parked",
	about: "Held: so many other keys are held. Waiting: so many stand in line behind two goroutines that hand the key to each other; parked: so many are parked on it, and called as they are due. " +
		"Only automutex has a line, so only it is asked for those. Those in line are entries written by hand: what a real waiter asks again each second, to keep its place, is not in it. " +
		"The ratio is to the first point of the same kind.",
	metrics: []metric{{"redis", "Redis µs/pair", 1}},
	points: func(b *bench) []point {
		var points []point
		for _, kind := range []string{"held", "waiting", "parked"} {
			kinds := counts(kind, sized(b, []int{1, 100, 10_000, 100_000}, []int{1, 1000})...)
			for _, p := range kinds {
				points = append(points, point{label: p.label, n: p.n, load: kind, base: kinds[0].label})
			}
		}
		return points
	},
	entries: func(p point) []string {
		if p.load == "held" {
			return namesOf(ours[:1], raws[:1], redislocks[:1])
		}
		return namesOf(ours[:1])
	},
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		c := contenderNamed(entry)
		var pairs float64
		spent := b.alone(ctx, job{
			Do: "grow", Contender: entry, Conf: conf{Addr: b.server.addr, N: 16, TTL: time.Hour}, Load: p.load, N: p.n,
			Time: sized(b, 500*time.Millisecond, 100*time.Millisecond),
		}, c.sends, &pairs)
		return values{"redis": microseconds(spent.busy) / max(1, pairs)}, nil
	},
}

// growDuty takes and releases beside N of what Load says, for Time, and tells
// how often.
func growDuty(ctx context.Context, m *mate) {
	l := m.open()
	var pass func()
	switch m.Load {
	case "held":
		for i := range m.N {
			get(own(ctx, l.handle("held:"+strconv.Itoa(i))))
		}
		h := l.handle("room:1")
		pass = func() { must(get(h.try(ctx)).release(ctx)) }
	case "waiting", "parked":
		pass = passing(ctx, m)
	default:
		panic(fmt.Errorf("bench: there is no load %q", m.Load))
	}
	pass() // scripts and subscription are there from now on
	m.ready()
	n := 0
	for began := time.Now(); time.Since(began) < m.Time; n++ {
		pass()
	}
	m.tell(n)
	m.stay() // the keys go with the server's next clear
}

// passing makes a lock with N in line, or parked, and a function that hands it
// from its holder to one who waits.
func passing(ctx context.Context, m *mate) func() {
	rdb := connect(m.Conf)
	coming := func(context.Context, string, string) inside.Fate { return inside.FateComing }
	l := inner.New(rdb, lock.Options{}, coming, nil)
	key := l.Mutex("room:1")
	holds := get(key.TryLock(ctx))
	type outcome struct {
		lease *lock.Lease
		err   error
	}
	pass := func() {
		inLine := make(chan struct{})
		got := make(chan outcome, 1)
		// Ends with the release below, which hands it the lock.
		go func() {
			lease, err := l.Mutex("room:1", inner.OnWait(func() { close(inLine) })).Lock(ctx)
			got <- outcome{lease, err}
		}()
		select {
		case <-inLine:
		case o := <-got:
			panic(errors.Join(o.err, errors.New("bench: got a lock that was held")))
		}
		must(holds.Unlock(ctx))
		o := <-got
		must(o.err)
		holds = o.lease
	}
	if m.Load == "parked" {
		park(ctx, lock.New(rdb, lock.Options{}), m.N)
		return pass
	}
	// A lock that nobody waits for is a string. The first hand-over makes it what a line
	// can be written into.
	pass()
	queueUp(ctx, rdb, key.Key(), m.N)
	return pass
}

// park parks n notes on the lock.
func park(ctx context.Context, l *lock.Locker, n int) {
	now := make(chan struct{})
	close(now)
	for i := range n {
		_, err := inner.LockOrPark(ctx, l.Mutex("room:1", lock.Note("task:"+strconv.Itoa(i))), now)
		var busy *lock.BusyError
		if !errors.As(err, &busy) || !busy.Parked {
			panic(fmt.Errorf("bench: parking: %w", err))
		}
	}
}

// queueUp writes n waiters into the line that stay there for an hour: so many
// goroutines would spend the server's time on keeping their places. Their tickets
// are of the days to come, so that the two who are measured stand before them.
func queueUp(ctx context.Context, rdb *redis.Client, key string, n int) {
	now := time.Now()
	ticket := 2e15 + float64(now.UnixMicro()) - 1.6e15 + float64((24 * time.Hour).Microseconds())
	stale := -float64(now.Add(time.Hour).UnixMilli())
	for i := 0; i < n; i += 1000 {
		var members []redis.Z
		for k := i; k < min(n, i+1000); k++ {
			body := fmt.Sprintf("AAAAAAAAAAAAAAAA.3000.%x|bench|", k)
			members = append(members,
				redis.Z{Member: "e:" + body, Score: ticket + float64(k)},
				redis.Z{Member: "d:" + body, Score: stale})
		}
		must(rdb.ZAdd(ctx, key, members...).Err())
	}
	must(rdb.Expire(ctx, key, 2*time.Hour).Err())
}
