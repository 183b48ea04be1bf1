package web

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// statesWithin bounds how long one view waits for the states of its tasks.
	statesWithin = time.Second
	// statesAtOnce is how many questions to asynq are on their way at once, for all viewers.
	statesAtOnce = 8
	// mostStates is for how many tasks of a lock asynq is asked.
	mostStates = 30
	// stateUnknown stands for the state of a task that asynq was not asked for, or has not
	// told in time.
	stateUnknown = "state unknown"
)

// taskStates asks asynq for the states of tasks. asynq's Inspector takes no context, and its
// Redis may be another than that of the locks, with bounds of its own or none. So each
// question is a goroutine, which ends when the Inspector returns. Nobody waits for it longer
// than statesWithin, Close included. One that hangs keeps its slot; with no slot left, nothing
// more is asked until one of them returns.
type taskStates struct {
	inspector *asynq.Inspector
	within    time.Duration // bounds ask
	slots     chan struct{} // holds an element for each question that is on its way
}

func newTaskStates(inspector *asynq.Inspector) *taskStates {
	return &taskStates{inspector: inspector, within: statesWithin, slots: make(chan struct{}, statesAtOnce)}
}

// taskID names a task of asynq.
type taskID struct{ queue, id string }

// ask gives the type and state of the first mostStates tasks, as text for people. It returns
// within statesWithin, or when ctx ends; what is not known by then is stateUnknown.
func (s *taskStates) ask(ctx context.Context, tasks []task) map[taskID]string {
	ids := make([]taskID, len(tasks))
	for i, t := range tasks {
		ids[i] = taskID{t.Queue, t.ID}
	}
	return askEach(ctx, s, ids, stateUnknown, func(of taskID) string {
		return printable.Short(inspect.TaskState(s.inspector, of.queue, of.id))
	})
}

// askEach asks for the first mostStates of those tasks, each once. What is not known in time is unknown.
func askEach[T any](ctx context.Context, s *taskStates, tasks []taskID, unknown T, question func(taskID) T) map[taskID]T {
	ctx, cancel := context.WithTimeout(ctx, s.within)
	defer cancel()
	asked := make([]taskID, 0, mostStates)
	known := map[taskID]T{}
	for _, of := range tasks {
		if _, twice := known[of]; of.id != "" && !twice && len(asked) < mostStates {
			asked = append(asked, of)
			known[of] = unknown
		}
	}
	type answer struct {
		of    taskID
		state T
	}
	answers := make(chan answer, len(asked)) // has room for all: one that comes late blocks nobody
	for next, answered := 0, 0; answered < len(asked); {
		slots := s.slots
		if next == len(asked) {
			slots = nil // only answers are missing
		}
		select {
		case slots <- struct{}{}:
			of := asked[next]
			next++
			go func() { // ends when the Inspector returns
				defer func() { <-s.slots }()
				answers <- answer{of, question(of)}
			}()
		case a := <-answers:
			known[a.of] = a.state
			answered++
		case <-ctx.Done():
			return known
		}
	}
	return known
}

// stateOf gives the state of a task out of what ask has given; empty for what is no task.
func stateOf(t task, known map[taskID]string) string {
	if t.ID == "" {
		return ""
	}
	if state, ok := known[taskID{t.Queue, t.ID}]; ok {
		return state
	}
	return stateUnknown
}
