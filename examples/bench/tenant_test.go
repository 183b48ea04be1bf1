//go:build unix

package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// crowd is a load of tenants. A tenant is a key, of which limit tasks may be at work at once.
type crowd struct {
	name                    string
	servers, workers, limit int
	held                    []string // keys of which all slots are taken elsewhere
	paused                  string   // such a key that an operator has paused instead
	jobs                    func(n int) []job
	report                  func(b *testing.B, log []begun)
}

// begun is a start of a tenant's task: how long after that of the servers, and after it was enqueued.
type begun struct {
	key        string
	at, waited time.Duration
}

const crowdNames = "none queues automutex automutex-idle raw redislock rueidislock"

// noisy: A has a backlog of n tasks, or what its limit drains in ten seconds; then B enqueues 40, one after the other.
func noisy(servers, limit, ms int) crowd {
	work := time.Duration(ms) * time.Millisecond
	return crowd{fmt.Sprintf("noisy:%d:%d:%s", servers, limit, work), servers, 10, limit, nil, "", func(n int) []job {
		jobs := of("A", min(n, 10*limit*int(time.Second/work)), work)
		for i, gap := range slices.Repeat([]time.Duration{max(50*time.Millisecond, 2*work/time.Duration(limit))}, 40) {
			jobs = append(jobs, job{"B", work, i, 300*time.Millisecond + time.Duration(i)*gap})
		}
		return jobs
	}, func(b *testing.B, log []begun) {
		waits(b, log)
		b.ReportMetric(nth(log, "A", -1).Seconds()*1e3, "A-last-ms")
	}}
}

// sift: n tasks of held keys, then one of B.
func sift(limit int, held ...string) crowd {
	return crowd{fmt.Sprintf("sift:%d:%d", len(held), limit), 1, 10, limit, held, "", func(n int) (jobs []job) {
		for i := range n {
			jobs = append(jobs, job{Key: held[i%len(held)], N: i})
		}
		return append(jobs, job{Key: "B"})
	}, waits}
}

func crowds() []crowd {
	all := []crowd{
		sift(1, "A"), sift(10, "A"), sift(1, strings.Split("0123456789", "")...), noisy(3, 3, 20),
		{"shares", 1, 12, 2, nil, "", backlogs, shares("A", "B", "C")},
		{"shares-one-paused", 1, 12, 2, []string{"C"}, "C", backlogs, shares("A", "B")},
	}
	for _, work := range []int{20, 100, 200} {
		all = append(all, alone(work))
	}
	for _, limit := range []int{1, 3, 5} {
		for _, work := range []int{5, 20, 100, 200} {
			all = append(all, noisy(1, limit, work))
		}
	}
	return all
}

// backlogs: of n tasks A has three parts, B and C one each.
func backlogs(n int) []job {
	const work = 50 * time.Millisecond
	n = max(n/5, 1)
	return slices.Concat(of("A", 3*n, work), of("B", n, work), of("C", n, work))
}

// alone: A has a backlog, and nobody else anything.
func alone(ms int) crowd {
	c := noisy(1, 3, ms)
	c.name, c.jobs = "alone"+strings.TrimPrefix(c.name, "noisy"), func(n int) []job {
		return slices.DeleteFunc(noisy(1, 3, ms).jobs(n), func(j job) bool { return j.Key == "B" })
	}
	c.report = func(b *testing.B, log []begun) { b.ReportMetric(nth(log, "A", -1).Seconds()*1e3, "A-last-ms") }
	return c
}

func of(key string, n int, work time.Duration) (jobs []job) {
	for i := range n {
		jobs = append(jobs, job{Key: key, Work: work, N: i})
	}
	return jobs
}

// BenchmarkTenant has tenants share servers. Queues: a queue for each, of equal weights, and no locks.
func BenchmarkTenant(b *testing.B) {
	s := redistest.StartReal(b, "--maxclients", "5000")
	for _, c := range crowds() {
		row(b, s, c.name, crowdNames, func(b *testing.B, name string) { c.work(b, s, name) })
	}
}

func (c *crowd) work(b *testing.B, s *redistest.Server, name string) {
	jobs, config, left := c.jobs(b.N), asynq.Config{Concurrency: c.workers}, 0
	for _, j := range jobs {
		if !slices.Contains(c.held, j.Key) {
			left++
		}
	}
	y := newYard(b, c.limit, left)
	switch name {
	case "none":
		y.most = 0
	case "queues":
		y.most, config.Queues = 0, map[string]int{}
		for _, j := range jobs {
			config.Queues[j.Key] = 1
		}
	case "automutex-idle":
		y.most = max(c.limit, c.servers*(c.workers-2))
	}
	c.hold(b, s, name)
	var log []begun
	var start time.Time
	y.told = func(j job) {
		now := time.Since(start)
		log = append(log, begun{j.Key, now, now - j.At})
		if slices.Contains(c.held, j.Key) { // nobody takes turns
			y.left.Add(1)
		}
	}
	client := client(b, s, name)
	enqueue := func(j job) {
		queue := "default"
		if config.Queues != nil {
			queue = j.Key
		}
		_, err := client.EnqueueContext(b.Context(), task(b, j), asynq.Queue(queue))
		redistest.Must(b, err)
	}
	later := slices.IndexFunc(append(jobs, job{At: 1}), func(j job) bool { return j.At > 0 })
	for _, j := range jobs[:later] {
		enqueue(j)
	}
	measure(b, s, taskCommands, func() {
		start = time.Now()
		for range c.servers {
			y.serve(s, name, c.limit, config)
		}
		for _, j := range jobs[later:] {
			time.Sleep(j.At - time.Since(start))
			enqueue(j)
		}
		select {
		case <-y.done:
		case <-time.After(time.Minute):
		}
	})
	b.ReportMetric(float64(y.left.Load())/float64(b.N), "left/op")
	b.ReportMetric(float64(y.runs.Load())/float64(b.N), "runs/op")
	y.mu.Lock()
	defer y.mu.Unlock()
	c.report(b, log)
}

// hold takes all slots of the held keys, until the benchmark has ended.
func (c *crowd) hold(b *testing.B, s *redistest.Server, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	held := make(chan bool)
	_, h := guarded(b, s, name, c.limit, asynq.Config{}, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		held <- true
		<-ctx.Done()
		return nil
	}))
	b.Cleanup(cancel)
	if c.paused != "" {
		locks := lock.New(connect(b, s.Addr()), lock.Options{})
		b.Cleanup(func() { _ = locks.Close() })
		redistest.Must(b, locks.Controls().Pause(b.Context(), "job|"+c.paused, time.Time{}, "bench"))
		return
	}
	for _, key := range c.held {
		for slot := range c.limit {
			go func() { _ = h.ProcessTask(ctx, task(b, job{Key: key, N: slot})) }() // ends with cancel
			<-held
		}
	}
}

// waits reports how long B's tasks have waited.
func waits(b *testing.B, log []begun) {
	var all []float64
	for _, one := range log {
		if one.key == "B" {
			all = append(all, one.waited.Seconds()*1e3)
		}
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "B-p50-ms")
	b.ReportMetric(all[len(all)*95/100], "B-p95-ms")
}

// nth is when a tenant's nth task began, or with -1 the last.
func nth(log []begun, key string, n int) (at time.Duration) {
	for _, one := range log {
		if one.key == key && n != 0 {
			at, n = max(at, one.at), n-1
		}
	}
	return at
}

// shares returns a report of when the tenants have begun twenty, and, from then until a tenant has begun its last, the
// least number of starts of one for each start of another in two seconds.
func shares(tenants ...string) func(b *testing.B, log []begun) {
	return func(b *testing.B, log []begun) {
		const window = 2 * time.Second
		from, until, least := time.Duration(0), b.Elapsed(), 1.0
		for _, key := range tenants {
			twenty := nth(log, key, 20)
			from, until = max(from, twenty), min(until, nth(log, key, -1))
			b.ReportMetric(twenty.Seconds()*1e3, key+"-20-ms")
		}
		for ; from+window <= until; from += window / 20 {
			counts := make([]int, len(tenants))
			for _, one := range log {
				if i := slices.Index(tenants, one.key); i >= 0 && one.at >= from && one.at < from+window {
					counts[i]++
				}
			}
			least = min(least, float64(slices.Min(counts))/float64(max(slices.Max(counts), 1)))
		}
		b.ReportMetric(least, "least-share")
	}
}
