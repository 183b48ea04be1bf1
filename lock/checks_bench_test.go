//go:build unix

package lock

import (
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// BenchmarkParkedKeys is what many keys with parked work cost a process that does
// nothing else, without Redis: their holders end 5 s from each look, so that there
// is more to look after than the budget allows. Then all of it is gone.
//
//	go test -run '^$' -bench ParkedKeys -benchtime 1x ./lock
func BenchmarkParkedKeys(b *testing.B) {
	for _, keys := range []int{20_000, 100_000} {
		b.Run(strconv.Itoa(keys), func(b *testing.B) {
			for range b.N {
				parkedCost(b, keys)
			}
		})
	}
}

func parkedCost(b *testing.B, keys int) {
	b.Helper()
	before := heapBytes()
	l, f := parkedKeys(b, keys, 5*time.Second)
	b.ReportMetric(float64(heapBytes()-before)/float64(keys), "B/key")
	watch := func(phase string) {
		looked, spent, began, goroutines := f.looks.Load(), cpuTime(b), time.Now(), 0
		for time.Since(began) < 10*time.Second {
			time.Sleep(10 * time.Millisecond)
			goroutines = max(goroutines, runtime.NumGoroutine())
		}
		took := time.Since(began).Seconds()
		b.ReportMetric((cpuTime(b)-spent).Seconds()/took*100, "%core-"+phase)
		b.ReportMetric(float64(f.looks.Load()-looked)/took, "looks/s-"+phase)
		b.ReportMetric(float64(goroutines), "goroutines-"+phase)
	}
	watch("parked")
	f.says(int64(1))
	watch("gone")
	b.ReportMetric(float64(l.parking.LineCount.Load()), "lines-left")
	_ = l.Close()
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
