package trust

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A process that holds a key is killed. Whoever wants the key has it at the end
// of the lease and not before, and the task of the dead runs again.
func TestProcess_killed(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, taskType := range processTypes {
		t.Run(taskType, func(t *testing.T) {
			t.Parallel()
			row := found(t, "process", "the holder is killed (SIGKILL), the next is a task with "+taskType)
			r := newProcessRig(t, time.Second, 1)
			a := r.start()
			first := r.enqueue(taskType, processTask{ID: processID(0), Hold: true})
			r.await(processBegins, first, a.PID())
			r.kill(a)
			holders, err := r.locker.Mutex(taskType, lock.Parts(processID(0))).Holders(t.Context())
			if err != nil || len(holders) != 1 || holders[0].Owner != strconv.Itoa(a.PID()) {
				t.Errorf("after the kill: held by %+v, %v; want the dead until the end of its lease", holders, err)
			}
			r.let(first)
			r.start()
			second := r.enqueue(taskType, processTask{ID: processID(0)})
			r.await(processEnds, second, 0)
			r.recover(func(pid string) bool { return pid == strconv.Itoa(a.PID()) })
			r.start() // its recoverer finds what the dead had
			r.await(processEnds, first, 0)
			if b := r.balanced(row); b.cut != 1 || b.runs != 3 {
				t.Errorf("%d runs, of which %d were cut off, want 3 and 1", b.runs, b.cut)
			}
		})
	}
}

// A process that holds a key is stopped for longer than its lease. Another one
// has the key meanwhile, not before the lease's end. The stopped one goes on
// while that one is at work: its context ends, and its fence is refused.
func TestProcess_stopped(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, taskType := range processTypes {
		t.Run(taskType, func(t *testing.T) {
			t.Parallel()
			row := found(t, "process", "the holder is stopped (SIGSTOP) for longer than its TTL, then goes on; the next is a task with "+taskType)
			r := newProcessRig(t, time.Second, 1)
			a := r.start()
			first := r.enqueue(taskType, processTask{ID: processID(0), Hold: true})
			r.await(processBegins, first, a.PID())
			r.stop(a)
			b := r.start()
			second := r.enqueue(taskType, processTask{ID: processID(0), Hold: true})
			r.await(processBegins, second, b.PID())
			r.resume(a)
			end := r.await(processEnds, first, a.PID())
			if end.Accepted || !strings.HasPrefix(end.Cause, lock.ErrLost.Error()) {
				t.Errorf("the one that was stopped: its last write was accepted: %v; its context ended with %q, want %q", end.Accepted, end.Cause, lock.ErrLost)
			}
			r.let(first, second)
			if b := r.balanced(row); b.overtaken != 1 || b.told != 1 || b.refused != 1 || b.runs != 3 {
				t.Errorf("books: %+v", b)
			}
		})
	}
}

// A process that waits in line is stopped. It is granted the key and does not
// come for it: that costs the next one the length of a grant. When it goes on it
// does not believe what it was told so long ago.
func TestProcess_stoppedInLine(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	row := found(t, "process", "one that waits in line is stopped and granted the key meanwhile")
	r := newProcessRig(t, 2*time.Second, 1)
	a := r.start()
	first := r.enqueue("wait", processTask{ID: processID(0), Hold: true})
	r.await(processBegins, first, a.PID())
	m := r.locker.Mutex("wait", lock.Parts(processID(0)))
	waiting := func(n int) {
		t.Helper()
		redistest.Eventually(t, time.Minute, func() bool {
			got, err := m.Waiting(t.Context())
			return err == nil && got == n
		}, "%d in line", n)
	}
	b := r.start()
	second := r.enqueue("wait", processTask{ID: processID(0)})
	waiting(1)
	c := r.start()
	third := r.enqueue("wait", processTask{ID: processID(0), Hold: true})
	waiting(2)
	r.stop(b)
	r.let(first)
	began := r.await(processBegins, third, c.PID())
	r.resume(b)
	r.let(third)
	if again := r.await(processBegins, second, 0); again.Fence <= began.Fence {
		t.Errorf("the one that was stopped ran with fence %d, after %d", again.Fence, began.Fence)
	}
	if b := r.balanced(row); b.runs != 3 || b.refused != 0 {
		t.Errorf("books: %+v", b)
	}
}

// let has held tasks come to their ends.
func (r *processRig) let(numbers ...int) {
	r.t.Helper()
	for _, n := range numbers {
		if err := r.rdb.SAdd(r.t.Context(), r.w.let(), n).Err(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// Workers are killed one after the other, every fourth is stopped for two TTLs
// instead, while tasks keep coming. In the end each has run to success, never
// two at once for one key.
func TestProcess_storm(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	var (
		workers = size(6, 20)
		every   = size(400*time.Millisecond, time.Second)
		victims = size(10, 60)
		tasks   = size(180, 6000)
		ids     = size(4, 10) // keys of each type
	)
	row := found(t, "process", fmt.Sprintf("%d workers, one killed or (each fourth) stopped every %s, %d times", workers, every, victims))
	random := rand.New(rand.NewPCG(seed(t), 1))
	r := newProcessRig(t, size(time.Second, 2*time.Second), 4)

	produced := make(chan struct{})
	enqueue := rand.New(rand.NewPCG(random.Uint64(), 2))
	go func() { // ends by itself, within about the time of the storm
		defer close(produced)
		ticker := time.NewTicker(every * time.Duration(victims) / time.Duration(tasks))
		defer ticker.Stop()
		for range tasks {
			r.enqueue(processTypes[enqueue.IntN(len(processTypes))],
				processTask{ID: processID(enqueue.IntN(ids)), Work: time.Duration(20+enqueue.IntN(size(120, 180))) * time.Millisecond})
			<-ticker.C
		}
	}()

	s := &processStorm{r: r, random: random}
	for range workers {
		s.live = append(s.live, r.start())
	}
	ticker := time.NewTicker(every)
	for n := range victims {
		<-ticker.C
		s.strike(n%4 == 2)
	}
	ticker.Stop()
	<-produced
	s.calm()
	b := r.balanced(row)
	row.notef("killed %d", s.killed)
	row.notef("stopped %d", s.stopped)
	if b.cut == 0 && *long { // of a few kills all may hit workers that have nothing to do
		t.Error("no kill hit a run: not what this test is about")
	}
}

// processStorm is the workers of a storm; all of it belongs to the test's
// goroutine.
type processStorm struct {
	r               *processRig
	random          *rand.Rand
	live            []*redistest.Child
	asleep          []processSleeper
	killed, stopped int
}

type processSleeper struct {
	child *redistest.Child
	until time.Time
}

// strike kills one that is awake and puts another in its place, or stops it.
func (s *processStorm) strike(stop bool) {
	s.r.t.Helper()
	s.wake(time.Now())
	i := s.random.IntN(len(s.live))
	victim := s.live[i]
	s.live = append(s.live[:i], s.live[i+1:]...)
	if stop {
		s.r.stop(victim)
		s.asleep = append(s.asleep, processSleeper{victim, time.Now().Add(2 * s.r.w.TTL)})
		s.stopped++
		return
	}
	s.r.kill(victim)
	s.killed++
	if !*long { // in the long form asynq has time enough for that itself
		s.r.recover(func(pid string) bool { return pid == strconv.Itoa(victim.PID()) })
	}
	s.live = append(s.live, s.r.start())
}

// wake has those go on whose time has come.
func (s *processStorm) wake(now time.Time) {
	var rest []processSleeper
	for _, sleeper := range s.asleep {
		if sleeper.until.After(now) {
			rest = append(rest, sleeper)
			continue
		}
		s.r.resume(sleeper.child)
		s.live = append(s.live, sleeper.child)
	}
	s.asleep = rest
}

// calm has everything done that is left. In the short form the workers end, so
// that all that is active was of the dead, and others begin, which recover it at
// their start; a command of a dead one may arrive late, so there may have to be
// a second round. In the long form asynq is left to it.
func (s *processStorm) calm() {
	s.r.t.Helper()
	s.wake(time.Now().Add(time.Hour))
	if *long {
		redistest.Eventually(s.r.t, 10*time.Minute, s.r.worked, "asynq recovering what the dead had")
		return
	}
	redistest.Eventually(s.r.t, 2*time.Minute, func() bool {
		for _, child := range s.live {
			child.End(s.r.t, time.Minute)
		}
		s.r.recoverAll()
		s.live = []*redistest.Child{s.r.start(), s.r.start(), s.r.start()}
		for began := time.Now(); !s.r.worked() && time.Since(began) < 20*time.Second; {
			<-time.After(10 * time.Millisecond)
		}
		return s.r.worked()
	}, "what is left being done")
}
