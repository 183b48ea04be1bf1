package simulate

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// started is when the program was.
var started = time.Now()

// figures are those of one world, or of many.
type figures struct {
	worlds   int
	virtual  time.Duration // how long servers ran
	commands int
	faults   int
	tasks    int
	runs     int
}

// totals are the figures of a run.
type totals struct {
	mu sync.Mutex
	figures
	failed []string
}

func (s *totals) add(v verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worlds++
	s.virtual += v.virtual
	s.commands += v.commands
	s.runs += v.runs
	s.tasks += v.tasks
	s.faults += v.faults
}

// fails notes a failure, and gives how many there are.
func (s *totals) fails(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, what)
	return len(s.failed)
}

func (s *totals) log(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: %d worlds, %.2f days of virtual time, %d commands, %d faults, %d tasks, %d runs of handlers; these fail: %s",
		what, s.worlds, s.virtual.Hours()/24, s.commands, s.faults, s.tasks, s.runs, s.failed)
}

// everyCore runs f for 0 to n-1 on all cores, or for as many as can be begun within the
// time that -within gives; then it logs how many are left out. The bubbles are independent of each other.
func everyCore(t *testing.T, n int, f func(int)) {
	t.Helper()
	ends := started.Add(*within)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && (*within == 0 || time.Now().Before(ends)); i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
	if begun := min(int(next.Load()), n); *within > 0 && time.Now().After(ends) {
		t.Logf("-within has ended: at least %d of %d were not begun", n-begun, n)
	}
}

// Worlds drawn at random keep all promises.
func TestWorlds(t *testing.T) {
	t.Parallel()
	n := *worlds
	if *seedFlag != 0 {
		n = *repeat
	}
	var sum totals
	everyCore(t, n, func(i int) {
		seed := *first + uint64(i)
		if *seedFlag != 0 {
			seed = *seedFlag // the same again
		}
		p := draw(seed)
		if *onlyOrder && !p.isOrdered() {
			return
		}
		start := time.Now()
		v := play(t, p)
		sum.add(v)
		if *verbose {
			fmt.Printf("seed %d: %s of virtual time, %d commands, %d runs, %s: %q\n", seed, v.virtual.Round(time.Second), v.commands, v.runs, time.Since(start).Round(time.Millisecond), v.violations)
		}
		if len(v.violations) == 0 {
			return
		}
		if sum.fails(fmt.Sprint(seed)) > 5 {
			t.Errorf("seed %d: %s", seed, v.violations[0])
			return
		}
		inOrder := map[bool]string{true: " -in-order"}[*onlyOrder]
		t.Errorf("seed %d fails; again with: go test ./examples/trust/simulate -run Worlds%s -seed %d -repeat 20 -trace\n%s\n%s%s",
			seed, inOrder, seed, strings.Join(v.violations, "\n"), p, v.told())
	})
	sum.log(t, "worlds")
}
