package demo

import (
	"errors"
	"testing"
	"time"
)

func TestRecorder_parked(t *testing.T) {
	rec := newRecorder()
	for _, id := range []string{"twice", "still away", "never", "refused"} {
		rec.enqueue("a", id)
	}
	rec.forget()
	rec.park("refused")
	rec.park("twice")
	rec.back("twice", 0)
	first := rec.byID["twice"].parked[0]
	rec.back("twice", -time.Hour) // it is back already
	if got := rec.byID["twice"].parked[0]; got != first {
		t.Errorf("what was over, %+v, became %+v", first, got)
	}
	rec.park("twice")
	rec.back("twice", time.Hour) // a wait from before it was parked
	rec.park("still away")
	rec.back("never", 0)
	rec.stop()
	twice, still, never := rec.byID["twice"].parked, rec.byID["still away"].parked, rec.byID["never"].parked
	if len(rec.tasks) != 3 || len(twice) != 2 || len(still) != 1 || len(never) != 0 {
		t.Fatalf("%d tasks, parked %v, %v, %v", len(rec.tasks), twice, still, never)
	}
	if twice[0].to > twice[1].from || twice[1].to != twice[1].from || still[0].to < still[0].from {
		t.Errorf("parked %v and %v", twice, still)
	}
}

// What a worker waited in line is no parked time.
func TestRecorder_backWaited(t *testing.T) {
	rec := newRecorder()
	rec.start = rec.start.Add(-time.Minute)
	rec.enqueue("a", "task")
	rec.park("task")
	rec.start = rec.start.Add(-10 * time.Second) // which are over now
	rec.back("task", 4*time.Second)
	parked := rec.byID["task"].parked[0]
	if got := parked.to - parked.from; got < 6*time.Second || got > 7*time.Second {
		t.Errorf("parked for %s, want the 6s until a worker had it", got)
	}
}

// What the handler has done counts before what the policy says later.
func TestRecorder_fate(t *testing.T) {
	rec := newRecorder()
	for _, id := range []string{"done", "failed", "replaced"} {
		rec.enqueue("a", id)
	}
	rec.begin("done")(nil)
	rec.begin("failed")(errOnce)
	rec.begin("replaced")(errors.New("stopped"))
	rec.end("replaced", replaced)
	rec.end("done", replaced)
	rec.begin("a stranger")(nil)
	for id, want := range map[string]fate{"done": done, "failed": unknown, "replaced": replaced} {
		if got := rec.byID[id].fate; got != want {
			t.Errorf("%s: fate %d, want %d", id, got, want)
		}
	}
}

// A task that begins after one of its key that was enqueued later is found, whatever other keys do.
func TestRecorder_disorder(t *testing.T) {
	for _, c := range []struct {
		runs           []string // IDs of tasks; of those that end with x the handler fails
		broken, failed int
	}{
		{[]string{"a1", "b1", "a2", "b2"}, 0, 0},
		{[]string{"a1", "b1x", "a2", "b1", "b2"}, 0, 1},
		{[]string{"a2", "b1", "a1", "b2"}, 1, 0},
		{[]string{"a1x", "a2", "a1", "b1", "b2"}, 1, 1},
	} {
		r := newRecorder()
		for _, id := range []string{"a1", "b1", "a2", "b2"} {
			r.enqueue(id[:1], id)
		}
		for _, id := range c.runs {
			end := r.begin(id[:2])
			if len(id) > 2 {
				end(errOnce)
			} else {
				end(nil)
			}
		}
		if broken, failed := r.disorder(); broken != c.broken || failed != c.failed {
			t.Errorf("%q: %d broken, %d failed; want %d, %d", c.runs, broken, failed, c.broken, c.failed)
		}
	}
}
