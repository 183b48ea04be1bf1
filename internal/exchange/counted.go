package exchange

import (
	"errors"
	"maps"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/printable"
)

// When a connection breaks before the reply, go-redis sends the command again and does not
// say so. The first copy may have run, or may run yet. An ask can then take the lock after
// its release, for nobody. A release whose reply is "absent" may have released the lock. So
// the copies of asks and of releases are counted.

// Body is the text that identifies one acquisition, as commands carry it. It never changes.
type Body struct {
	conn *Conn
	wire []byte
}

// NewBody makes a Body of wire, which nobody changes from then on.
func (c *Conn) NewBody(wire []byte) Body { return Body{c, wire} }

// Counted is a Body as the first argument of commands, a SET included. go-redis marshals
// an argument each time it writes the command, and Counted counts that.
type Counted struct {
	Body *Body // set before the first command
	// Releases: the commands release what Body holds, and a copy that did not run must not count. Set before the first
	// command.
	Releases bool
	// copies is how many copies were written or may yet be written, less those that the
	// server has replied to. Commands with the same Counted never overlap.
	copies atomic.Int32
}

// MarshalBinary is called by go-redis each time the command is written.
func (a *Counted) MarshalBinary() ([]byte, error) {
	writes := true
	if a.Body.conn.mayMeasure {
		var caller [1]uintptr
		runtime.Callers(2, caller[:]) // of Callers and MarshalBinary. One more frame to skip costs 300 ns.
		writes = isWriter(caller[0])
	}
	if writes {
		a.copies.Add(1)
	}
	return a.Body.wire, nil
}

// String is what tracing hooks print. Owners and notes are anybody's text.
func (a *Counted) String() string { return printable.Text(string(a.Body.wire)) }

// Copies returns how many copies were written or may yet be written, less those that the
// server has replied to.
func (a *Counted) Copies() int32 { return a.copies.Load() }

// NoteReply notes the end of an exchange, with a reply or the error err; before is what
// Copies returned when it began. It reports whether the server may have run the command. A
// script may also have written before it replied with an error.
func (a *Counted) NoteReply(before int32, err error) (mayHaveRun bool) {
	mayHaveRun = a.copies.Load() > before
	if mayHaveRun && serverReplied(err) {
		a.copies.Add(-1) // the server has replied to that copy
	}
	return mayHaveRun
}

// serverReplied reports whether an exchange that ended with err got a reply, if only an error.
func serverReplied(err error) bool {
	if err == nil {
		return true
	}
	var reply redis.Error // allocated, so only for errors
	return errors.As(err, &reply)
}

// MayRunYet reports whether a copy was written, or may yet be written, and got no reply: its
// connection broke, or the client gave up.
func (a *Counted) MayRunYet() bool { return a.copies.Load() > 0 }

// countedIn returns the Counted of a command's arguments, or nil.
func countedIn(args []any) *Counted {
	if len(args) == 0 {
		return nil // a script such as sweep, which may run twice
	}
	a, _ := args[0].(*Counted)
	return a
}

// noteNotRun notes that the server replied to a command without running it.
func noteNotRun(args []any) {
	if a := countedIn(args); a != nil {
		a.copies.Add(-1)
	}
}

// noteLeftBehind notes that the caller gave up a command that may yet be written.
func noteLeftBehind(args []any) {
	if a := countedIn(args); a != nil {
		a.copies.Add(1)
	}
}

// isWriter reports whether MarshalBinary was called from pc to write the argument. An
// AutoPipeliner also marshals an argument to learn its size, before it queues the command:
// that is no copy that could run. Only the call stack distinguishes the two: package redis
// measures, its package proto writes.
func isWriter(pc uintptr) bool {
	if known, ok := callers.load()[pc]; ok {
		return known
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	writer := !strings.HasPrefix(frame.Function, "github.com/redis/go-redis/v9.")
	callers.add(pc, writer)
	return writer
}

// callers has the result of isWriter for each place that calls MarshalBinary, a handful.
var callers callerCache

// callerCache is a map that is replaced when it grows, so that reading takes no lock. Of two
// goroutines that add at once one may lose its entry, and adds it again the next time.
type callerCache struct {
	known atomic.Pointer[map[uintptr]bool]
}

func (c *callerCache) load() map[uintptr]bool {
	if known := c.known.Load(); known != nil {
		return *known
	}
	return nil
}

func (c *callerCache) add(pc uintptr, writer bool) {
	grown := maps.Clone(c.load())
	if grown == nil {
		grown = make(map[uintptr]bool)
	}
	grown[pc] = writer
	c.known.Store(&grown)
}
