//go:build unix

package web

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	lockkeys "github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// BenchmarkViewers measures what ten viewers cost Redis, by its own account, and this process,
// the viewers included, each in percent of one core: viewers of the live list of 10,000 locks,
// viewers who each have a search of their own, and viewers of one lock each with 40 tasks. Run
// it with -benchtime 1x; it takes two minutes.
func BenchmarkViewers(b *testing.B) {
	const locks, viewers = 10_000, 10
	s := redistest.Real(b)
	prefix := redistest.Name(b)
	locker := lock.New(s.Client(b), lock.Options{Prefix: prefix, Owner: "worker-1:4242"})
	b.Cleanup(func() {
		if err := locker.Close(); err != nil {
			b.Error(err)
		}
	})
	take := func(m *lock.Lock) {
		b.Helper()
		if _, err := m.TryLock(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	for i := range locks {
		take(locker.Mutex("report", lock.Parts(strconv.Itoa(i)), lock.TTL(time.Hour), lock.NoRenew()))
	}
	var list, narrowed, keys []string
	for i := range viewers {
		list = append(list, "view=keys")
		narrowed = append(narrowed, "view=keys&q="+url.QueryEscape("*"+strconv.Itoa(i)))
		name := "busy-" + strconv.Itoa(i)
		for _, id := range enqueued(b, s, 40) {
			take(locker.Semaphore(name, 40, lock.Note("default/"+id), lock.TTL(time.Hour), lock.NoRenew()))
		}
		keys = append(keys, "view=key&key="+url.QueryEscape(lockkeys.Key(prefix, name)))
	}
	for name, views := range map[string][]string{"list": list, "narrowed": narrowed, "key": keys} {
		b.Run(name, func(b *testing.B) { watch(b, s, serve(b, s, Options{Prefix: prefix}), locks+viewers, views) })
	}
}

// enqueued gives the IDs of new tasks of asynq.
func enqueued(b *testing.B, s *redistest.Server, n int) (ids []string) {
	b.Helper()
	client := asynq.NewClientFromRedisClient(s.Client(b))
	inspector := asynq.NewInspectorFromRedisClient(s.Client(b))
	for range n {
		info, err := client.Enqueue(asynq.NewTask("bench", nil), asynq.ProcessIn(time.Hour))
		redistest.Must(b, err)
		b.Cleanup(func() {
			if err := inspector.DeleteTask("default", info.ID); err != nil {
				b.Error(err)
			}
		})
		ids = append(ids, info.ID)
	}
	return ids
}

// watch has a viewer of each view watch for a while, and measures it.
func watch(b *testing.B, s *redistest.Server, v *site, locks int, views []string) {
	const watched = 30 * time.Second
	rdb := s.Client(b)
	for range b.N {
		ctx, cancel := context.WithCancel(context.Background())
		var watching sync.WaitGroup // of the viewers, who end with ctx
		for _, view := range views {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+"/live?"+view, nil)
			redistest.Must(b, err)
			resp, err := v.server.Client().Do(req)
			redistest.Must(b, err)
			watching.Go(func() { _, _ = io.Copy(io.Discard, resp.Body); _ = resp.Body.Close() })
		}
		redistest.Eventually(b, patience, func() bool {
			return strings.Contains(v.get("/keys").body, "<b>"+separated(strconv.Itoa(locks))+"</b>")
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
	redistest.Must(b, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			redistest.Must(b, err)
			used += time.Duration(seconds * float64(time.Second))
		}
	}
	return used
}

// ownCPU is the processor time that this process has used.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	redistest.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
