package unique

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
)

// A task that takes the place of another one never runs before its time, also when that
// is less than a second away: asynq keeps whole seconds, and they are rounded up.
func TestSupersede_neverBeforeItsTime(t *testing.T) {
	t.Parallel()
	const soon = 700 * time.Millisecond
	for _, until := range []Until{UntilDone, UntilStart} {
		for _, duplicate := range []Duplicate{Replace, Postpone(soon)} {
			t.Run(until.String()+", "+duplicate.String(), func(t *testing.T) {
				t.Parallel()
				r := start(t, redistest.Mini(t), Rule{Task: "save", On: []string{"id"}, Until: until, Duplicate: duplicate})
				// At this place in the second the next whole one is at least soon away, and
				// less than a second: that is where the mistake was.
				time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond)))
				at := wholeSecond(time.Now().Add(soon))
				r.must(r.Enqueue(task("save", "7", "one"), asynq.ProcessAt(at)))
				if duplicate != Replace {
					at = time.Now().Add(soon)
				}
				// Other headers, so that the payload cannot be changed where it is.
				two := asynq.NewTaskWithHeaders("save", []byte(`{"id":"7","text":"two"}`), map[string]string{"trace": "2"})
				info := r.must(r.Enqueue(two))
				switch now := time.Now(); {
				case info.State == asynq.TaskStateScheduled && info.NextProcessAt.Before(at):
					t.Errorf("it is due %s before its time", at.Sub(info.NextProcessAt))
				case info.State == asynq.TaskStatePending && now.Before(at):
					t.Errorf("it may run %s before its time", at.Sub(now))
				}
				found := r.tasks(r.queue, "save", live...)
				if len(found) != 1 || found[0].ID != info.ID || found[0].State != info.State {
					t.Errorf("there are %v; the call gave %v", found, info)
				}
			})
		}
	}
}
