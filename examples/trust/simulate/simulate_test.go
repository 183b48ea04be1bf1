package simulate

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
)

var (
	worlds = flag.Int("worlds", 12, "how many worlds are drawn")
	// so a change that breaks one is known by it
	first     = flag.Uint64("first", 1, "the seed of the first world; the others follow it")
	within    = flag.Duration("within", 0, "how long worlds and faults are begun; 0: without end")
	seedFlag  = flag.Uint64("seed", 0, "play the world of this seed, and no other")
	repeat    = flag.Int("repeat", 1, "how often a world of -seed is played")
	onlyOrder = flag.Bool("in-order", false, "draw worlds with tasks in order, and play only those")
	oneIn     = flag.Int("one-in", 0, "of each fault at each command of each scenario, one in so many is put; 1: all; "+
		"0: 151 if all tests run, else none. Odd, or some never are")
	verbose = flag.Bool("trace", false, "print what happened in worlds that fail, step by step")
)

func TestMain(m *testing.M) {
	// each script takes a new Lua state: collected at the usual pace, that takes two fifths of the time
	debug.SetGCPercent(1000)
	logging.Disable() // what go-redis has to say, its callers are told too
	redistest.Main(m)
}

var started = time.Now()

type figures struct {
	worlds   int
	virtual  time.Duration // how long servers ran
	commands int
	faults   int
	tasks    int
	runs     int
}

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

func (s *totals) fails(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, what)
	return len(s.failed)
}

func (s *totals) log(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: %d worlds, %.2f days of virtual time, %d commands, %d faults, %d tasks, %d runs of handlers; these "+
		"fail: %s",
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
			fmt.Printf("seed %d: %s of virtual time, %d commands, %d runs, %s: %q\n", seed, v.virtual.Round(sec),
				v.commands, v.runs, time.Since(start).Round(ms), v.violations)
		}
		if len(v.violations) == 0 {
			return
		}
		if sum.fails(fmt.Sprint(seed)) > 5 {
			t.Errorf("seed %d: %s", seed, v.violations[0])
			return
		}
		inOrder := map[bool]string{true: " -in-order"}[*onlyOrder]
		t.Errorf("seed %d fails; again with: go test ./examples/trust/simulate -run Worlds -args%s -seed %d -repeat 20 "+
			"-trace\n%s\n%s%s",
			seed, inOrder, seed, strings.Join(v.violations, "\n"), p, v.told())
	})
	sum.log(t, "worlds")
}

// kinds are the faults that are put at each command, with how long they last.
var kinds = []faultPlan{
	{Kind: refused}, {Kind: replyLost}, {Kind: swallowed}, {Kind: late, For: 8 * sec}, {Kind: noScript},
	{Kind: noPerm}, {Kind: cut},
	{Kind: hung, For: 4 * sec}, {Kind: loading, For: 2500 * ms}, {Kind: readOnly, For: 2500 * ms},
	{Kind: wrapped, For: 2500 * ms},
	{Kind: misconf, For: 2500 * ms}, {Kind: outOfMemory, For: 20 * sec}, {Kind: setup, For: 9 * sec},
	{Kind: apart, For: 4 * sec}, {Kind: frozen, For: 4 * sec},
}

// firstOfAsynq is how many of asynq's commands a fault is put at, in scenarios about order: those that
// come later look for tasks, again and again.
const firstOfAsynq = 60

// faultsOf plays a scenario once to count its commands, and gives each kind of fault at each of them.
func faultsOf(t *testing.T, p *plan) (faults []faultPlan) {
	t.Helper()
	v := play(t, p)
	for _, text := range v.violations {
		t.Errorf("%s, without a fault: %s%s", p.Name, text, v.told())
	}
	for _, client := range p.faultable() {
		count := v.counts[fmt.Sprintf("%s %d", client.Client, client.Proc)]
		if client.Client == "asynq" && client.Proc >= 0 {
			count = min(count, firstOfAsynq)
		}
		for nth := range count {
			for _, f := range kinds {
				f.Proc, f.Client, f.Nth = client.Proc, client.Client, nth+1
				faults = append(faults, f)
			}
		}
	}
	return faults
}

func (p *plan) faultable() []faultPlan {
	clients := []faultPlan{{Proc: 0, Client: "lock"}}
	if p.isOrdered() {
		clients = append(clients, faultPlan{Proc: 0, Client: "asynq"})
	}
	if len(p.Unique) > 0 || p.isOrdered() || p.Clients {
		clients = append(clients, faultPlan{Proc: -1, Client: "lock"}, faultPlan{Proc: -1, Client: "asynq"})
	}
	if slices.ContainsFunc(p.Ops, func(op opPlan) bool { return op.Kind == "skip" }) {
		clients = append(clients, faultPlan{Proc: -2, Client: skips})
	}
	return clients
}

// Each kind of fault, at each command of each scenario, leaves all promises kept.
func TestFaults(t *testing.T) {
	if *oneIn == 0 {
		redistest.Long(t)
		*oneIn = 151
	}
	t.Parallel()
	var sum totals
	all := scenarios()
	for i, p := range all {
		t.Run(p.Name, func(t *testing.T) {
			var some [][]faultPlan
			for k, f := range faultsOf(t, &p) {
				if k%*oneIn == i*13%*oneIn {
					some = append(some, []faultPlan{f})
				}
			}
			playWith(t, &p, some, &sum)
		})
	}
	sum.log(t, fmt.Sprintf("a fault at a command of %d scenarios, %d kinds", len(all), len(kinds)))
}

// Scenarios that are about a fault already keep all promises.
func TestScenarios(t *testing.T) {
	t.Parallel()
	var sum totals
	for _, p := range slices.Concat(mistakeScenarios(), faultScenarios(), backlogScenarios(200), lendScenarios(80)) {
		t.Run(p.Name, func(t *testing.T) { playWith(t, &p, [][]faultPlan{nil}, &sum) })
	}
	sum.log(t, "scenarios about a fault")
}

func playWith(t *testing.T, scenario *plan, faults [][]faultPlan, sum *totals) {
	t.Helper()
	var mu sync.Mutex
	failures := map[string]int{} // by kind of violation
	everyCore(t, len(faults), func(i int) {
		p := scenario.clone()
		p.Faults = append(p.Faults, faults[i]...)
		v := play(t, p)
		sum.add(v)
		if len(v.violations) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		kind := strings.Join(v.kinds(), ", ")
		const most = 3
		if failures[kind]++; failures[kind] <= most {
			t.Errorf("%s, with %+v: %s%s", p.Name, faults[i], strings.Join(v.violations, "\n"), v.told())
		}
	})
	for kind, n := range failures {
		t.Errorf("%d of %d fail: %s", n, len(faults), kind)
		sum.fails(scenario.Name)
	}
}

var plantedFlag = flag.Bool("planted", false, "build the library with each planted defect, and find it")

// planted is a defect that the library once had, in a file of testdata/planted. It is put back by changing text, each
// part of which is there exactly once, and the simulation has to find it. What is found is the kind of a violation.
type planted struct {
	name, about, finds string
	run                []string   // the test that finds it, and its flags
	edits              [][]string // file, before and after
}

func readPlanted(t *testing.T, file string) *planted {
	t.Helper()
	b, err := os.ReadFile(file)
	redistest.Must(t, err)
	p := &planted{name: strings.TrimSuffix(filepath.Base(file), ".txt")}
	head := regexp.MustCompile(`^about: (.+)\nrun: (.+)\nfinds: (.+)\n-- file `).FindStringSubmatch(string(b))
	edits := regexp.MustCompile(`(?s)-- file (\S+) --\n-- before --\n(.*?)\n-- after --\n(.*?)\n-- end --\n`).FindAllStringSubmatch(string(b), -1)
	if head == nil || len(edits) != strings.Count(string(b), "-- file ") {
		t.Fatalf("%s is not: about, run and finds, and parts with -- file NAME --, -- before --, -- after -- and -- end --",
			file)
	}
	p.about, p.run, p.finds = head[1], strings.Fields(head[2]), head[3]
	for _, e := range edits {
		p.edits = append(p.edits, e[1:])
	}
	return p
}

// overlay writes the changed files to dir, and gives the file for go's -overlay.
func (p *planted) overlay(t *testing.T, dir string) string {
	t.Helper()
	changed := map[string]string{} // by the place of the source
	for _, e := range p.edits {
		file, before, after := e[0], e[1], e[2]
		source, err := filepath.Abs(filepath.Join("..", "..", "..", filepath.FromSlash(file)))
		redistest.Must(t, err)
		text, seen := changed[source]
		if !seen {
			src, err := os.ReadFile(source)
			redistest.Must(t, err)
			text = string(src)
		}
		if n := strings.Count(text, before); n != 1 {
			t.Fatalf("%s cannot be planted: the text is %d times in %s, not once: name the place where it is "+
				"decided now:\n%s", p.name, n, file, before)
		}
		changed[source] = strings.Replace(text, before, after, 1)
	}
	replace := map[string]string{}
	for source, text := range changed {
		edited := filepath.Join(dir, strings.Repeat("x", len(replace)+1)+filepath.Base(source))
		redistest.Must(t, os.WriteFile(edited, []byte(text), 0o600))
		replace[source] = edited
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	redistest.Must(t, err)
	file := filepath.Join(dir, "overlay.json")
	redistest.Must(t, os.WriteFile(file, b, 0o600))
	return file
}

// Each defect that was mended is found when it is put back. Without -planted it is only checked that each can be.
func TestPlanted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "planted", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no planted defects: %v", err)
	}
	for _, file := range files {
		p := readPlanted(t, file)
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			overlay := p.overlay(t, dir)
			if !*plantedFlag {
				return
			}
			goTool, err := exec.LookPath("go")
			if err != nil {
				t.Skipf("the library cannot be built with a defect: %v", err)
			}
			binary := filepath.Join(dir, "simulate.test")
			if out, err := exec.CommandContext(t.Context(), goTool, "test", "-c", "-overlay", overlay, "-o", binary,
				".").CombinedOutput(); err != nil {
				t.Fatalf("building with the defect: %v\n%s", err, out)
			}
			args := append([]string{"-test.timeout", "30m", "-test.run"}, p.run...)
			cmd := exec.CommandContext(t.Context(), binary, args...)
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			out, err := cmd.CombinedOutput()
			line := strings.TrimSpace(regexp.MustCompile(`(?m)^.*\b` + regexp.QuoteMeta(p.finds) +
				`: .*$`).FindString(string(out)))
			if err == nil || line == "" {
				t.Fatalf("the simulation does not find it: %s (%v)\n%s", p.about, err, out)
			}
			t.Logf("| %s | %s | %s |", p.about, strings.Join(p.run, " "), line)
		})
	}
}
