package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// span records the events of a span, as "name key=value ...".
type span struct {
	noop.Span
	ended bool

	mu     sync.Mutex
	events []string
}

func (s *span) IsRecording() bool { return !s.ended }

func (s *span) AddEvent(name string, options ...trace.EventOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	config := trace.NewEventConfig(options...)
	for _, attribute := range config.Attributes() {
		name += fmt.Sprintf(" %s=%s", attribute.Key, attribute.Value.Emit())
	}
	s.events = append(s.events, name)
}

func (s *span) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// names are the events' names, without the package's.
func (s *span) names() (names []string) {
	for _, event := range s.list() {
		name, _, _ := strings.Cut(event, " ")
		names = append(names, strings.TrimPrefix(name, "automutex."))
	}
	return names
}

func TestTrace_attributes(t *testing.T) {
	t.Parallel()
	busy := &automutex.BusyError{Rule: "r", Key: "secret", Holder: "worker-1", HolderTask: "secret", Waited: time.Second}
	for want, e := range map[string]automutex.Event{
		"automutex.waiting automutex.rule=r":                             {Kind: automutex.EventWaiting, Rule: "r"},
		"automutex.waited automutex.rule=r automutex.waited_seconds=1.5": {Kind: automutex.EventWaited, Rule: "r", Waited: 1500 * time.Millisecond},
		"automutex.released automutex.rule=r automutex.held_seconds=2":   {Kind: automutex.EventReleased, Rule: "r", Held: 2 * time.Second},
		"automutex.lost automutex.rule=r":                                {Kind: automutex.EventLost, Rule: "r", Err: errors.New("secret")},
		"automutex.key_error":                                            {Kind: automutex.EventKeyError, Err: errors.New("secret")},
		"automutex.retried automutex.delay_seconds=3":                    {Kind: automutex.EventRetried, Delay: 3 * time.Second},
		"automutex.parked automutex.rule=r automutex.policy=park automutex.holder=worker-1 automutex.delay_seconds=9": {
			Kind: automutex.EventParked, Rule: "r", Policy: automutex.Park, Busy: busy, Delay: 9 * time.Second,
		},
		"automutex.acquired automutex.rule=r automutex.waited_seconds=1 automutex.parked_seconds=60": {
			Kind: automutex.EventAcquired, Rule: "r", Waited: time.Second, Parked: time.Minute,
		},
		"automutex.skipped automutex.rule=r automutex.policy=skip": {Kind: automutex.EventSkipped, Rule: "r", Policy: automutex.Skip},
		"automutex.acquired automutex.rule=\uFFFD":                 {Kind: automutex.EventAcquired, Rule: "\xff"},
		"automutex.busy automutex.rule=r automutex.policy=retry in 5s automutex.holder=worker-1 automutex.waited_seconds=1": {
			Kind: automutex.EventBusy, Rule: "r", Policy: automutex.RetryIn(5 * time.Second), Busy: busy, Waited: time.Second,
		},
	} {
		e.Key, e.Task, e.TaskID = "secret", "t", "secret"
		s := &span{}
		Trace(trace.ContextWithSpan(t.Context(), s), e)
		if got := s.list(); !slices.Equal(got, []string{want}) {
			t.Errorf("got %q\nwant %q", got, want)
		}
	}
}

// Without a span, or with one that has ended, nothing happens.
func TestTrace_noSpan(t *testing.T) {
	t.Parallel()
	e := automutex.Event{Kind: automutex.EventWaiting, Rule: "r"}
	Trace(t.Context(), e)
	s := &span{ended: true}
	Trace(trace.ContextWithSpan(t.Context(), s), e)
	if got := s.list(); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}

// The events of a wait and of a hold are on the span of the task that waited.
func TestTrace_waitAndHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		waiting := make(chan struct{})
		guard := newGuard(t, s.Client(t), automutex.Config{
			Rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry, Wait: time.Minute}},
			Observe: automutex.JoinObservers(nil, Trace, func(_ context.Context, e automutex.Event) {
				if e.Kind == automutex.EventWaiting {
					close(waiting) // a second one would panic
				}
			}),
		})
		first, second := &span{}, &span{}
		holding, ended := make(chan struct{}), make(chan error)
		run := func(s *span, handler asynq.HandlerFunc) error {
			return guard.Middleware(handler).ProcessTask(trace.ContextWithSpan(t.Context(), s), asynq.NewTask("work", nil))
		}
		go func() { // ends with the second's wait
			ended <- run(first, func(context.Context, *asynq.Task) error {
				close(holding)
				<-waiting
				return nil
			})
		}()
		<-holding
		redistest.Must(t, run(second, func(context.Context, *asynq.Task) error { return nil }))
		redistest.Must(t, <-ended)
		if got := first.names(); !slices.Equal(got, []string{"acquired", "released"}) {
			t.Errorf("the first span has %q", got)
		}
		if got := second.names(); !slices.Equal(got, []string{"waiting", "waited", "acquired", "released"}) {
			t.Errorf("the second span has %q", got)
		}
	})
}
