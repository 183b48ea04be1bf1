//go:build unix

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis' own; errors reach us anyway
	redistest.Main(m)
}

// gauge is what Redis and this process have spent so far; times in microseconds.
type gauge struct{ calls, busy, cpu, own float64 }

func read(b *testing.B, s *redistest.Server, sends []string) (g gauge) {
	info, err := s.Client(b).InfoMap(context.Background(), "commandstats", "cpu").Result()
	redistest.Must(b, err)
	for _, command := range sends {
		var calls, us float64
		_, _ = fmt.Sscanf(info["Commandstats"]["cmdstat_"+command], "calls=%f,usec=%f", &calls, &us) // absent: never sent
		g.calls, g.busy = g.calls+calls, g.busy+us
	}
	for _, part := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		s, err := strconv.ParseFloat(info["CPU"][part], 64)
		redistest.Must(b, err)
		g.cpu += s * 1e6
	}
	var used syscall.Rusage
	redistest.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	g.own = float64(used.Utime.Nano()+used.Stime.Nano()) / 1e3
	return g
}

// spent reports what b.N operations have cost between two looks.
func spent(b *testing.B, before, after gauge) {
	n := float64(b.N)
	b.ReportMetric((after.busy-before.busy)/n, "redis-us/op")
	b.ReportMetric((after.calls-before.calls)/n, "redis-cmds/op")
	b.ReportMetric((after.cpu-before.cpu)/n, "redis-cpu-us/op")
	b.ReportMetric((after.own-before.own)/n, "cpu-us/op")
}

// measure reports what f costs, which does b.N operations.
func measure(b *testing.B, s *redistest.Server, sends []string, f func()) {
	b.ReportAllocs()
	before := read(b, s, sends)
	b.ResetTimer()
	f()
	b.StopTimer()
	spent(b, before, read(b, s, sends))
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// setsUp are commands that a client or a library sends once, for a connection or a start.
var setsUp = []string{"hello", "client", "subscribe", "unsubscribe", "script", "psubscribe", "cluster", "del", "monitor"}

// Each contender excludes, waits, says that it is busy, and sends nothing that is not counted: else its figures would
// be those of something else.
func TestContenders(t *testing.T) {
	t.Parallel()
	for _, c := range contenders {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t)
			watch, err := net.Dial("tcp", s.Addr())
			redistest.Must(t, err)
			defer watch.Close()
			_, err = watch.Write([]byte("MONITOR\r\n"))
			redistest.Must(t, err)
			lines := bufio.NewScanner(watch)
			lines.Scan() // OK: what comes is seen

			open := c.open(t, s.Addr(), 1)
			var inside atomic.Int64
			var wg sync.WaitGroup
			beside := open(key)
			for _, take := range []take{open(key), open(key), open(key)} {
				wg.Go(func() {
					for range 5 {
						err := context.DeadlineExceeded
						for errors.Is(err, context.DeadlineExceeded) { // a waiter of rueidislock may not be woken
							brief, cancel := context.WithTimeout(t.Context(), 5*time.Second)
							err = take(brief, true, func() {
								if inside.Add(1) != 1 {
									t.Error("two hold it")
								}
								if c.name != "blpop" { // which only waits
									if err := beside(t.Context(), false, nothing); !errors.Is(err, errBusy) {
										t.Errorf("a try beside the holder: %v, want busy", err)
									}
								}
								inside.Add(-1)
							})
							cancel()
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()

			redistest.Must(t, s.Client(t).Echo(t.Context(), "the end").Err())
			for lines.Scan() {
				// 1339518083.107412 [0 127.0.0.1:60866] "get" "key"; a script's commands are of [0 lua].
				_, line, _ := strings.Cut(lines.Text(), " [")
				from, line, _ := strings.Cut(line, `] "`)
				name, _, _ := strings.Cut(line, `"`)
				if name = strings.ToLower(name); name == "echo" {
					return
				}
				if !strings.HasSuffix(from, " lua") && !slices.Contains(c.sends, name) && !slices.Contains(setsUp, name) {
					t.Errorf("%q is sent, and not counted", name)
				}
			}
			t.Errorf("MONITOR ended: %v", lines.Err())
		})
	}
}
