package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The task whose handler has put the key on hold comes first when the gate opens, before
// those that came meanwhile.
func TestHold_comesFirst(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for _, policy := range []automutex.Policy{automutex.Retry, automutex.Park} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) { holdAndComeFirst(t, s, policy) })
		})
	}
}

func holdAndComeFirst(t *testing.T, s *redistest.Server, policy automutex.Policy) {
	const d = 6 * time.Second
	r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: policy}}, served: comingBack})
	first := r.enqueue("work", one)
	run := r.stage.next(t)
	began := time.Now()
	redistest.Must(t, automutex.CloseGate(run.ctx, d))
	ids := []string{first}
	for range 3 { // all of them meet the hold before the handler returns
		id := r.enqueue("work", one)
		ids = append(ids, id)
		r.awaitEvent(automutex.EventBusy, id)
	}
	run.returns(automutex.RetryAfter(time.Until(began.Add(d)), errors.New("429")))
	switch info := r.awaitRetried(first, 0); policy {
	case automutex.Retry:
		for _, id := range ids[1:] {
			// asynq keeps whole seconds. A machine that was slow to write the first one's has
			// it later than the end of the hold; then they may be the same.
			late := info.NextProcessAt.After(began.Add(d))
			if other := r.awaitRetried(id, 0); !info.NextProcessAt.Before(other.NextProcessAt) && (!late || info.NextProcessAt.After(other.NextProcessAt)) {
				t.Errorf("it comes back at %s, another one at %s", info.NextProcessAt, other.NextProcessAt)
			}
		}
	case automutex.Park:
		if !strings.Contains(info.LastErr, parkedOn(r.lockOf("work", "1").Key())) || !strings.Contains(info.LastErr, "429") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.awaitEvent(automutex.EventParked, first)
	}
	for i := range ids {
		run = r.stage.next(t)
		if took := time.Since(began); took < d {
			t.Errorf("%s ran %s after a hold of %s", run.id, took, d)
		}
		if policy == automutex.Park && i == 0 && run.id != first {
			t.Errorf("%s comes first, want %s, which put the key on hold", run.id, first)
		}
		run.returns(nil)
	}
	for _, id := range ids {
		if info := r.await(id, asynq.TaskStateCompleted); info.Retried != 0 {
			t.Errorf("an attempt is spent: %+v", info)
		}
	}
}
