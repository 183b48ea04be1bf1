package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/keytext"
)

// controlsEvery is how often the controls are read. A change must be in force in every
// process within 2 s, even if the message of the change does not arrive.
const controlsEvery = 1500 * time.Millisecond

// controlReader reads the controls for a Locker and keeps the last state that it has read.
// One goroutine, run, reads them and is the only one that sets state. It begins with the
// first call that needs the controls, and ends at Close.
//
// If there are no controls, a lock pays one atomic load for them. If a read fails, the
// Locker obeys the state of the last successful read.
type controlReader struct {
	locker   *Locker
	keys     []string // exactly one
	keyStart string   // the beginning of every lock's key
	channel  string   // of the messages that announce a change
	changed  func(inForce []Control)

	state atomic.Pointer[controlState] // nil: not read yet

	mu      sync.Mutex        // guards what follows; never held across I/O
	running bool              // run was started
	current *controlsRead     // the read that is under way; nil: none
	next    *controlsRead     // the read after it; nil: nobody waits for that one
	logged  map[string]string // unreadable entries that were logged: target to entry

	soon    chan struct{} // of capacity 1; a value asks run to read at once
	inForce []Control     // the controls that noteChange saw last; only run uses it
	refused bool          // Redis refused the last read, which was logged; only run uses it
}

// controlsRead is one read that somebody waits for.
type controlsRead struct {
	done chan struct{} // closed by run when err is set
	err  error
}

func newControlReader(l *Locker, changed func([]Control)) *controlReader {
	return &controlReader{
		locker:   l,
		keys:     []string{l.prefix + ":{" + keytext.Controls + "}"},
		keyStart: l.prefix + ":{",
		channel:  l.prefix + ":control",
		changed:  changed,
		soon:     make(chan struct{}, 1),
		logged:   map[string]string{},
	}
}

// knowControls returns when the controls have been read once. Only the first calls of a Locker
// wait for that; without it they would ask for a lock that is paused. The caller has called
// Locker.enter.
func (m *Lock) knowControls(ctx context.Context) error {
	if m.locker.controls.state.Load() != nil || !strings.HasSuffix(m.Key(), "}") {
		return nil // there are no controls for a pool or a claim
	}
	return m.locker.controls.await(ctx, m.Key(), false)
}

// enterControlled is knowControls for callers that have not called Locker.enter.
func (m *Lock) enterControlled(ctx context.Context) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.locker.work.Done()
	return m.knowControls(ctx)
}

// obeyNow returns when every change that was made before the call is in force for this Locker.
func (l *Locker) obeyNow(ctx context.Context) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.work.Done()
	return l.controls.await(ctx, l.controls.keys[0], true)
}

// await waits for a read of the controls, with fresh for one that begins after the call. An
// error names key. The caller has called Locker.enter. The read goes on when ctx ends.
func (c *controlReader) await(ctx context.Context, key string, fresh bool) error {
	c.mu.Lock()
	if !c.running {
		c.running = true
		c.locker.branch(c.run)
	}
	read := c.current
	if fresh || read == nil {
		if c.next == nil {
			c.next = &controlsRead{done: make(chan struct{})}
		}
		read = c.next
	}
	c.mu.Unlock()
	c.readSoon()
	select {
	case <-read.done:
		if read.err != nil {
			return backendError("read the controls for", key, read.err)
		}
		return nil
	case <-ctx.Done():
		return backendError("read the controls for", key, exchange.LeftAtEndOf(ctx))
	case <-c.locker.closing.Done():
		return ErrClosed
	}
}

// readSoon makes run read the controls at once, if run has been started.
func (c *controlReader) readSoon() {
	select {
	case c.soon <- struct{}{}:
	default: // a read is asked for already, and it will begin after this call
	}
}

// run reads the controls again and again until Close. A caller that asks for a read sets next
// before it fills soon. run empties soon before it takes next. So run never misses a read
// that was asked for.
func (c *controlReader) run() {
	timer := time.NewTimer(controlsEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.soon:
		case <-c.locker.closing.Done():
			return // callers that wait for a read see closing, too
		}
		c.mu.Lock()
		if c.next == nil {
			c.next = &controlsRead{done: make(chan struct{})}
		}
		read := c.next
		c.current, c.next = read, nil
		c.mu.Unlock()

		read.err = c.readOnce()

		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
		close(read.done)
		timer.Reset(controlsEvery)
	}
}

// readOnce reads the controls and puts them in force. After an error the controls that were
// read before stay in force.
func (c *controlReader) readOnce() error {
	before := c.state.Load()
	state, err := c.locker.readControls(c.locker.closing, before)
	switch {
	case err == nil:
		c.noteReadable()
	case !refuses(err):
		return err
	default:
		c.noteRefused(before, err)
		if before != nil {
			return err
		}
		state = &controlState{serverTime: time.Now(), localTime: time.Now()}
	}
	c.state.Store(state)
	c.noteChange(state)
	return nil
}

// readControls reads the controls. It reuses the entries of before that have not changed. The
// caller has called Locker.enter, or is the reader.
func (l *Locker) readControls(ctx context.Context, before *controlState) (*controlState, error) {
	reply, err := l.conn.Run(ctx, controlReadScript, l.controls.keys, []any{mostRead})
	switch {
	case wrongType(err):
		return nil, fmt.Errorf("something else than controls is stored under %q: look at it with TYPE, and remove it with DEL, or give the programs another Prefix: %w", l.controls.keys[0], err)
	case err != nil:
		return nil, err
	}
	return parseControls(reply, before)
}

// refuses reports whether err means that a repeated read fails too: the user has no right to
// read the controls, their key has another type, or there are too many. A Locker that has
// read no controls before works without controls until a read succeeds. So a program goes on
// whose user has only the rights that an older version needed.
func refuses(err error) bool {
	var said redis.Error
	return errors.Is(err, errManyControls) || errors.As(err, &said) && !transient(err)
}

// noteRefused logs a read that Redis refuses, unless Redis has refused the read before, too.
func (c *controlReader) noteRefused(before *controlState, err error) {
	if c.refused {
		return
	}
	c.refused = true
	obeyed := "this process obeys no pause and no limit until they can"
	if before != nil {
		obeyed = "this process obeys those that it has read before"
	}
	c.locker.log.Error("automutex: the controls cannot be read; "+obeyed, "key", c.keys[0], "error", err)
}

// noteReadable logs the first successful read after one that noteRefused has logged.
func (c *controlReader) noteReadable() {
	if c.refused {
		c.refused = false
		c.locker.log.Info("automutex: the controls can be read again", "key", c.keys[0])
	}
}

// noteChange logs the orders that came into force and those that have ended. If there are
// any, it makes the waiters ask again and calls OnControls. The pause and the limit of a target
// are two orders.
func (c *controlReader) noteChange(now *controlState) {
	c.logUnreadable(now)
	type order struct {
		target string
		pause  bool
	}
	before, inForce := ordersOf(c.inForce), now.inForce()
	was := make(map[order]Control, len(before))
	for _, control := range before {
		was[order{control.Target, control.Paused}] = control
	}
	c.inForce = inForce
	changed := false
	for _, control := range ordersOf(inForce) {
		the := order{control.Target, control.Paused}
		if was[the] != control {
			changed = true
			c.locker.log.Warn("automutex: a control is in force", control.attributes()...)
		}
		delete(was, the)
	}
	for _, control := range before {
		if _, ended := was[order{control.Target, control.Paused}]; ended {
			changed = true
			c.locker.log.Info("automutex: a control has ended", "target", control.Target, "was", control.text())
		}
	}
	if !changed {
		return
	}
	c.locker.line.askAll()
	if c.changed != nil {
		c.locker.callUserFunc("Options.OnControls", func() { c.changed(inForce) })
	}
}

// attributes returns the attributes of a log line about c.
func (c Control) attributes() []any {
	args := []any{"target", c.Target}
	if c.Paused {
		until := "resumed"
		if !c.PausedUntil.IsZero() {
			until = c.PausedUntil.UTC().Format(time.RFC3339)
		}
		args = append(args, "paused until", until)
	}
	if c.Limit > 0 {
		args = append(args, "limit", c.Limit)
	}
	return append(args, "why", c.Why, "by", c.By, "since", c.Since.UTC().Format(time.RFC3339))
}

// loggedMost is how many unreadable entries the reader remembers as logged.
const loggedMost = 100

// logUnreadable logs each entry that cannot be read, once.
func (c *controlReader) logUnreadable(state *controlState) {
	for target, t := range state.targets {
		if t.wrong == nil {
			continue
		}
		c.mu.Lock()
		first := c.logged[target] != t.raw && len(c.logged) < loggedMost
		if first {
			c.logged[target] = t.raw
		}
		c.mu.Unlock()
		if !first {
			continue
		}
		fix := "remove it with automutex resume TARGET, or with HDEL KEY TARGET"
		if errors.Is(t.wrong, errNewerVersion) {
			fix = "update this program, or " + fix
		}
		c.locker.log.Error("automutex: a control cannot be read and is not in force; the others are", "key", c.keys[0], "target", target, "problem", t.wrong, "fix", fix)
	}
}
