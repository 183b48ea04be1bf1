package control

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
)

// How the controls are read. Of reads that fail one ends within Delay of the other: so the Reader stays blind until one succeeds.
const (
	// Delay is the longest time until every process that reaches Redis obeys a change.
	Delay = 2 * time.Second
	// ReadEvery is how often the controls are read.
	ReadEvery = 1500 * time.Millisecond
	// readWithin is how long a read may take, less redisx.AnswerGrace.
	readWithin = 1500 * time.Millisecond
	// readRetry is how often they are read while that fails, if it fails sooner.
	readRetry = 250 * time.Millisecond
)

//go:embed lua/*.lua
var files embed.FS

func script(name string) *redisx.Script {
	b, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // a name that no file has: every test finds it
	}
	return redisx.NewScript("control_"+name, string(b))
}

var readScript, writeScript = script("read"), script("write")

// Reader reads the controls for a Locker and keeps the last state that it has read. Safe for concurrent use.
//
// A state that was asked for more than Delay ago is not relied on, however that came about: the process was stopped, or a reply is slow.
// Then a call waits for a read (Know), and nothing is granted (Slots). So whoever is granted a lock obeys each change that is older than
// Delay. If a read fails, the Reader is blind: the log says so, and the Locker obeys the state that was read last, or no controls if there
// is none, until a read succeeds.
//
// One goroutine, run, reads, one read at a time, and is the only one that sets the view. It begins with the first call that needs the
// controls, and ends at Close.
type Reader struct {
	o        Options
	Keys     []string // exactly one
	Channel  string   // of the messages that announce a change
	keyStart string   // the beginning of every lock's key

	view atomic.Pointer[view] // what is known; never nil
	soon chan struct{}        // of capacity 1; a value asks run to begin a read

	mu      sync.Mutex    // guards what follows; never held across I/O
	running bool          // run was started
	news    chan struct{} // closed when a read has ended; then there is a new one
	last    read          // that read

	warned bool // that the controls cannot be read was logged, and none has succeeded since; only run uses it
}

// view is what is known of the controls. It is immutable.
type view struct {
	state   *State    // the last one that was read; nil: none yet
	inForce []Order   // its orders when it was read
	blind   time.Time // when it was last found that the controls cannot be read; zero: they can
}

func (v *view) isKnown(now time.Time) bool { return v.state != nil && !Old(v.state.sent, now) }

// isBlind is false again in a process that was stopped since: it has not tried for that long.
func (v *view) isBlind(now time.Time) bool { return !v.blind.IsZero() && !Old(v.blind, now) }

// read is one read and its result.
type read struct {
	sent  time.Time // just before it was sent
	state *State
	err   error
}

// Options are what a Reader is made of.
type Options struct {
	Life     *life.Life
	Conn     *redisx.Conn
	Log      *slog.Logger
	Prefix   string
	Secret   *string                // of HashKeys; behind a pointer it is not printed
	Owner    string                 // who gives the orders of this process
	HasScope func(text string) bool // whether a rule has that very scope, as the program writes it; nil: none is known
	Changed  func(now *State)       // called after each change of what is in force, and first if there is anything; one call at a time
}

// New makes a Reader. It reads nothing before the first call that needs the controls.
func New(o Options) *Reader {
	r := &Reader{
		o: o, Keys: []string{o.Prefix + ":{" + keys.Controls + "}"}, Channel: o.Prefix + ":control", keyStart: o.Prefix + ":{",
		soon: make(chan struct{}, 1), news: make(chan struct{}),
	}
	r.view.Store(&view{})
	return r
}

// Latest returns the state that was read last; nil: none yet.
func (r *Reader) Latest() *State { return r.view.Load().state }

// Old reports whether t is more than Delay before now, by the monotonic clock or by the wall clock: the first one stands still while
// a virtual machine is suspended.
func Old(t, now time.Time) bool {
	return now.Sub(t) > Delay || now.Round(0).Sub(t.Round(0)) > Delay
}

// Slots is the limit that the scripts get: how many may hold the lock with that Redis key at once. It is the number of a control, or
// else limit, the number in the program, which also counts if fixed is set. It is 0 while the lock is paused, so that the scripts
// grant it to nobody and keep the line, and while the controls are not known. It does no I/O, and is called for each command.
func (r *Reader) Slots(key string, limit int, fixed bool) int {
	text, ours := r.inBraces(key)
	if !ours {
		return limit
	}
	v, now := r.view.Load(), time.Now()
	if !v.isKnown(now) && !v.isBlind(now) {
		if v.state == nil { // nobody has called Know; the next call of Slots may know
			r.o.Life.Spawn(r.start)
		}
		return 0
	}
	ordered, pause := v.state.of(text)
	switch {
	case pause != nil:
		return 0
	case ordered == 0 || fixed:
		return limit
	}
	return ordered
}

// PauseOf returns the pause of the lock with that Redis key, nil if it is not paused, and how long it lasts, 0 if it has no end.
func (r *Reader) PauseOf(key string) (pause *Order, left time.Duration) {
	state := r.Latest()
	if text, ours := r.inBraces(key); ours {
		_, pause = state.of(text)
	}
	if pause != nil && !pause.Until.IsZero() {
		left = max(time.Millisecond, pause.Until.Sub(state.Now()))
	}
	return pause, left
}

// Know returns when the controls are known that were in force Delay ago, or cannot be read. Only the first calls of a Locker wait
// for that, those of a process that was stopped, and those where Redis is slow; none for much longer than Delay. An error means that ctx
// has ended, or that the Locker is closed. key is the lock's. The caller has called Life.Enter.
func (r *Reader) Know(ctx context.Context, key string) error {
	if _, ours := r.inBraces(key); !ours || r.view.Load().isKnown(time.Now()) {
		return nil
	}
	return r.await(ctx, key, func(read) bool {
		v, now := r.view.Load(), time.Now()
		return v.isKnown(now) || v.isBlind(now)
	})
}

// Orders fetches the orders in force.
func (r *Reader) Orders(ctx context.Context) ([]Order, error) {
	state, err := r.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	return state.Orders(), nil
}

// Fetch reads the controls for a caller. When it returns, every change that was made before the call is in force for this Locker.
func (r *Reader) Fetch(ctx context.Context) (*State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.o.Life.Enter(); err != nil {
		return nil, err
	}
	defer r.o.Life.Done()
	began, mine := time.Now(), read{}
	err := r.await(ctx, r.Keys[0], func(last read) bool {
		mine = last
		late := errors.Is(last.err, redisx.ErrNoAnswer) && time.Since(began) < redisx.Timeout // then the next read may have an answer
		return !late && !last.sent.Before(began)
	})
	switch {
	case err != nil:
		return nil, err
	case mine.err != nil:
		return nil, redisx.Failed("read the controls for", r.Keys[0], mine.err)
	}
	return mine.state, nil
}

// await waits until done, which it gives the read that has ended last, or until ctx ends. It asks for a read if the first look finds
// that it is not done. The caller has called Life.Enter.
func (r *Reader) await(ctx context.Context, key string, done func(last read) bool) error {
	for first := true; ; first = false {
		r.mu.Lock()
		news, last := r.news, r.last
		r.mu.Unlock()
		switch {
		case done(last):
			return nil
		case first:
			r.start()
		}
		select {
		case <-news:
		case <-ctx.Done():
			return redisx.Failed("read the controls for", key, fmt.Errorf("%w before the context ended: %w", redisx.ErrNoAnswer, ctx.Err()))
		case <-r.o.Life.Closing.Done():
			return life.ErrClosed
		}
	}
}

// start makes run begin a read, and starts run before if that is needed. The caller has called Life.Enter.
func (r *Reader) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		r.ReadSoon()
		return
	}
	r.running = true
	r.o.Life.Branch(r.run)
}

// ReadSoon makes run begin a read, if run has been started.
func (r *Reader) ReadSoon() {
	select {
	case r.soon <- struct{}{}:
	default: // a read is asked for already, and it will begin after this call
	}
}

// run reads the controls when it is asked to, and again and again after that, until Close.
func (r *Reader) run() {
	for {
		ended := r.read()
		r.note(ended, time.Now())
		next := ended.sent.Add(ReadEvery)
		if ended.err != nil {
			next = ended.sent.Add(readRetry)
		}
		select {
		case <-time.After(time.Until(next)):
		case <-r.soon:
		case <-r.o.Life.Closing.Done():
			return // callers that wait see closing, too
		}
	}
}

// read reads the controls once. A read that hangs is left behind: the next one goes on another connection.
func (r *Reader) read() read {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(r.o.Life.Closing, readWithin)
	defer cancel()
	reply, err := r.call(ctx, readScript, mostRead)
	if err != nil {
		return read{sent: sent, err: err}
	}
	state, err := r.parse(reply, r.Latest())
	if err == nil {
		state.sent = sent
	}
	return read{sent, state, err}
}

// call runs a script.
func (r *Reader) call(ctx context.Context, s *redisx.Script, args ...any) (any, error) {
	reply, err := r.o.Conn.Run(ctx, s, r.Keys, args...)
	if redisx.IsWrongType(err) {
		err = fmt.Errorf("something else than controls is stored under %q: look at it with TYPE, and remove it with DEL, or give the programs another Prefix: %w", r.Keys[0], err)
	}
	return reply, err
}

// note takes the result of a read: it puts what was read in force, or leaves in force what was read before.
func (r *Reader) note(ended read, now time.Time) {
	before := r.view.Load()
	switch {
	case ended.err == nil:
		next := &view{state: ended.state, inForce: ended.state.Orders()}
		if r.warned && !Old(ended.sent, now) {
			r.warned = false
			r.o.Log.Info("automutex: the controls can be read again", "key", r.Keys[0])
		}
		r.view.Store(next)
		r.noteChange(before, next)
	case r.o.Life.Closing.Err() == nil && !Old(ended.sent, now): // one that took longer, as the process was stopped, says nothing of now
		r.turnBlind(before, now, ended.err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = ended
	close(r.news)
	r.news = make(chan struct{})
}

// turnBlind notes that the controls cannot be read, and logs that once until they can. It is called again as long as that lasts.
func (r *Reader) turnBlind(v *view, now time.Time, err error) {
	r.view.Store(&view{v.state, v.inForce, now})
	if r.warned || v.isKnown(now) { // the next read may succeed in time
		return
	}
	r.warned = true
	obeyed := "this process obeys no pause and no limit until they can"
	if v.state != nil {
		obeyed = "this process obeys those that it has read before"
	}
	r.o.Log.Error("automutex: the controls cannot be read; "+obeyed, "key", r.Keys[0], "error", err)
}

// noteChange logs the orders that cannot be read, the orders that came into force and those that have ended. If there are any such
// orders, it calls Changed.
func (r *Reader) noteChange(before, now *view) {
	for name, f := range now.state.fields {
		if f.wrong != nil && (before.state == nil || before.state.fields[name] != f) {
			r.o.Log.Error("automutex: a control cannot be read and is not in force; the others are", "key", r.Keys[0], "field", name, "problem", f.wrong,
				"fix", "remove it with HDEL KEY FIELD")
		}
	}
	if slices.Equal(before.inForce, now.inForce) {
		return
	}
	for _, o := range now.inForce {
		if !slices.Contains(before.inForce, o) {
			r.o.Log.Warn("automutex: a control is in force", "target", o.Target, "order", o.Text())
		}
	}
	for _, o := range before.inForce {
		if !slices.ContainsFunc(now.inForce, func(its Order) bool { return its.Target == o.Target && its.Paused == o.Paused }) {
			r.o.Log.Info("automutex: a control has ended", "target", o.Target, "was", o.Text())
		}
	}
	r.o.Changed(now.state)
}
