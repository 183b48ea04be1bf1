// Package life has what gives each goroutine of a Locker an owner that ends it.
package life

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// ErrClosed is the error of everything that begins after Close.
var ErrClosed = errors.New("lock: locker closed")

// Life counts the operations and goroutines of one owner, and Close waits for them. Safe for
// concurrent use.
type Life struct {
	// Closing ends when Close begins: waiters and goroutines end with it. It is the owner's
	// lifetime, not a caller's.
	Closing context.Context
	stop    context.CancelFunc
	unfit   error // see Refuse

	// work counts what Enter, Spawn and Branch have begun. mu makes the check of closed and
	// work.Add one step, so that nothing begins after Close has begun to wait.
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

// New begins a life.
func New() *Life {
	l := &Life{}
	l.Closing, l.stop = context.WithCancel(context.Background())
	return l
}

// Refuse makes every Enter return err, if it is not nil: the owner was made with bad options. It is
// called before anything begins.
func (l *Life) Refuse(err error) { l.unfit = err }

// Unfit returns the error given to Refuse.
func (l *Life) Unfit() error { return l.unfit }

// Enter counts an operation in, so that Close waits for it. It returns an error after Close has
// begun, and that of Refuse. After a nil error the caller calls Done when the operation ends.
func (l *Life) Enter() error {
	if l.unfit != nil {
		return l.unfit
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.work.Add(1)
	return nil
}

// Done ends what Enter has begun.
func (l *Life) Done() { l.work.Done() }

// Spawn runs f on a goroutine that Close waits for; false after Close has begun.
func (l *Life) Spawn(f func()) bool {
	if l.Enter() != nil {
		return false
	}
	defer l.Done()
	l.Branch(f)
	return true
}

// Branch is Spawn for callers that are counted in already. It works also after Close has begun.
func (l *Life) Branch(f func()) {
	l.work.Add(1)
	go func() {
		defer l.work.Done()
		f()
	}()
}

// Close ends the life. The first call ends Closing and then calls last. Each call returns when all
// has ended that was begun, last included.
func (l *Life) Close(last func()) {
	l.mu.Lock()
	first := !l.closed
	if l.closed = true; first {
		l.work.Add(1) // a second Close must not pass Wait before last has ended
	}
	l.mu.Unlock()
	if first {
		l.stop()
		last()
		l.work.Done()
	}
	l.work.Wait()
}

// CallUser calls a function of the user on a goroutine of the Locker, and logs a panic: it would end
// the program, and with it every lease. what names the function in the log.
func CallUser(log *slog.Logger, what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("automutex: a function given to package lock panicked", "function", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}
