package automutex

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/stamp"
)

// What a user reads says what happened, to what, and what to do.
func TestTexts(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for got, want := range map[string]string{
		(&FullError{Key: "k", Queued: 9, Max: 8}).Error():                                    `automutex: key "k" is full: 9 of its tasks are not done, and MaxQueued is 8; the task is not enqueued: try again later`,
		(&OptionError{Rule: "r", Task: "t", Option: "Group", why: "because"}).Error():        `automutex: rule "r" is InOrder, and task "t" has the option asynq.Group: because; the task is not enqueued: leave the option out`,
		(&EnqueueError{Rule: "r", Key: "k", Task: "q/t", Err: cause}).Error():                `automutex: rule "r": task q/t of key "k" is not enqueued: cause`,
		(&EnqueueError{Rule: "r", Key: "k", Task: "q/t", Err: cause, Unknown: true}).Error(): `automutex: rule "r": task q/t of key "k" may be enqueued or not: cause`,
		Rate{}.String(): "none",
		Rate{Starts: 3, Per: time.Minute, Burst: 2}.String():                                        "3 per 1m0s, burst 2",
		HoldKey.String() + " " + Continue.String() + " " + OnArchive(7).String():                    "hold continue OnArchive 7",
		limitText(Rule{Limit: 3}):                                                                   "",
		limitText(Rule{Limit: Unlimited}):                                                           "unlimited",
		limitText(Rule{LimitOf: func(context.Context, *asynq.Task) (int, error) { return 1, nil }}): "of the task",
		limitText(Rule{LimitOf: LimitField("plan.max", 0, 0)}):                                      "<plan.max>",
		limitText(Rule{LimitOf: LimitField("plan.max", 2, 0)}):                                      "<plan.max> (default 2)",
		limitText(Rule{LimitOf: LimitField("plan.max", 0, 9)}):                                      "<plan.max> (most 9)",
		limitText(Rule{LimitOf: LimitField("plan.max", 2, 9)}):                                      "<plan.max> (default 2, most 9)",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if !errors.Is(&EnqueueError{Err: cause}, cause) || !errors.Is(&FullError{}, ErrFull) {
		t.Error("an error does not unwrap to its cause")
	}
}

// The recoverer delivers an ordered task soon, and any other as asynq would.
func TestCapRedelivery(t *testing.T) {
	t.Parallel()
	s := stamp.New("default/id", 5)
	plain := asynq.NewTaskWithHeaders("work", nil, map[string]string{stamp.Header: s.String()})
	s.Nonce, s.Ticket, s.Key = stamp.NewNonce(), 1, "k"
	ordered := asynq.NewTaskWithHeaders("work", nil, map[string]string{stamp.Header: s.String()})
	for what, c := range map[string]struct {
		err  error
		task *asynq.Task
		want time.Duration
	}{
		"ordered, its worker died": {asynq.ErrLeaseExpired, ordered, redeliveryDelay},
		"ordered, it failed":       {errors.New("failed"), ordered, time.Hour},
		"not ordered":              {asynq.ErrLeaseExpired, plain, time.Hour},
		"no task":                  {asynq.ErrLeaseExpired, nil, time.Hour},
	} {
		if got := capRedelivery(time.Hour, c.err, c.task); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	if got := capRedelivery(time.Second, asynq.ErrLeaseExpired, ordered); got != time.Second {
		t.Errorf("a short delay becomes %s", got)
	}
}
