package web

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/printable"
)

const (
	// sharedWithin bounds a question whose answer is for all viewers, if shared.within does not.
	sharedWithin = 3 * time.Second
	// failedFor is how long a failure stands for all viewers, before one of them asks again.
	failedFor = 2 * time.Second
)

// shared is an answer for all viewers. The first viewer who finds it too old has a goroutine ask for all; who comes
// meanwhile waits for the answer. A failure is an answer, too.
type shared[T any] struct {
	ctx    context.Context // of the page: ends all questions
	within time.Duration   // bounds a question; 0: sharedWithin

	mu     sync.Mutex    // guards the rest; nobody does I/O under it
	asking chan struct{} // closed at the answer to the question that is on its way; nil: there is none
	next   time.Time     // when the answer is too old
	value  T             // of the last question that was answered
	err    error         // of the last question
}

// question asks. goodFor is how long its answer will do.
type question[T any] func(context.Context) (value T, goodFor time.Duration, err error)

// get gives an answer that will do. With an error get gives the last answer that there was; if an answer does not come
// in time, the error is that of the last question, or else of ctx.
func (s *shared[T]) get(ctx context.Context, ask question[T]) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !time.Now().Before(s.next) && s.ctx.Err() == nil {
		asking := s.asking
		if asking == nil {
			asking = make(chan struct{})
			s.asking = asking
			go s.ask(asking, ask) // ends within s.within, and with the page
		}
		s.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if err := ctx.Err(); err != nil {
			return s.value, cmp.Or(s.err, err)
		}
	}
	return s.value, s.err
}

// ask keeps the answer. Its context is not the viewer's: the answer is for others, too, also when this one goes away.
func (s *shared[T]) ask(asking chan struct{}, ask question[T]) {
	defer close(asking)
	ctx, cancel := context.WithTimeout(s.ctx, cmp.Or(s.within, sharedWithin))
	defer cancel()
	var goodFor time.Duration
	value, err := within(ctx, func(ctx context.Context) (value T, err error) {
		value, goodFor, err = ask(ctx)
		return value, err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking = nil
	if s.err = err; err != nil {
		s.next = time.Now().Add(failedFor)
		return
	}
	s.value, s.next = value, time.Now().Add(goodFor)
}

// last gives the last answer. It asks nobody.
func (s *shared[T]) last() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// within asks, and returns when ctx ends at the latest: a client without ContextTimeoutEnabled, and asynq's Inspector,
// go on until their own timeouts, and their answer is dropped then.
func within[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1) // has room: an answer that comes late blocks nobody
	go func() {                      // ends when the client does
		value, err := ask(ctx)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// What a viewer does, or need not do, if Redis is out of reach.
const (
	triesAgain = "the page tries again"
	reload     = "reload to try again"
)

// trouble says for the viewer why Redis did not tell something, and what comes next if it is out of reach.
func trouble(err error, next string) string {
	var network net.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &network) && network.Timeout(): // the end of a context, too
		return "Redis does not answer; " + next
	case errors.As(err, &network):
		return "Redis cannot be reached (" + printable.Short(network.Error()) + "); " + next
	case errors.Is(err, io.EOF):
		return "Redis has closed the connection; " + next
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return "Another program has written to the key that this error names, and all its tasks fail until you DEL it in " +
			"Redis: " + printable.Short(err.Error())
	}
	return printable.Short(err.Error())
}
