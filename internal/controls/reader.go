package controls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

// How the controls are read. A change must be in force in every process within Delay,
// even if its message does not arrive, and if the connection of one read hangs.
const (
	// Delay is the longest time until every process that reaches Redis obeys a change.
	Delay = 2 * time.Second
	// ReadEvery is how often the controls are read.
	ReadEvery = 1500 * time.Millisecond
	// controlsOverdue is how long a read may be without a result before the next one begins
	// beside it, on another connection.
	controlsOverdue = 300 * time.Millisecond
	// controlsRetry is the pause after a read that failed.
	controlsRetry = 250 * time.Millisecond
	// controlsBound bounds one read, with exchange.AnswerGrace a second. Calls of a Locker that
	// has read no controls, or none within Delay, wait for that long at most.
	controlsBound = time.Second - exchange.AnswerGrace
	// maxControlReads is how many reads are under way at most.
	maxControlReads = 4
)

// Reader reads the controls for a Locker and keeps the last state that it has read.
// One goroutine, run, begins all reads, takes their results and is the only one that sets
// state. It begins with the first call that needs the controls, and ends at Close. Each read has
// a goroutine of its own, which ends with the read.
//
// If there are no controls, a lock pays one atomic load and a look at the clock for them. A
// state that is older than Delay is not relied on: the process may have been stopped.
// Then a call waits for a read, and what runs in the background grants to nobody. If reads
// fail, the Locker obeys the last state that it has read, or no controls if it has read none.
type Reader struct {
	life     *life.Life
	conn     *exchange.Conn
	log      *slog.Logger
	prefix   string
	secret   *string          // behind a pointer it is not printed
	owner    string           // who gives the orders of this process; escaped
	Keys     []string         // exactly one
	keyStart string           // the beginning of every lock's key
	Channel  string           // of the messages that announce a change
	changed  func(now *State) // called by run after each change of what is in force

	state   atomic.Pointer[State]     // nil: not read yet
	failed  atomic.Pointer[time.Time] // when the last read failed that had no reply; nil: never
	refused atomic.Bool               // Redis refused the last read

	mu      sync.Mutex        // guards what follows; never held across I/O
	running bool              // run was started
	ended   chan struct{}     // closed when the next result is taken; then there is a new one
	last    controlsRead      // the read that has ended last
	logged  map[string]string // unreadable entries that were logged: target to entry

	soon    chan struct{} // of capacity 1; a value asks run to begin a read
	inForce []Order       // the orders that noteChange saw last; only run uses it
	warned  bool          // a failed read was logged, and none has succeeded since; only run uses it
}

// controlsRead is one read and its result.
type controlsRead struct {
	sent  time.Time // just before it was sent
	state *State
	err   error
}

// Options are what a Reader is made of. changed is called after each change of what is in
// force, and first if there is anything; one call at a time.
type Options struct {
	Life    *life.Life
	Conn    *exchange.Conn
	Log     *slog.Logger
	Prefix  string
	Secret  *string
	Owner   string // escaped
	Changed func(now *State)
}

// New makes a Reader. It reads nothing before the first call that needs the controls.
func New(o Options) *Reader {
	return &Reader{
		life: o.Life, conn: o.Conn, log: o.Log, prefix: o.Prefix, secret: o.Secret, owner: o.Owner, changed: o.Changed,
		Keys:     []string{o.Prefix + ":{" + keys.Controls + "}"},
		keyStart: o.Prefix + ":{",
		Channel:  o.Prefix + ":control",
		ended:    make(chan struct{}),
		soon:     make(chan struct{}, 1),
		logged:   map[string]string{},
	}
}

// Latest returns the state that was read last; nil: none yet.
func (c *Reader) Latest() *State { return c.state.Load() }

// Old reports whether t is more than Delay before now, by the monotonic clock or by the wall
// clock: the first one stands still while a virtual machine is suspended.
func Old(t, now time.Time) bool {
	return now.Sub(t) > Delay || now.Round(0).Sub(t.Round(0)) > Delay
}

// isKnown reports whether the state is young enough to rely on.
func (c *Reader) isKnown(now time.Time) bool {
	state := c.state.Load()
	return state != nil && !Old(state.sent, now)
}

// hasFailed reports whether a read had no reply within the last Delay.
func (c *Reader) hasFailed(now time.Time) bool {
	at := c.failed.Load()
	return at != nil && !Old(*at, now)
}

// isBehind reports whether there is a state, but one too old to rely on, while reads do not
// fail: a read will say soon what applies.
func (c *Reader) isBehind() bool {
	now := time.Now()
	return c.state.Load() != nil && !c.isKnown(now) && !c.hasFailed(now) && !c.refused.Load()
}

// Know returns when the controls are known that were in force Delay ago, or cannot be read: after
// a second at most. Only the first calls of a Locker wait for that, and those of a process that was stopped.
// An error means that ctx has ended, or that the Locker is closed. key is the lock's, for the error. The caller has
// called Life.Enter.
func (c *Reader) Know(ctx context.Context, key string) error {
	now := time.Now()
	producers := strings.Contains(key, "}:claim") // their lock: they have no controls and are never closed
	if producers || c.isKnown(now) || c.hasFailed(now) {
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, controlsBound+exchange.AnswerGrace)
	defer cancel()
	switch err := c.await(bound, now.Add(-Delay)); {
	case errors.Is(err, life.ErrClosed):
		return err
	case err != nil && ctx.Err() != nil:
		return exchange.Failed("read the controls for", key, exchange.LeftAtEndOf(ctx)) // err may be of a read's own bound
	case bound.Err() != nil && !c.refused.Load():
		// Nobody replied for a second. The next calls do not wait for that again; but a process that
		// was stopped meanwhile has not asked for that long.
		if end := time.Now(); !Old(now, end) {
			c.failed.Store(&end)
		}
	}
	return nil
}

// ObeyNow returns when every change that was made before the call is in force for this Locker.
func (c *Reader) ObeyNow(ctx context.Context) error {
	if err := c.life.Enter(); err != nil {
		return err
	}
	defer c.life.Done()
	bound, cancel := context.WithTimeout(ctx, exchange.Timeout)
	defer cancel()
	err := c.await(bound, time.Now())
	if err == nil || errors.Is(err, life.ErrClosed) {
		return err
	}
	if ctx.Err() != nil {
		err = exchange.LeftAtEndOf(ctx)
	}
	return exchange.Failed("read the controls for", c.Keys[0], err)
}

// Slots is the limit that the scripts get: how many may hold the lock at once. Nothing else
// decides that. It is the number of a control, or else limit, the number in the
// program, which also counts if keepsLimit is set. It is 0 while the lock is paused, so that the scripts grant
// the lock to nobody and keep the line; also for the moment until the controls are read in a process that was
// stopped.
func (c *Reader) Slots(key string, limit int, keepsLimit bool) int {
	if c.isBehind() {
		return 0
	}
	ordered, pause := c.Of(key)
	switch {
	case pause != nil:
		return 0
	case ordered == 0 || keepsLimit:
		return limit
	}
	return ordered
}

// Of returns the orders that are in force for the lock with that Redis key, as State.of does.
func (c *Reader) Of(key string) (limit int, pause *Order) {
	state := c.state.Load()
	if state == nil || len(state.targets) == 0 {
		return 0, nil
	}
	text, ours := strings.CutPrefix(key, c.keyStart)
	if !ours {
		return 0, nil
	}
	return state.of(text)
}

// PauseOf returns the pause of the lock with that Redis key, nil if it is not paused, and how long it
// lasts, 0 if it has no end.
func (c *Reader) PauseOf(key string) (pause *Order, left time.Duration) {
	if _, pause = c.Of(key); pause == nil {
		return nil, 0
	}
	return pause, c.state.Load().pauseLeft(pause)
}

// await waits until a read succeeds that was sent at since or later, or until ctx ends. A read
// that is sent during the call and fails ends the wait, too, unless a repeated one may succeed;
// one that was sent earlier may have been refused for a cause that is gone. The caller has called Life.Enter.
func (c *Reader) await(ctx context.Context, since time.Time) error {
	began := time.Now()
	for first := true; ; first = false {
		c.mu.Lock()
		if !c.running {
			c.running = true
			c.life.Branch(c.run)
		}
		ended, last := c.ended, c.last
		c.mu.Unlock()
		if state := c.state.Load(); state != nil && !state.sent.Before(since) {
			return nil
		}
		if first {
			c.ReadSoon()
		} else if last.err != nil && !last.sent.Before(began) && !mayBeRead(last.err) {
			return last.err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			if last.err != nil && !last.sent.Before(since) {
				return last.err
			}
			return exchange.LeftAtEndOf(ctx)
		case <-c.life.Closing.Done():
			return life.ErrClosed
		}
	}
}

// mayBeRead reports whether a read that failed with err may succeed soon: the server replied
// that it is loading, or the like.
func mayBeRead(err error) bool {
	var said redis.Error
	return errors.As(err, &said) && exchange.Transient(err)
}

// ReadSoon makes run begin a read, if run has been started.
func (c *Reader) ReadSoon() {
	select {
	case c.soon <- struct{}{}:
	default: // a read is asked for already, and it will begin after this call
	}
}

// run reads the controls again and again until Close. A read that is asked for while another
// one is under way begins when that one has ended, or is overdue.
func (c *Reader) run() {
	results := make(chan controlsRead, maxControlReads) // so that no read waits for run
	var newest time.Time                                // when the latest read was sent
	underWay, again := 0, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		begin := true
		select {
		case <-timer.C:
		case <-c.soon:
			if again = underWay > 0 && time.Since(newest) < controlsOverdue; again {
				continue
			}
		case read := <-results:
			underWay--
			c.noteRead(read)
			if begin = again; begin {
				break
			}
			if next := ReadEvery - time.Since(newest); read.err == nil && read.sent.Equal(newest) {
				timer.Reset(max(next, 0))
			} else if underWay == 0 && read.err != nil {
				timer.Reset(controlsRetry)
			}
		case <-c.life.Closing.Done():
			return // callers that wait for a read see closing, too
		}
		if !begin {
			continue
		}
		again = false
		timer.Reset(controlsOverdue)
		if underWay == maxControlReads {
			continue
		}
		underWay++
		sent := time.Now()
		newest = sent
		c.life.Branch(func() { results <- c.read(sent) })
	}
}

// read reads the controls once, within a second. It begins at sent.
func (c *Reader) read(sent time.Time) controlsRead {
	bound, cancel := context.WithTimeout(c.life.Closing, controlsBound)
	defer cancel()
	state, err := c.readControls(bound, c.state.Load())
	if err == nil {
		state.sent = sent
	}
	return controlsRead{sent, state, err}
}

// noteRead takes the result of a read: it puts what was read in force, or leaves in force what
// was read before. Then it wakes those who wait.
func (c *Reader) noteRead(read controlsRead) {
	before := c.state.Load()
	switch {
	case before != nil && !read.sent.After(before.sent): // a later read has succeeded
		return
	case read.err == nil:
		c.state.Store(read.state)
		c.failed.Store(nil)
		c.refused.Store(false)
		c.noteReadable()
		c.noteChange(read.state)
	case c.life.Closing.Err() != nil:
	default:
		refused := refuses(read.err)
		c.refused.Store(refused)
		if !refused {
			now := time.Now()
			c.failed.Store(&now)
		}
		if refused && !mayBeRead(read.err) || before == nil {
			c.noteUnreadable(before, read.err)
		}
	}
	c.mu.Lock()
	c.last = read
	close(c.ended)
	c.ended = make(chan struct{})
	c.mu.Unlock()
}

// readControls reads the controls. It reuses the entries of before that have not changed. The
// caller has called Life.Enter, or is the reader.
func (c *Reader) readControls(ctx context.Context, before *State) (*State, error) {
	reply, err := c.conn.Run(ctx, wire.ControlReadScript, c.Keys, []any{mostRead})
	switch {
	case exchange.WrongType(err):
		return nil, fmt.Errorf("something else than controls is stored under %q: look at it with TYPE, and remove it with DEL, or give the programs another Prefix: %w", c.Keys[0], err)
	case err != nil:
		return nil, err
	}
	return parseControls(reply, before)
}

// refuses reports whether err means that Redis has refused the read: the user has no right to
// read the controls or is not let in, their key has another type, there are too many, or the
// server is loading. A refused read has read nothing, so the next call reads again, and goes on
// if that fails, too.
func refuses(err error) bool {
	var said redis.Error
	return errors.Is(err, errManyControls) || errors.As(err, &said)
}
