package web

import (
	"context"
	"sync"
	"time"
)

const (
	// sharedWithin bounds one question to Redis whose answer is for all viewers.
	sharedWithin = 3 * time.Second
	// failedFor is how long a failure stands for all viewers, before one of them asks again.
	failedFor = 2 * time.Second
)

// shared is an answer of Redis for all viewers. The zero value has none. A viewer who finds
// it too old asks for all; who comes meanwhile waits for the answer. A failure is an answer,
// too: viewers of a Redis that does not answer do not ask one after another.
type shared[T any] struct {
	mu    sync.Mutex // held while Redis is asked, within sharedWithin, so that one viewer asks for all
	next  time.Time  // when the answer is too old
	value T          // of the last question that was answered
	err   error      // of the last question
}

// get gives an answer that is at most fresh old. With an error it gives the last answer that
// there was.
func (s *shared[T]) get(ctx context.Context, fresh time.Duration, ask func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.next) {
		return s.value, s.err
	}
	// Not the viewer's context: the answer is for others, too, also when this one goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedWithin)
	defer cancel()
	value, err := ask(ctx)
	if s.err = err; err != nil {
		s.next = time.Now().Add(failedFor)
		return s.value, err
	}
	s.value, s.next = value, time.Now().Add(fresh)
	return value, nil
}

// forget has the next get ask Redis: something has changed. It waits for a question that is
// on its way, so that an answer from before the change does not stay.
func (s *shared[T]) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = time.Time{}
}
