// Package life counts what a Guard or a Locker has begun, and ends it.
package life

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// ErrClosed is the error of everything that begins after End.
var ErrClosed = errors.New("lock: locker closed")

// Life counts the operations and goroutines of one owner, which waits for them when it ends. Safe for concurrent use.
type Life struct {
	// Closing ends with End: waiters and goroutines end with it. It is the owner's lifetime, not a caller's.
	Closing context.Context
	stop    context.CancelFunc
	unfit   error // see Refuse

	// mu guards what follows: after End, Enter and Spawn refuse. What is counted in may still branch.
	mu     sync.Mutex
	closed bool
	begun  int           // what Enter, Spawn and Branch have begun and has not ended
	idle   chan struct{} // closed when closed is true and begun is 0
}

// New begins a life.
func New() *Life {
	l := &Life{idle: make(chan struct{})}
	l.Closing, l.stop = context.WithCancel(context.Background())
	return l
}

// Refuse makes every Enter return err, if it is not nil: the owner was made with bad options. It is
// called before anything begins.
func (l *Life) Refuse(err error) { l.unfit = err }

// Unfit returns the error given to Refuse.
func (l *Life) Unfit() error { return l.unfit }

// Enter counts an operation in, so that the end waits for it. It returns an error after End, and that of Refuse. After
// a nil error the caller calls Done when the operation ends.
func (l *Life) Enter() error {
	if l.unfit != nil {
		return l.unfit
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.begun++
	return nil
}

// Done ends what Enter has begun.
func (l *Life) Done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun--; l.begun < 0 {
		panic("life: Done without Enter")
	}
	l.tellIdle()
}

// tellIdle closes idle if it is time, once. Callers hold mu.
func (l *Life) tellIdle() {
	if !l.closed || l.begun > 0 {
		return
	}
	select {
	case <-l.idle:
	default:
		close(l.idle)
	}
}

// Spawn runs f on a goroutine that the end waits for; false after End.
func (l *Life) Spawn(f func()) bool {
	if l.Enter() != nil {
		return false
	}
	defer l.Done()
	l.Branch(f)
	return true
}

// Branch is Spawn for callers that are counted in already. It works also after End.
func (l *Life) Branch(f func()) {
	l.mu.Lock()
	l.begun++
	l.mu.Unlock()
	go func() {
		defer l.Done()
		f()
	}()
}

// End ends Closing, and has Enter and Spawn refuse. The channel is closed when all has ended that was begun.
func (l *Life) End() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.stop() // before the next Enter, which is refused
	l.tellIdle()
	return l.idle
}

// CallUser calls a function of the user on a goroutine of the Locker, and logs a panic: it would end
// the program, and with it every lease. what names the function in the log.
func CallUser(log *slog.Logger, what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("automutex: a function given to package lock panicked", "function", what, "panic", fmt.Sprint(p), "stack",
				string(debug.Stack()))
		}
	}()
	f()
}
