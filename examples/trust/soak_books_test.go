package trust

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// soakBooks say of every task that was enqueued what became of it.
type soakBooks struct {
	steps []soakStep

	mu       sync.Mutex // guards what follows, until the producers and the operator are through
	accepted map[int]soakStay
	unsure   map[int]bool      // Enqueue failed: it may be there
	rejected map[int]time.Time // when it was said that another one is in the way
	refused  map[string]int
	operator map[int]map[string]bool // deeds
}

// soakStay is when Enqueue was called and when it returned.
type soakStay struct{ called, returned time.Time }

func newSoakBooks(steps []soakStep) *soakBooks {
	return &soakBooks{
		steps: steps, accepted: map[int]soakStay{}, unsure: map[int]bool{}, refused: map[string]int{}, rejected: map[int]time.Time{},
		operator: map[int]map[string]bool{},
	}
}

func (b *soakBooks) accept(n int, called time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accepted[n] = soakStay{called, time.Now()}
}

func (b *soakBooks) refuse(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[why]++
}

func (b *soakBooks) reject(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rejected[n] = time.Now()
}

func (b *soakBooks) doubt(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsure[n] = true
}

func (b *soakBooks) operated(n int, deed string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.operator[n] == nil {
		b.operator[n] = map[string]bool{}
	}
	b.operator[n][deed] = true
}

// soakEvidence is what there is at the end: what the workers have noted, and
// what asynq has.
type soakEvidence struct {
	noted    map[string]map[int]bool // by what became of a task
	archived map[int]string          // last errors
	queued   map[int]asynq.TaskState
	lost     int64 // runs whose lease ended
	burned   bool  // asynq may have lost sight of tasks: workers were killed, or it was cut off from Redis
}

// soakBalance is the result: how many tasks had which fate, and what must not be.
type soakBalance struct {
	fates    map[string]int
	problems []string
}

func (s *soakBalance) wrongf(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// balance finds the one fate of each task.
func (b *soakBooks) balance(e soakEvidence) soakBalance {
	b.mu.Lock()
	defer b.mu.Unlock()
	result := soakBalance{fates: map[string]int{}}
	var open []int // those that a newer one must have taken the place of
	known := map[string][]int{}
	enqueued := map[string][]int{} // those whose Enqueue returned or may have succeeded, whatever became of them
	for n := range b.steps {
		_, accepted := b.accepted[n]
		if accepted || b.unsure[n] {
			enqueued[b.entity(n)] = append(enqueued[b.entity(n)], n)
		}
		fate := b.fate(n, e, &result)
		switch {
		case fate == "" && !accepted:
			continue
		case fate != "" && !accepted && !b.unsure[n]:
			result.wrongf("task %d was not enqueued, and is %s", n, fate)
		case fate == "":
			open = append(open, n)
			continue
		}
		result.fates[fate]++
		known[b.entity(n)] = append(known[b.entity(n)], n)
	}
	for _, n := range open {
		// One that was enqueued beside it or after it, and was not superseded itself.
		newer := func(m int) bool { return b.unsure[m] || b.accepted[m].returned.After(b.accepted[n].called) }
		if soakKindOf(b.steps[n].Kind).supersedes() && slices.ContainsFunc(known[b.entity(n)], newer) {
			result.fates["superseded"]++
			if e.noted[began][n] {
				result.wrongf("task %d had begun, and a newer one took its place: %+v", n, b.steps[n])
			}
			continue
		}
		result.fates["lost"]++
		result.wrongf("task %d is lost, which the operator %v: %+v", n, slices.Collect(maps.Keys(b.operator[n])), b.steps[n])
	}
	for n := range e.noted[robbed] {
		result.wrongf("task %d was handed back, and an attempt was spent for it: %+v", n, b.steps[n])
	}
	for n, at := range b.rejected {
		before := func(m int) bool {
			return b.unsure[m] || b.accepted[m].called.Before(at)
		}
		if !slices.ContainsFunc(enqueued[b.entity(n)], before) {
			result.wrongf("task %d was refused for another one that nobody has enqueued: %+v", n, b.steps[n])
		}
	}
	if len(b.unsure)*100 > len(b.steps) {
		result.wrongf("%d of %d calls of Enqueue failed: %v", len(b.unsure), len(b.steps), b.refused)
	}
	b.replacedForSomeone(e, &result)
	return result
}

func (b *soakBooks) entity(n int) string { return b.steps[n].Kind + " " + b.steps[n].ID }

// fate is what became of a task, "" if nobody knows. That it was done counts
// before all else: asynq delivers at least once, so that it may have been skipped
// or archived besides.
func (b *soakBooks) fate(n int, e soakEvidence, result *soakBalance) string {
	step := b.steps[n]
	kind := soakKindOf(step.Kind)
	policy := kind.policy()
	reason, archived := e.archived[n]
	state, queued := e.queued[n]
	is := func(what string) bool { return e.noted[what][n] }
	// fits has a fate that the plan does not allow for told.
	fits := func(fate string, may bool) string {
		if !may {
			result.wrongf("task %d is %s, which is not for %+v", n, fate, step)
		}
		return fate
	}
	switch {
	case is(done):
		return fits("done", step.Do != "always" && step.Do != "skip" && step.Do != "revoke" && step.Do != "bad")
	case archived:
		return b.archived(n, reason, e, result)
	case queued:
		return fits("still queued", step.Do == "later" && state == asynq.TaskStateScheduled)
	case b.operator[n]["deleted"]:
		return "deleted by the operator"
	case is(skipped):
		return fits("skipped", policy == automutex.Skip || step.After == "nothing")
	case is(replaced) && !kind.supersedes(): // by package unique: see superseded
		return fits("replaced", policy == automutex.Replace)
	case is(dropped):
		return fits("dropped by AfterFailure", step.After == "nothing")
	case is(revoked):
		return fits("revoked by its handler", step.Do == "revoke")
	case is(final) && kind.once != nil:
		return fits("archived, and gone for a newer one", step.Do == "skip" || step.Do == "always")
	}
	return ""
}

// archived says why a task is in the archive.
func (b *soakBooks) archived(n int, reason string, e soakEvidence, result *soakBalance) string {
	step := b.steps[n]
	policy := soakKindOf(step.Kind).policy()
	fails := step.Fails > 0 || step.Do == "always" || step.Do == "skip"
	for _, known := range []struct {
		fate string
		is   bool
		may  bool
	}{
		{"archived by the operator", b.operator[n]["archived"], true},
		{"archived without a key", strings.HasPrefix(reason, "automutex: no key for task"), step.Do == "bad" && e.noted[unkeyed][n]},
		{"archived as busy", strings.HasPrefix(reason, "automutex: rule") && strings.Contains(reason, "is busy"),
			policy == automutex.Archive || policy == automutex.Fail},
		{"archived by AfterFailure", strings.Contains(reason, errSoakAfter.Error()), step.After == "skip" || step.After == "fail"},
		{"archived for its handler", strings.Contains(reason, errSoakFails.Error()) || strings.Contains(reason, "soak: the handler panics"), fails},
		{"archived for its timeout", strings.Contains(reason, "context deadline exceeded"), step.Do == "timeout" || step.Do == "ignore"},
		{"archived for a lost lease", strings.HasSuffix(reason, lock.ErrLost.Error()), e.lost > 0 && step.Do == "last"},
		{"archived by asynq's recoverer", reason == asynq.ErrLeaseExpired.Error(), e.burned},
	} {
		if !known.is {
			continue
		}
		if !known.may {
			result.wrongf("task %d is %s, which is not for %+v: %s", n, known.fate, step, reason)
		}
		return known.fate
	}
	result.wrongf("task %d is archived, and nobody knows why: %q, %+v", n, reason, step)
	return "archived"
}

// replacedForSomeone: whoever was replaced was so for another task of its key,
// which was not. One that the operator took away counts as well.
func (b *soakBooks) replacedForSomeone(e soakEvidence, result *soakBalance) {
	stays := map[string]bool{}
	for n, step := range b.steps {
		if step.Kind == "turn:newest" && (!e.noted[replaced][n] || e.noted[done][n]) {
			if _, accepted := b.accepted[n]; accepted {
				stays[b.entity(n)] = true
			}
		}
	}
	for n := range e.noted[replaced] {
		if !soakKindOf(b.steps[n].Kind).supersedes() && !stays[b.entity(n)] {
			result.wrongf("task %d was replaced, and all others of %s were too", n, b.entity(n))
		}
	}
}

// evidence collects what the ledger and asynq's lists have.
func (w *soakWorld) evidence() soakEvidence {
	w.t.Helper()
	e := soakEvidence{
		noted: map[string]map[int]bool{}, archived: map[int]string{}, queued: map[int]asynq.TaskState{},
		lost: w.ledger.lost(), burned: w.killed.Load()+w.unheard.Load() > 0,
	}
	for _, what := range []string{done, skipped, replaced, dropped, revoked, final, unkeyed, began, robbed} {
		e.noted[what] = w.ledger.numbers(w.t, what)
	}
	i := w.inspector
	lists := []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		i.ListPendingTasks, i.ListActiveTasks, i.ListScheduledTasks, i.ListRetryTasks, i.ListArchivedTasks,
	}
	const full = 10_000 // what asynq keeps in an archive at most
	for _, q := range append(soakQueues, soakOnceQueue) {
		for _, list := range lists {
			infos, err := list(q, asynq.PageSize(2*full))
			if err != nil {
				w.t.Fatal(err)
			}
			for _, info := range infos {
				var task soakTask
				if err := json.Unmarshal(info.Payload, &task); err != nil {
					w.t.Fatal(err)
				}
				if info.State == asynq.TaskStateArchived {
					e.archived[task.N] = info.LastErr
				} else {
					e.queued[task.N] = info.State
				}
			}
			if len(infos) >= full && infos[0].State == asynq.TaskStateArchived {
				w.t.Errorf("the archive of %s is full: asynq has dropped tasks from it", q)
			}
		}
	}
	return e
}

// print gives the fates, the most frequent first.
func (s *soakBalance) print() (lines []string) {
	fates := slices.SortedFunc(maps.Keys(s.fates), func(a, b string) int { return s.fates[b] - s.fates[a] })
	for _, fate := range fates {
		lines = append(lines, fmt.Sprintf("%s %d", fate, s.fates[fate]))
	}
	return lines
}

// report fails the test for everything that is wrong, and tells of some of it.
func (s *soakBalance) report(t *testing.T) {
	t.Helper()
	for i, problem := range s.problems {
		if i == 20 {
			t.Errorf("... and %d more", len(s.problems)-i)
			return
		}
		t.Error(problem)
	}
}
