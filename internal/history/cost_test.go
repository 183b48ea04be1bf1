package history

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// What a run costs Redis: docs/redis.md has the figures.
//
//	go test ./internal/history -run '^$' -bench Writer -benchtime 40000x
func BenchmarkWriter(b *testing.B) {
	for _, keep := range []int{50, Most} {
		for _, batch := range []int{1, 100} {
			b.Run(fmt.Sprintf("keep %d, %d in a flush", keep, batch), func(b *testing.B) {
				s := redistest.StartReal(b)
				ctx, rdb := context.Background(), s.Client(b)
				w := New(rdb, "automutex", "worker-7f9c4:4242", keep, slog.New(newCounter()))
				const keys = 20
				rdb.ConfigResetStat(ctx)
				for i := range b.N {
					now := time.Now()
					w.pending = append(w.pending, added{
						fmt.Sprintf("automutex:{report|tenant-%d}", i%keys),
						Run{Task: fmt.Sprintf("default/8a1c2f34-aaaa-bbbb-cccc-%012d", i), Outcome: "done", Came: now.Add(-time.Duration(i%9000) * time.Millisecond), Start: now.Add(-800 * time.Millisecond), End: now},
					})
					if (i+1)%batch == 0 {
						w.flush()
					}
				}
				spent, calls := 0, 0
				for _, m := range regexp.MustCompile(`cmdstat_(?:eval|time):calls=(\d+),usec=(\d+)`).FindAllStringSubmatch(rdb.Info(ctx, "commandstats").Val(), -1) {
					n, _ := strconv.Atoi(m[1]) // digits
					us, _ := strconv.Atoi(m[2])
					calls, spent = calls+n, spent+us
				}
				b.ReportMetric(float64(spent)/float64(b.N), "redis-us/op")
				b.ReportMetric(float64(calls)/float64(b.N), "commands/op")
				stream := streamOf("automutex:{report|tenant-1}")
				b.ReportMetric(float64(rdb.MemoryUsage(ctx, stream, 0).Val())/float64(max(rdb.XLen(ctx, stream).Val(), 1)), "bytes/run")
				b.ReportMetric(float64(rdb.MemoryUsage(ctx, stream, 0).Val()), "bytes/key")
			})
		}
	}
}
