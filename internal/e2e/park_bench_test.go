package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The figures of Park, on a real Redis of the benchmark's own:
//
//	go test -run '^$' -bench Park -benchtime 1x -count 5 ./internal/e2e

// yard is an asynq server for one benchmark.
type yard struct {
	b      *testing.B
	redis  *redistest.Server
	guard  *automutex.Guard
	cfg    automutex.Config
	server *asynq.Server
	client *asynq.Client
	runs   atomic.Int64 // entries of the middleware: one for each time a task is taken out
	done   chan ran
}

// ran is one run of a job.
type ran struct {
	key          string
	began, ended time.Time
}

// job is the payload of a task: what it is keyed on and how long it takes.
type job struct {
	Key  string
	Work time.Duration
}

func openYard(b *testing.B, s *redistest.Server, busy automutex.Policy, concurrency int, check time.Duration) *yard {
	b.Helper()
	var rules []automutex.Rule
	if busy != automutex.Allow {
		rules = []automutex.Rule{{Task: "hot", On: []string{"Key"}, Busy: busy}}
	}
	return openYardWith(b, s, automutex.Config{Rules: rules, Prefix: redistest.Name(b), Logger: slog.New(slog.DiscardHandler)}, concurrency, check)
}

func openYardWith(b *testing.B, s *redistest.Server, cfg automutex.Config, concurrency int, check time.Duration) *yard {
	b.Helper()
	y := &yard{b: b, redis: s, cfg: cfg, done: make(chan ran, 20_000)}
	rdb := s.Client(b)
	var err error
	y.guard, err = automutex.New(rdb, cfg)
	redistest.Must(b, err)
	y.client = asynq.NewClientFromRedisClient(rdb)
	y.server = asynq.NewServerFromRedisClient(rdb, y.guard.ServerConfig(asynq.Config{
		Concurrency: concurrency, TaskCheckInterval: check, Logger: redistest.Silent{}, ShutdownTimeout: time.Second,
	}))
	return y
}

// start runs the server until the benchmark's round ends.
func (y *yard) start() (stop func()) {
	guarded := y.guard.Middleware(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		began := time.Now()
		var j job
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return err
		}
		time.Sleep(j.Work) // the work
		y.done <- ran{j.Key, began, time.Now()}
		return nil
	}))
	err := y.server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		y.runs.Add(1)
		return guarded.ProcessTask(ctx, t)
	}))
	if err != nil {
		y.b.Fatal(err)
	}
	return func() {
		var wg sync.WaitGroup
		redistest.Go(&wg, func() { _ = y.guard.Close(context.Background()) })
		y.server.Shutdown()
		wg.Wait()
	}
}

func (y *yard) enqueue(jobs ...job) {
	y.b.Helper()
	for _, j := range jobs {
		kind := "hot"
		if j.Key == "" {
			kind = "free"
		}
		payload, err := json.Marshal(j)
		if err != nil {
			y.b.Fatal(err)
		}
		if _, err := y.client.Enqueue(asynq.NewTask(kind, payload), asynq.MaxRetry(5)); err != nil {
			y.b.Fatal(err)
		}
	}
}

// drained waits for n runs, and gives them in the order in which they began.
func (y *yard) drained(n int) []ran {
	y.b.Helper()
	runs := make([]ran, n)
	for i := range runs {
		select {
		case runs[i] = <-y.done:
		case <-time.After(5 * time.Minute):
			y.b.Fatalf("%d of %d ran", i, n)
		}
	}
	slices.SortFunc(runs, func(a, b ran) int { return a.began.Compare(b.began) })
	return runs
}

func repeat(n int, key string, work time.Duration) []job {
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = job{key, work}
	}
	return jobs
}

func shuffled(jobs []job) []job {
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
	return jobs
}

// quantile sorts values.
func quantile(values []time.Duration, q float64) time.Duration {
	slices.Sort(values)
	return values[int(q*float64(len(values)-1))]
}

func reportMS(b *testing.B, d time.Duration, unit string) {
	b.ReportMetric(float64(d.Microseconds())/1000, unit)
}

// From the release to the start of the one task that wants the key: in its
// worker while others are free, and truly parked.
func BenchmarkPark_wake(b *testing.B) {
	for _, c := range []struct {
		name    string
		busy    automutex.Policy
		workers int
		check   time.Duration
		pause   time.Duration // random, so that the server's sleep has come any far
		rounds  int
	}{
		{"in-its-worker", automutex.Park, 10, 50 * time.Millisecond, time.Millisecond, 200},
		{"parked/50ms", automutex.Park, 1, 50 * time.Millisecond, 50 * time.Millisecond, 100},
		{"parked/1s", automutex.Park, 1, time.Second, time.Second, 15},
		{"retry/50ms", automutex.Retry, 1, 50 * time.Millisecond, 50 * time.Millisecond, 4},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := redistest.StartReal(b)
			for b.Loop() {
				y := openYard(b, s, c.busy, c.workers, c.check)
				holder := newHolder(b, s.Client(b), y.cfg, "hot")
				stop := y.start()
				var waits []time.Duration
				for i := range c.rounds {
					key := fmt.Sprintf("k%d", i)
					held := holder.take(key)
					runs := y.runs.Load()
					y.enqueue(job{key, 0})
					redistest.Eventually(b, time.Minute, func() bool { return y.runs.Load() > runs }, "a run")
					// Until it waits, or is filed, and the server has gone to sleep.
					time.Sleep(20*time.Millisecond + rand.N(c.pause))
					released := time.Now()
					redistest.Must(b, held.Unlock(b.Context()))
					waits = append(waits, y.drained(1)[0].began.Sub(released))
				}
				reportMS(b, quantile(waits, 0.5), "p50-ms")
				reportMS(b, quantile(waits, 0.95), "p95-ms")
				stop()
			}
		})
	}
}

// 200 tasks of 20 ms on one key among 2,000 of 2 ms on 200 others.
func BenchmarkPark_hotAmongCold(b *testing.B) {
	const hot, cold = 200, 2000
	s := redistest.StartReal(b)
	cold200 := func() (jobs []job) {
		for i := range cold {
			jobs = append(jobs, job{fmt.Sprintf("cold%d", i%200), 2 * time.Millisecond})
		}
		return jobs
	}
	run := func(jobs []job) (all, others time.Duration, wakes float64) {
		y := openYard(b, s, automutex.Park, 10, 50*time.Millisecond)
		y.enqueue(jobs...)
		began := time.Now()
		stop := y.start()
		for _, r := range y.drained(len(jobs)) {
			all = max(all, r.ended.Sub(began))
			if r.key != "hot" {
				others = max(others, r.ended.Sub(began))
			}
		}
		stop()
		return all, others, float64(y.runs.Load()) / float64(len(jobs))
	}
	for b.Loop() {
		alone, _, _ := run(shuffled(cold200()))
		all, others, wakes := run(shuffled(append(cold200(), repeat(hot, "hot", 20*time.Millisecond)...)))
		b.ReportMetric(all.Seconds()/(hot*0.020), "of-ideal")
		b.ReportMetric(others.Seconds()/alone.Seconds(), "others/alone")
		b.ReportMetric(wakes, "wakes/run")
	}
}

// 10,000 tasks of 1 ms on 20 keys, beside the same without locks.
func BenchmarkPark_hotKeys(b *testing.B) {
	const n, keys = 10_000, 20
	s := redistest.StartReal(b)
	run := func(busy automutex.Policy) (time.Duration, float64) {
		y := openYard(b, s, busy, 16, 50*time.Millisecond)
		var jobs []job
		for i := range n {
			jobs = append(jobs, job{fmt.Sprintf("k%d", i%keys), time.Millisecond})
		}
		y.enqueue(shuffled(jobs)...)
		began := time.Now()
		stop := y.start()
		y.drained(n)
		took := time.Since(began)
		stop()
		return took, float64(y.runs.Load()) / n
	}
	for b.Loop() {
		free, _ := run(automutex.Allow)
		park, wakes := run(automutex.Park)
		b.ReportMetric(park.Seconds()/free.Seconds(), "of-no-locks")
		b.ReportMetric(n/park.Seconds(), "tasks/s")
		b.ReportMetric(wakes, "wakes/run")
	}
}

// Many parked on one key, 1 ms of work each.
func BenchmarkPark_drain(b *testing.B) {
	for _, check := range []time.Duration{50 * time.Millisecond, time.Second} {
		for _, n := range []int{1000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", check, n), func(b *testing.B) {
				s := redistest.StartReal(b)
				for b.Loop() {
					y := openYard(b, s, automutex.Park, 10, check)
					held := newHolder(b, s.Client(b), y.cfg, "hot").take("k")
					y.enqueue(repeat(n, "k", time.Millisecond)...)
					stop := y.start()
					redistest.Eventually(b, time.Minute, func() bool { return y.runs.Load() == int64(n) }, "all tried")
					time.Sleep(2 * time.Second) // for the server to file them and go to sleep
					began := time.Now()
					redistest.Must(b, held.Unlock(b.Context()))
					runs := y.drained(n)
					gap := time.Duration(0)
					for i := 1; i < n; i++ {
						gap = max(gap, runs[i].began.Sub(runs[i-1].began))
					}
					b.ReportMetric(float64(n)/time.Since(began).Seconds(), "tasks/s")
					b.ReportMetric(float64(y.runs.Load()-int64(n))/float64(n), "wakes/run")
					b.ReportMetric(gap.Seconds()/check.Seconds(), "longest-gap/check")
					stop()
				}
			})
		}
	}
}
