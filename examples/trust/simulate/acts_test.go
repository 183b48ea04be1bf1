package simulate

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// skips is the client of an operator who skips heads, and whom faults may hit. Process -2 has it.
const skips = "skip"

// operator is what an operator's command or page has.
type operator struct {
	rdb       *redis.Client
	locker    *lock.Locker
	inspector *asynq.Inspector
}

func newOperator(e *endpoint) operator {
	rdb := e.client()
	return operator{rdb, lock.New(rdb, lock.Options{Owner: "operator", Logger: slog.New(slog.DiscardHandler)}), asynq.NewInspectorFromRedisClient(rdb)}
}

func (o operator) close() {
	_ = o.locker.Close()
	_ = o.rdb.Close()
}

// hit is a fault at a step of the protocol.
type hit struct {
	step string
	kind faultKind
}

// hit notes a fault that begins with that command.
func (s *redisServer) hit(command []string, kind faultKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hits[hit{stepOf(command), kind}]++
}

// scriptNames are by hash and by source.
var scriptNames = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for _, script := range engine.Scripts {
		names[script.SHA], names[script.Source] = script.Name, script.Name
	}
	return names
})

// stepOf is the script that a command runs, with its act if it is order_act; empty: none of the library's.
func stepOf(command []string) string {
	if len(command) < 4 || !strings.HasPrefix(command[0], "EVAL") {
		return ""
	}
	name := scriptNames()[command[1]]
	if n, _ := strconv.Atoi(command[2]); name == "order_act" && len(command) > n+5 { // behind the keys: limit, inbound, act
		name += " " + command[n+5]
	}
	return name
}

// orderedSteps are all steps of the protocol of ordered keys.
var orderedSteps = []string{
	"order_stamp", "order_ask", "order_release", "inspect",
	"order_act none", "order_act gone", "order_act archived", "order_act left", "order_act present", "order_act confirm", "order_act refused", "order_act skip",
}

// Each kind of fault is put at each step of the protocol of ordered keys, by some scenario, and leaves all promises kept. A third
// of them without AUTOMUTEX_TEST_ALL.
func TestFaults_eachOrderedStep(t *testing.T) {
	t.Parallel()
	found := map[string][]job{} // by step
	for _, p := range orderedScenarios() {
		v := playWatched(t, p)
		for _, client := range p.faultable() {
			for _, step := range v.sent[fmt.Sprintf("%s %d", client.Client, client.Proc)] {
				if slices.Contains(orderedSteps, step) {
					client.Nth, client.Saying = 0, step // its number depends on the order within one instant
					found[step] = append(found[step], job{p, []faultPlan{client}})
				}
			}
		}
	}
	for _, jobs := range found { // with one server it is known which one sends it
		slices.SortStableFunc(jobs, func(a, b job) int { return len(a.plan.Procs) - len(b.plan.Procs) })
	}
	type task struct {
		step string
		kind faultPlan
	}
	var tasks []task
	for s, step := range orderedSteps {
		if len(found[step]) == 0 {
			t.Errorf("no scenario sends %q where a fault can hit it", step)
			continue
		}
		for i, kind := range kinds {
			if redistest.All() || i%3 == s%3 { // each kind at four steps
				tasks = append(tasks, task{step, kind})
			}
		}
	}
	everyCore(t, len(tasks), func(i int) {
		step, kind := tasks[i].step, tasks[i].kind
		const tries = 10
		for try := range tries {
			j := found[step][try*len(found[step])/tries]
			p := j.plan.clone()
			f := j.faults[0]
			f.Kind, f.For = kind.Kind, kind.For
			p.Faults = append(p.Faults, f)
			v := playWatched(t, p)
			if len(v.violations) > 0 {
				t.Errorf("%s, with %s: %s", p.Name, describe([]faultPlan{f}), strings.Join(v.violations, "\n"))
			}
			if v.hits[hit{step, kind.Kind}] > 0 {
				return
			}
		}
		t.Errorf("no fault of kind %q hits %q", kind.Kind, step)
	})
}
