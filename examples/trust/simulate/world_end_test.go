package simulate

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// drainWithin bounds how long tasks may take to end once nothing is wrong any more.
const drainWithin = 3 * time.Hour

// drain ends all faults, and waits until no task is left that is to be run.
func (w *world) drain() {
	w.redis.heal()
	w.book.notef("all faults are over")
	w.book.quietSince = time.Now()
	_ = w.inspector.UnpauseQueue(queue) // not paused
	w.endControls()
	alive := false
	for n := range w.plan.Procs {
		alive = alive || !w.process(n).isEnded() && w.process(n).isStopping().IsZero()
	}
	if !alive {
		p := w.process(0)
		if !p.isEnded() {
			<-p.dead
		}
		w.restart(0)
	}
	began := time.Now()
	looked := !w.plan.isOrdered()
	for pause := 200 * ms; ; pause = min(pause+pause/5, 20*time.Second) {
		left := w.left()
		ended := w.endHolds()
		if len(left) == 0 && !ended {
			if looked {
				return
			}
			time.Sleep(10 * time.Second) // a Guard looks for the last task, and may find it archived
			looked = true
			continue
		}
		looked = looked && !ended
		w.judgeIdleOrder(left)
		if time.Since(began) > drainWithin {
			w.book.violationf("stuck: %s after everything was well: %s", drainWithin, strings.Join(left, ", "))
			return
		}
		time.Sleep(pause)
	}
}

// left are the tasks that asynq is to run, and those that a handler works on.
func (w *world) left() (left []string) {
	m := w.redis.mini
	base := "asynq:{" + queue + "}:"
	for _, list := range []string{"pending", "active"} {
		ids, _ := m.List(base + list) // no such key: none
		for _, id := range ids {
			left = append(left, list+" "+id)
		}
	}
	for _, set := range []string{"scheduled", "retry"} {
		ids, _ := m.ZMembers(base + set) // no such key: none
		for _, id := range ids {
			left = append(left, set+" "+id)
		}
	}
	return slices.Concat(left, w.inGroups(), w.book.working())
}

// end stops everything, and judges what is left.
func (w *world) end() verdict {
	w.book.judgeIdle()
	virtual := w.book.at()
	var stopping sync.WaitGroup
	for _, p := range w.all {
		if !p.isEnded() {
			stopping.Go(p.stop)
		}
	}
	stopping.Wait()
	for _, p := range w.all {
		<-p.gone
	}
	w.book.judgeEnds()
	w.book.judgeBalance()
	w.skipper.close()
	_ = w.operatorLocker.Close() // it would read the controls for the hours that judgeKeys waits
	w.judgeKeys()
	for _, c := range append(w.producerRedis[:], w.operatorRedis) {
		_ = c.Close()
	}
	w.redis.mini.Close()
	time.Sleep(time.Minute)
	synctest.Wait()
	for _, stack := range others() {
		w.book.violationf("goroutine: left when all is closed: %s", stack)
	}
	v := verdict{
		violations: w.book.violations, trace: w.book.trace, virtual: virtual, commands: w.redis.executed,
		runs: len(w.book.runs), tasks: len(w.plan.Tasks), faults: w.redis.faults, counts: map[string]int{},
	}
	for _, e := range w.redis.ends {
		client := fmt.Sprintf("%s %d", e.kind, e.proc)
		v.counts[client] = max(v.counts[client], e.count) // a process that is started again begins anew
	}
	return v
}

// stackBuffers are for the stacks of all goroutines.
var stackBuffers = sync.Pool{New: func() any { return make([]byte, 1<<20) }}

// others are the stacks of the bubble's other goroutines, but for those that carry it.
func others() (stacks []string) {
	buf := stackBuffers.Get().([]byte)
	defer stackBuffers.Put(buf) //nolint:staticcheck // a slice of it is not worth a pointer
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	_, bubble, _ := strings.Cut(all[0], "synctest bubble ")
	bubble, _, _ = strings.Cut(bubble, "]")
	for _, stack := range all[1:] {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.HasSuffix(head, "synctest bubble "+bubble+"]:") &&
			!strings.Contains(stack, "synctest.Run(") && !strings.Contains(stack, "testingSynctestTest(") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
