package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// J: how well servers keep a rate together, and use it up.
var ratesScenario = scenario{
	name:  "J",
	title: "asynq: one rate for ten servers",
	about: "Ten servers of 16 workers, in one process, have more tasks pending than the rate of their one key lets them start: 100 a second, of which 10 may come at once. " +
		"Tasks do nothing. The share is that of all starts which the rate allows from the first start on; the busiest second is the most starts within any time of 1 s, as the handlers see them; " +
		"110 may be granted. " +
		"In vain is how often a task was taken out of its queue without a start, for each start. TaskCheckInterval is 50 ms, DelayedTaskCheckInterval 1 s. " +
		"redis_rate is in a middleware by hand: a task that comes too early goes back for the time that the limiter says, as no failure; or it sleeps that long in its worker, and asks again.",
	metrics: []metric{{"share", "share of the rate", 3}, {"busiest", "starts in the busiest second", 0}, {"vain", "in vain per start", 2}},
	points: func(b *bench) []point {
		n := sized(b, ratesLength, 3)
		return []point{{label: fmt.Sprintf("%d s", n), n: n}}
	},
	entries: func(p point) []string {
		entries := []string{guardedBy + "Wait", guardedBy + "Park", rateLimiter + waitsFor}
		if p.n == ratesLength {
			entries = append(entries, guardedBy+"Retry", rateLimiter+returns) // with whom the first seconds say nothing
		}
		return entries
	},
	takes: (ratesLength + 2) * time.Second,
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		var got ratesResult
		b.alone(ctx, job{
			Do: "rates", Contender: entry, Conf: conf{Addr: b.server.addr, N: rateWorkers}, N: rateServers, Time: time.Duration(p.n) * time.Second,
		}, nil, &got)
		return values{
			"share": float64(got.Starts) / (rateBurst + rateStarts*float64(p.n)), "busiest": float64(got.Busiest),
			"vain": float64(got.Runs-got.Starts) / float64(max(1, got.Starts)),
		}, nil
	},
}

const (
	rateLimiter = "redis_rate"
	rateServers = 10
	rateWorkers = 16
	rateStarts  = 100 // a second
	rateBurst   = 10
	ratesLength = 60 // seconds
)

type ratesResult struct {
	Starts, Runs int // within Time from the first start
	Busiest      int
}

// ratesDuty runs N asynq servers on one rated key, for Time from the first start.
func ratesDuty(ctx context.Context, m *mate) {
	tasks := rateBurst + int(m.Time.Seconds()*rateStarts*6/5)
	wares := make([]ware, tasks)
	for i := range wares {
		wares[i] = ware{Key: hotKey}
	}
	enqueue(ctx, asynq.NewClientFromRedisClient(connect(m.Conf)), wares)
	var f ratedWork
	f.first = make(chan struct{})
	servers := make([]*asynq.Server, 0, m.N)
	handlers := make([]asynq.Handler, 0, m.N)
	for range m.N {
		s := ratedOutfit(m.Contender, m.Conf, asynq.Config{
			Concurrency: m.Conf.N, TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: goesBack, Logger: redistest.Silent{},
		}, asynq.HandlerFunc(f.work))
		servers = append(servers, asynq.NewServerFromRedisClient(connect(m.Conf), s.config))
		handlers = append(handlers, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			f.runs.Add(1)
			return s.handler.ProcessTask(ctx, t)
		}))
	}
	m.ready()
	for i, server := range servers {
		must(server.Start(handlers[i]))
	}
	select {
	case <-f.first:
	case <-time.After(tasksPatience):
		panic(errors.New("bench: no task has started"))
	}
	time.Sleep(m.Time)
	m.tell(f.result(m.Time))
	m.stay() // nothing is left to shut down for: the server is cleared next
}

// ratedOutfit has a rate around a handler.
func ratedOutfit(entry string, c conf, config asynq.Config, work asynq.Handler) *shop {
	switch entry {
	case rateLimiter + returns:
		return limited(c, config, work, false)
	case rateLimiter + waitsFor:
		return limited(c, config, work, true)
	}
	return guardedWith(automutex.Rule{
		Rate: automutex.Rate{Starts: rateStarts, Per: time.Second, Burst: rateBurst}, Limit: rateServers * rateWorkers,
	}, entry, c, config, work)
}

// tooEarly is what a middleware by hand returns for a task that the limiter refused.
type tooEarly struct{ retryAfter time.Duration }

func (tooEarly) Error() string { return "bench: the limiter refused" }

// limited is a middleware by hand around redis_rate.
func limited(c conf, config asynq.Config, work asynq.Handler, wait bool) *shop {
	limiter := redis_rate.NewLimiter(connect(c))
	limit := redis_rate.Limit{Rate: rateStarts, Burst: rateBurst, Period: time.Second}
	config.IsFailure = func(err error) bool { return !errors.As(err, new(tooEarly)) }
	config.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if early := (tooEarly{}); errors.As(err, &early) {
			return early.retryAfter
		}
		return asynq.DefaultRetryDelayFunc(n, err, t)
	}
	return &shop{asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		for {
			got, err := limiter.Allow(ctx, hotKey, limit)
			switch {
			case err != nil:
				return err
			case got.Allowed > 0:
				return work.ProcessTask(ctx, t)
			case !wait:
				return tooEarly{got.RetryAfter}
			}
			select {
			case <-time.After(got.RetryAfter):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}), config}
}

// ratedWork counts starts.
type ratedWork struct {
	runs  atomic.Int64
	first chan struct{} // closed with the first start

	mu     sync.Mutex // guards starts
	starts []time.Time
}

func (f *ratedWork) work(context.Context, *asynq.Task) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.starts = append(f.starts, time.Now()); len(f.starts) == 1 {
		close(f.first)
	}
	return nil
}

func (f *ratedWork) result(length time.Duration) ratesResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := ratesResult{Runs: int(f.runs.Load())}
	r.Busiest = busiest(f.starts)
	for _, at := range f.starts {
		if at.Sub(f.starts[0]) < length {
			r.Starts++
		}
	}
	return r
}

// busiest sorts times, and counts the most within a second.
func busiest(times []time.Time) (most int) {
	slices.SortFunc(times, time.Time.Compare)
	from := 0
	for i, at := range times {
		for at.Sub(times[from]) >= time.Second {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}
