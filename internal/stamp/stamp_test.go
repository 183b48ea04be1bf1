package stamp

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// task is one with that header.
func task(header string) *asynq.Task {
	return asynq.NewTaskWithHeaders("work", []byte("x"), map[string]string{Header: header})
}

// IsLast tells the last attempt by the stamp of that type and payload, and by nothing else.
func TestIsLast(t *testing.T) {
	t.Parallel()
	two := New("default/id", 2).Text(task(""))
	for text, want := range map[string]bool{
		two: true, two + ",1,0": true, two + " nonce 17 key": true, New("default/id", 3).Text(task("")): false,
		New("default/id", 2).Text(asynq.NewTask("work", []byte("y"))): false, // whose headers were passed on
		"": false, "2 of 2": false, version + " of": false, version + " of it two": false,
	} {
		if got := IsLast(task(text), 2); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	if IsLast(nil, 2) {
		t.Error("no task has a stamp")
	}
}

// A header that this package never writes is no stamp, and gives a task no place.
func TestOf(t *testing.T) {
	t.Parallel()
	const note = "default/id"
	plain := New(note, 3)
	ordered := plain
	ordered.Nonce, ordered.Ticket, ordered.Key = NewNonce(), 17, "automutex:{report|a b}"
	parked, timed, both := plain, plain, ordered
	parked.Key, timed.By, both.Due, both.By = ordered.Key, 1795753169476, 1795753169476, 1
	if CapRedelivery(time.Hour, 0, asynq.ErrLeaseExpired, task(parked.Text(task("")))) < time.Hour {
		t.Error("a parked task is no ordered one")
	}
	for _, s := range []Stamp{plain, ordered, parked, timed, both} {
		headers := map[string]string{Header: s.Text(task(""))}
		if got, ok := Of(headers, note); !ok || got != s {
			t.Errorf("%q is %+v, %v; want %+v", s, got, ok, s)
		}
		if got, ok := Of(maps.Clone(headers), "default/copy"); ok || got != (Stamp{}) {
			t.Errorf("a copy in another task is %+v", got)
		}
	}
	start := version + " " + short(note) + " any "
	for _, text := range []string{
		"", "3", version, start, start + "three", start + "-1", start + "3,1", start + "3,1,2,3",
		start + "3,-1,0", start + "3,1,soon", start + "3 more", "v0 " + short(note) + " any 3", start + "3  17 key",
		start + "3 nonce 17 key", start + "3 " + ordered.Nonce + " 0 key", start + "3 " + ordered.Nonce + " -17 key",
		start + "3 " + ordered.Nonce + " soon key", start + "3 " + ordered.Nonce + "| 17 key", start + "x " + ordered.Nonce +
			" 17 key",
	} {
		if got, ok := Of(map[string]string{Header: text}, note); ok || got != (Stamp{}) {
			t.Errorf("%q is %+v, %v; want none", text, got, ok)
		}
	}
}

// The recoverer delivers an ordered task soon, and any other as asynq would.
func TestCapRedelivery(t *testing.T) {
	t.Parallel()
	s := New("default/id", 5)
	plain := task(s.Text(task("")))
	s.Nonce, s.Ticket, s.Key = NewNonce(), 1, "k"
	ordered := task(s.Text(task("")))
	passedOn := asynq.NewTaskWithHeaders("other", []byte("x"), ordered.Headers())
	for what, c := range map[string]struct {
		spent int
		err   error
		task  *asynq.Task
		want  time.Duration
	}{
		"ordered, its worker died":          {0, asynq.ErrLeaseExpired, ordered, redeliveryDelay},
		"ordered, it failed":                {0, errors.New("failed"), ordered, time.Hour},
		"not ordered":                       {4, asynq.ErrLeaseExpired, plain, time.Hour},
		"its last attempt, its worker died": {5, asynq.ErrLeaseExpired, plain, redeliveryDelay},
		"its last attempt, its time was up": {5, context.DeadlineExceeded, plain, redeliveryDelay},
		"its last attempt, it failed":       {5, errors.New("failed"), plain, time.Hour},
		"passed on, its worker died":        {9, asynq.ErrLeaseExpired, passedOn, time.Hour},
		"no task":                           {9, asynq.ErrLeaseExpired, nil, time.Hour},
	} {
		if got := CapRedelivery(time.Hour, c.spent, c.err, c.task); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	if got := CapRedelivery(time.Second, 0, asynq.ErrLeaseExpired, ordered); got != time.Second {
		t.Errorf("a short delay becomes %s", got)
	}
}
