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

// How the controls are read.
const (
	// Delay is the longest time until every process that reaches Redis obeys a change.
	Delay = 2 * time.Second
	// ReadEvery is how often the controls are read.
	ReadEvery = 1500 * time.Millisecond
	// readOverdue is how long a read may be without a result before the next one begins beside it, on another connection.
	readOverdue = 300 * time.Millisecond
	// readRetry is the pause after a read that failed.
	readRetry = 250 * time.Millisecond
	// mostReads are under way at most. That is enough to know a state which is younger than Delay where each reply takes
	// 1.7 s.
	mostReads = 6
)

//go:embed lua/*.lua
var files embed.FS

var readScript, writeScript = redisx.Load(files, "control_read", "read"), redisx.Load(files, "control_write", "write")

// Reader reads the controls for a Locker and keeps the last state that it has read. A nil Reader bounds no lock. Safe
// for concurrent use.
//
// A state that was asked for more than Delay ago is not relied on. Then a call waits for a read (Know), and nothing is
// granted (Slots). So whoever is granted a lock obeys each change that is older than Delay. If a read fails, or none
// succeeds for Delay, the Reader is blind: the log says so, and the Locker obeys the state that was read last, or no
// controls if there is none, until a read succeeds in time.
//
// One goroutine, run, begins all reads, takes their results and is the only one that sets the view. It begins with the
// first call that needs the controls, and ends at Close. Each read has a goroutine of its own, which ends with the
// read.
type Reader struct {
	o        Options
	Keys     []string // exactly one
	Channel  string   // of the messages that announce a change
	keyStart string   // the beginning of every lock's key

	view atomic.Pointer[view] // what is known; never nil
	soon chan struct{}        // of capacity 1; a value asks run to begin a read

	mu      sync.Mutex    // guards what follows; never held across I/O
	running bool          // run was started
	news    chan struct{} // closed when the view or last changes; then there is a new one
	last    read          // the read that has ended last

	warned bool // that the controls cannot be read was logged, and none has succeeded since; only run uses it
}

// view is what is known of the controls. It is immutable.
type view struct {
	state   *State    // the last one that was read; nil: none yet
	inForce []Order   // its orders when it was read
	blind   time.Time // when it was last found that the controls cannot be read; zero: they can
	refused bool      // blind, since Redis refuses to let them be read
}

func (v *view) isKnown(now time.Time) bool { return v.state != nil && !Old(v.state.sent, now) }

// isBlind is false in a process that was stopped since.
func (v *view) isBlind(now time.Time) bool { return !v.blind.IsZero() && !Old(v.blind, now) }

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
	// called after each change of what is in force, and first if there is anything; one call at a time
	Changed func(now *State)
}

// New makes a Reader. It reads nothing before the first call that needs the controls.
func New(o Options) *Reader {
	keyStart := o.Prefix + ":{"
	r := &Reader{
		o: o, keyStart: keyStart, Keys: []string{keyStart + keys.Controls + "}"}, Channel: o.Prefix + ":control",
		soon: make(chan struct{}, 1), news: make(chan struct{}),
	}
	r.view.Store(&view{})
	return r
}

// Latest returns the state that was read last; nil: none yet.
func (r *Reader) Latest() *State { return r.view.Load().state }

// Old reports whether t is more than Delay before now, by the monotonic clock or by the wall clock: the first one
// stands still while a virtual machine is suspended.
func Old(t, now time.Time) bool {
	return now.Sub(t) > Delay || now.Round(0).Sub(t.Round(0)) > Delay
}

// Bounds is what bounds the lock with that Redis key now, of which the program says what bounds it. Slots is what the
// scripts get: 0 with a Pause, so that the scripts grant the lock to nobody and keep the line. Bounds does no I/O, and
// is called for each command.
func (r *Reader) Bounds(key string, program Bounds) Bounds {
	text, ours := r.inBraces(key)
	if !ours {
		return program
	}
	v, now := r.view.Load(), time.Now()
	if !v.isKnown(now) && !v.isBlind(now) {
		if v.state == nil { // nobody has called Know; the next call of Bounds may know
			r.o.Life.Spawn(r.start)
		}
		program.Slots, program.Pause = 0, Unread
	}
	if v.state != nil {
		program.Known = v.state.known
	}
	return v.state.bounds(text, program)
}

// PauseOf returns the order that pauses the lock with that Redis key; nil: none does.
func (r *Reader) PauseOf(key string) *Order {
	text, ours := r.inBraces(key)
	if !ours {
		return nil
	}
	return r.Latest().bounds(text, Bounds{}).Pause
}

// Lasts returns how long a pause lasts yet; 0: it has no end. nil is no pause, and not ok; Unread lasts for a moment.
func (r *Reader) Lasts(pause *Order) (left time.Duration, ok bool) {
	switch pause {
	case nil:
		return 0, false
	case Unread:
		return time.Millisecond, true
	}
	if !pause.PausedUntil.IsZero() {
		left = max(time.Millisecond, pause.PausedUntil.Sub(r.Latest().Now()))
	}
	return left, true
}

// Know returns when the controls are known that were in force Delay ago, or cannot be read. Only the first calls of a
// Locker wait for that, those of a process that was stopped, and those where Redis is slow or refuses; none for much
// longer than Delay. An error means that ctx has ended, or that the Locker is closed. The caller has called Life.Enter.
func (r *Reader) Know(ctx context.Context, key string) error {
	began := time.Now()
	if _, ours := r.inBraces(key); !ours || r.view.Load().isKnown(began) {
		return nil
	}
	return r.await(ctx, key, func(last read) (bool, error) {
		v, now := r.view.Load(), time.Now()
		// A read that was sent before this call may have been refused for a cause that is gone.
		return v.isKnown(now) || v.isBlind(now) && (!v.refused || !last.sent.Before(began)), nil
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

// Fetch reads the controls: every change made before the call is in force for this Locker when it returns.
func (r *Reader) Fetch(ctx context.Context) (*State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.o.Life.Enter(); err != nil {
		return nil, err
	}
	defer r.o.Life.Done()
	began := time.Now()
	bound, cancel := context.WithTimeout(ctx, redisx.Timeout)
	defer cancel()
	err := r.await(bound, r.Keys[0], func(last read) (bool, error) {
		if state := r.Latest(); state != nil && !state.sent.Before(began) {
			return true, nil
		}
		return last.err != nil && !last.sent.Before(began) && !mayBeRead(last.err), last.err
	})
	if err != nil {
		return nil, err
	}
	return r.Latest(), nil
}

// await waits until done, given the read that ended last, or until ctx ends. It asks for a read unless the first look
// is done. The caller has called Life.Enter.
func (r *Reader) await(ctx context.Context, key string, done func(last read) (bool, error)) error {
	for first := true; ; first = false {
		r.mu.Lock()
		news, last := r.news, r.last
		r.mu.Unlock()
		is, err := done(last)
		switch {
		case is && err == nil:
			return nil
		case is:
			return redisx.Failed("read the controls for", key, err)
		case first:
			r.start()
		}
		select {
		case <-news:
		case <-ctx.Done():
			return redisx.Failed("read the controls for", key, redisx.LeftAtEndOf(ctx))
		case <-r.o.Life.Closing.Done():
			return life.ErrClosed
		}
	}
}

// start makes run begin a read, and starts run before if that is needed. The caller has called Life.Enter.
func (r *Reader) start() {
	r.mu.Lock()
	if !r.running {
		r.running = true
		r.o.Life.Branch(r.run)
	}
	r.mu.Unlock()
	r.ReadSoon()
}

// ReadSoon makes run, if started, begin a read.
func (r *Reader) ReadSoon() {
	select {
	case r.soon <- struct{}{}:
	default: // a read is asked for already, and it will begin after this call
	}
}

// run reads the controls when it is asked to, and again and again after that, until Close.
func (r *Reader) run() {
	results := make(chan read, mostReads) // so that no read waits for run
	// when run last did something: ReadEvery ago at most, unless the process was stopped
	awake := time.Now()
	// when the latest read was sent; since when a read is under way and none succeeds
	var newest, unread time.Time
	underWay := 0
	timer := time.NewTimer(ReadEvery)
	defer timer.Stop()
	for {
		var ended *read
		select {
		case <-timer.C:
		case <-r.soon:
		case result := <-results:
			ended = &result
		case <-r.o.Life.Closing.Done():
			return // callers that wait see closing, too
		}
		now := time.Now()
		if Old(awake, now) && !unread.IsZero() {
			unread = now // it has not waited while it was stopped
		}
		awake = now
		if ended != nil {
			underWay--
			r.sawRead(*ended, now)
			switch {
			case ended.err != nil:
				timer.Reset(readRetry)
			case Old(ended.sent, now): // the next one begins when it is overdue
			default:
				// Where replies take long the next read begins soon, so that its reply comes before this one is too old.
				next := max(readOverdue, ReadEvery-now.Sub(ended.sent))
				timer.Reset(next - now.Sub(newest))
				if unread = now; underWay == 0 {
					unread = time.Time{}
				}
			}
		}
		if !unread.IsZero() && now.Sub(unread) > Delay {
			r.turnBlind(now, false, errLate)
		}
		if ended != nil {
			continue
		}
		timer.Reset(readOverdue)
		if underWay < mostReads {
			underWay++
			newest = now
			if unread.IsZero() {
				unread = now
			}
			r.o.Life.Branch(func() { results <- r.read(now) })
		}
	}
}

var errLate = fmt.Errorf("no reply within %s", Delay)

func (r *Reader) read(sent time.Time) read {
	reply, err := r.call(r.o.Life.Closing, readScript, mostRead)
	if err != nil {
		return read{sent: sent, err: err}
	}
	state, err := r.parse(reply, r.Latest())
	if err == nil {
		state.sent = sent
	}
	return read{sent, state, err}
}

func (r *Reader) call(ctx context.Context, s *redisx.Script, args ...any) (any, error) {
	reply, err := r.o.Conn.Run(ctx, s, r.Keys, args...)
	if redisx.IsWrongType(err) {
		err = fmt.Errorf("something else than controls is stored under %q: look at it with TYPE, and remove it with DEL, "+
			"or give the programs another Prefix: %w", r.Keys[0], err)
	}
	return reply, err
}

func (r *Reader) sawRead(ended read, now time.Time) {
	before := r.view.Load()
	switch {
	case before.state != nil && !ended.sent.After(before.state.sent): // a later read has succeeded
		return
	case ended.err == nil:
		next := &view{state: ended.state, inForce: ended.state.Orders()}
		switch {
		case Old(ended.sent, now): // else callers would find it neither known nor blind until run turns it blind again
			next.blind, next.refused = before.blind, before.refused
		case r.warned:
			r.warned = false
			r.o.Log.Info("automutex: the controls can be read again", "key", r.Keys[0])
		}
		r.view.Store(next)
		r.sawChange(before, next)
	case r.o.Life.Closing.Err() == nil && !mayBeRead(ended.err) && !Old(ended.sent, now):
		// one that took longer says nothing of now
		r.turnBlind(now, errors.Is(ended.err, errManyControls) || redisx.IsServers(ended.err), ended.err)
	}
	r.tell(&ended)
}

// mayBeRead reports whether a failed read may succeed soon: the server is loading, or the like.
func mayBeRead(err error) bool { return redisx.IsServers(err) && redisx.IsTransient(err) }

// turnBlind has callers know that the controls cannot be read, and logs that once until they can.
func (r *Reader) turnBlind(now time.Time, refused bool, err error) {
	v := *r.view.Load()
	wasKnown := v.isKnown(now)
	v.blind, v.refused = now, refused
	r.view.Store(&v)
	r.tell(nil)
	if r.warned || wasKnown && !refused { // the next read may succeed in time
		return
	}
	r.warned = true
	obeyed := "this process obeys none until they can"
	if v.state != nil {
		obeyed = "this process obeys those that it has read before"
	}
	r.o.Log.Error("automutex: the controls cannot be read; "+obeyed, "key", r.Keys[0], "error", err)
}

// tell wakes those who wait. ended: the read that has ended, or nil.
func (r *Reader) tell(ended *read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended != nil {
		r.last = *ended
	}
	close(r.news)
	r.news = make(chan struct{})
}

// sawChange logs orders that cannot be read, came into force or ended; if any, it calls Changed.
func (r *Reader) sawChange(before, now *view) {
	for name, f := range now.state.fields {
		if f.wrong != nil && (before.state == nil || before.state.fields[name] != f) {
			r.o.Log.Error("automutex: a control cannot be read and is not in force; the others are", "key", r.Keys[0],
				"field", name, "problem", f.wrong, "fix", "remove it with HDEL KEY FIELD")
		}
	}
	if slices.Equal(before.inForce, now.inForce) {
		return
	}
	for _, o := range now.inForce {
		if !slices.Contains(before.inForce, o) {
			r.o.Log.Warn("automutex: a control is in force", "target", o.Target, "order", o.String())
		}
	}
	for _, o := range before.inForce {
		isSame := func(its Order) bool { return its.Target == o.Target && its.Kind == o.Kind }
		if !slices.ContainsFunc(now.inForce, isSame) {
			r.o.Log.Info("automutex: a control has ended", "target", o.Target, "was", o.String())
		}
	}
	r.o.Changed(now.state)
}
