package web

import (
	"cmp"
	"context"
	"sync"
	"time"
)

const (
	// sharedWithin bounds one question to Redis whose answer is for all viewers, if shared.within does not.
	sharedWithin = 3 * time.Second
	// failedFor is how long a failure stands for all viewers, before one of them asks again.
	failedFor = 2 * time.Second
)

// shared is an answer of Redis for all viewers. The zero value has none. The first viewer who
// finds it too old has a goroutine ask for all; who comes meanwhile waits for the answer. A failure
// is an answer, too: viewers of a Redis that does not answer do not ask one after another.
type shared[T any] struct {
	within time.Duration // bounds a question; 0: sharedWithin
	pause  int           // an answer is good enough for at least so many times as long as it took

	mu     sync.Mutex    // guards the rest; nobody does I/O under it
	asking chan struct{} // closed at the answer to the question that is on its way; nil: there is none
	next   time.Time     // when the answer is too old
	value  T             // of the last question that was answered
	err    error         // of the last question
}

// get gives an answer that is at most fresh old. With an error, which is that of ctx where
// the answer does not come in time, it gives the last answer that there was.
func (s *shared[T]) get(ctx context.Context, fresh time.Duration, ask func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !time.Now().Before(s.next) { // once, or again after a forget
		asking := s.asking
		if asking == nil {
			asking = make(chan struct{})
			s.asking = asking
			go s.ask(context.WithoutCancel(ctx), asking, fresh, ask) // ends when the question's time is over
		}
		s.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if err := ctx.Err(); err != nil {
			return s.value, err
		}
	}
	return s.value, s.err
}

// ask asks Redis, and keeps the answer unless forget was called meanwhile. Its context is not the
// viewer's: the answer is for others, too, also when this one goes away.
func (s *shared[T]) ask(ctx context.Context, asking chan struct{}, fresh time.Duration, ask func(context.Context) (T, error)) {
	defer close(asking)
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.within, sharedWithin))
	defer cancel()
	began := time.Now()
	value, err := within(ctx, ask)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking != asking {
		return
	}
	s.asking = nil
	if s.err = err; err != nil {
		s.next = time.Now().Add(failedFor)
		return
	}
	now := time.Now()
	s.value, s.next = value, now.Add(max(fresh, time.Duration(s.pause)*now.Sub(began)))
}

// last gives the last answer, and the error of the last question. It asks nobody.
func (s *shared[T]) last() (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, s.err
}

// forget has the next get ask Redis: something has changed. The answer to a question that is on
// its way is from before the change, and is not kept.
func (s *shared[T]) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.asking = time.Time{}, nil
}
