package e2e

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The price of order: 1,000 tasks of one key, 1 ms of work each, with Park and with InOrder, on a real Redis of the
// benchmark's own:
//
//	go test -run '^$' -bench InOrder -benchtime 1x -count 5 ./internal/e2e
func BenchmarkInOrder_oneKey(b *testing.B) {
	const n = 1000
	for _, check := range []time.Duration{50 * time.Millisecond, time.Second} {
		b.Run(check.String(), func(b *testing.B) {
			s := redistest.StartReal(b)
			run := func(inOrder bool) (perSecond, wakes float64) {
				rdb, prefix := s.Client(b), redistest.Name(b)
				cfg := automutex.Config{Rules: []automutex.Rule{{Task: "hot", On: []string{"Key"}, InOrder: inOrder}}, Prefix: prefix, Logger: slog.New(slog.DiscardHandler)}
				y := openYardWith(b, s, cfg, 10, check)
				client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
				redistest.Must(b, err)
				for range n {
					payload, err := json.Marshal(job{"k", time.Millisecond})
					redistest.Must(b, err)
					if _, err := client.Enqueue(asynq.NewTask("hot", payload), asynq.MaxRetry(5)); err != nil {
						b.Fatal(err)
					}
				}
				began := time.Now()
				stop := y.start()
				y.drained(n)
				took := time.Since(began)
				stop()
				return n / took.Seconds(), float64(y.runs.Load())/n - 1
			}
			for b.Loop() {
				park, parkWakes := run(false)
				order, orderWakes := run(true)
				b.ReportMetric(park, "park-tasks/s")
				b.ReportMetric(order, "order-tasks/s")
				b.ReportMetric(order/park, "of-park")
				b.ReportMetric(parkWakes, "park-wakes/run")
				b.ReportMetric(orderWakes, "order-wakes/run")
			}
		})
	}
}
