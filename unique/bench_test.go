package unique

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
)

// BenchmarkEnqueue measures enqueues of tasks that have no duplicate, beside
// asynq.Client.Enqueue with asynq.Unique, in turns of a hundred in one run:
// ratios are comparable, rates are those of the machine. One operation is one
// enqueue by each; the figures are of the median turn.
//
//	go test -run '^$' -bench Enqueue -benchtime 20000x -count 5 ./unique
func BenchmarkEnqueue(b *testing.B) {
	for _, producers := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d producers", producers), func(b *testing.B) { benchEnqueue(b, producers) })
	}
}

func benchEnqueue(b *testing.B, producers int) {
	s := redistest.StartReal(b)
	rdb := s.Client(b)
	plain := asynq.NewClientFromRedisClient(rdb)
	once, err := New(plain, asynq.NewInspectorFromRedisClient(rdb), rdb, Config{Rules: []Rule{
		{Task: "done", Queue: "done", On: []string{"user.id"}},
		{Task: "start", Queue: "start", On: []string{"user.id"}, Until: UntilStart},
		{Task: "window", Queue: "window", On: []string{"user.id"}, Until: For(time.Hour)},
	}})
	redistest.Must(b, err)
	contestants := []struct {
		name    string
		enqueue func(*asynq.Task) error
	}{
		{"asynq.Unique", func(t *asynq.Task) error {
			_, err := plain.Enqueue(t, asynq.Queue("unique"), asynq.Unique(time.Hour))
			return err
		}},
		{"done", func(t *asynq.Task) error { _, err := once.Enqueue(t); return err }},
		{"start", func(t *asynq.Task) error { _, err := once.Enqueue(t); return err }},
		{"window", func(t *asynq.Task) error { _, err := once.Enqueue(t); return err }},
	}
	var next atomic.Int64
	round := func(i, n int) time.Duration {
		c := contestants[i]
		tasks := make([]*asynq.Task, n)
		for k := range tasks {
			id := strconv.FormatInt(next.Add(1), 10)
			tasks[k] = asynq.NewTask(c.name, []byte(`{"kind":"invoice","user":{"id":`+id+`,"name":"Ada Lovelace"},"items":[{"sku":"a-1","n":2},{"sku":"b-7","n":1}]}`))
		}
		began := time.Now()
		var wg sync.WaitGroup
		for share := range slices.Chunk(tasks, (n+producers-1)/producers) {
			redistest.Go(&wg, func() {
				for _, t := range share {
					if err := c.enqueue(t); err != nil {
						b.Errorf("%s: %v", c.name, err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	for i := range contestants {
		round(i, 50) // connections, scripts
	}
	const turn = 100
	took := make([][]time.Duration, len(contestants))
	b.ResetTimer()
	for done := 0; done < b.N; done += turn {
		for k := range contestants { // each of them first in its turn
			i := (k + done/turn) % len(contestants)
			took[i] = append(took[i], round(i, turn))
		}
	}
	b.StopTimer()
	for i, c := range contestants {
		slices.Sort(took[i]) // the median turn: others use the machine too
		median := took[i][len(took[i])/2]
		b.ReportMetric(turn/median.Seconds(), c.name+"/s")
		if i > 0 {
			b.ReportMetric(took[0][len(took[0])/2].Seconds()/median.Seconds(), c.name+"/Unique")
		}
	}
}
