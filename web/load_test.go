package web

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// BenchmarkViewers measures what ten viewers of the live list of 10,000 locks cost: Redis by
// its own account, and this process, the viewers included, each in percent of one core. Run it
// with -benchtime 1x; it takes a minute.
func BenchmarkViewers(b *testing.B) {
	const locks, viewers, watched = 10_000, 10, 40 * time.Second
	s := redistest.Real(b)
	rdb, ctx := s.Client(b), context.Background()
	prefix := redistest.Name(b)
	locker := lock.New(rdb, lock.Options{Prefix: prefix, Owner: "worker-1:4242"})
	b.Cleanup(func() {
		if err := locker.Close(); err != nil {
			b.Error(err)
		}
	})
	for i := range locks {
		if _, err := locker.Mutex("report", lock.Parts(strconv.Itoa(i)), lock.TTL(time.Hour), lock.NoRenew()).TryLock(ctx); err != nil {
			b.Fatal(err)
		}
	}
	v := serve(b, s, Options{Prefix: prefix})
	b.ResetTimer()
	for range b.N {
		ctx, cancel := context.WithCancel(ctx)
		var watching sync.WaitGroup // of the viewers, who end with ctx
		for range viewers {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+"/live?view=keys", nil)
			if err != nil {
				b.Fatal(err)
			}
			resp, err := v.server.Client().Do(req)
			if err != nil {
				b.Fatal(err)
			}
			watching.Go(func() { _, _ = io.Copy(io.Discard, resp.Body); _ = resp.Body.Close() })
		}
		redistest.Eventually(b, patience, func() bool {
			return strings.Contains(v.get("/").body, fmt.Sprintf("<b>%d</b>", locks))
		}, "all locks were seen")
		began, redisBefore, ownBefore := time.Now(), redisCPU(b, rdb), ownCPU(b)
		<-time.After(watched) // what is measured is what this time costs
		took := time.Since(began)
		b.ReportMetric(100*float64(redisCPU(b, rdb)-redisBefore)/float64(took), "%redis")
		b.ReportMetric(100*float64(ownCPU(b)-ownBefore)/float64(took), "%process")
		cancel()
		watching.Wait()
	}
}

// redisCPU is the processor time that Redis has used.
func redisCPU(b *testing.B, rdb redis.UniversalClient) (used time.Duration) {
	b.Helper()
	info, err := rdb.Info(context.Background(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			used += time.Duration(seconds * float64(time.Second))
		}
	}
	return used
}

// ownCPU is the processor time that this process has used.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
