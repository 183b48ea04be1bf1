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

// controlsEvery is how often the controls are read. A change is to be in force in
// every process within 2 s, also where no message of it arrives.
const controlsEvery = 1500 * time.Millisecond

// controlReader keeps what a Locker knows of the controls. One goroutine, run, reads
// them and is the only one that sets state. It begins with the first call that needs to
// know them, and ends at Close.
//
// Without controls a lock costs one atomic load. Once they were read, what was read
// last is obeyed until they can be read again.
type controlReader struct {
	locker   *Locker
	keys     []string // exactly one
	keyStart string   // of every lock's key
	channel  string   // of the messages that tell of a change
	changed  func(inForce []Control)

	state atomic.Pointer[controlState] // nil: not read yet

	mu      sync.Mutex        // guards what follows; never held across I/O
	running bool              // run was started
	current *controlsRead     // the read that is under way; nil: none
	next    *controlsRead     // the one after it, for those who wait for it; nil: nobody does
	logged  map[string]string // unreadable entries that were logged: target to entry

	soon    chan struct{} // of capacity 1: run is to read at once
	inForce []Control     // what was told last; run's alone
	refused bool          // Redis refused the last read, which was logged; run's alone
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

// knowControls returns when the controls were read once: at once, but for the first
// calls of a Locker. Without knowing them a paused lock would be asked for. The caller
// is counted in.
func (m *Lock) knowControls(ctx context.Context) error {
	if m.locker.controls.state.Load() != nil || !strings.HasSuffix(m.Key(), "}") {
		return nil // of a pool's key, or a claim's, there are no controls
	}
	return m.locker.controls.await(ctx, m.Key(), false)
}

// enterControlled is knowControls for callers that are not counted in.
func (m *Lock) enterControlled(ctx context.Context) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.locker.work.Done()
	return m.knowControls(ctx)
}

// obeyNow returns when a change that was made before is in force for this Locker.
func (l *Locker) obeyNow(ctx context.Context) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.work.Done()
	return l.controls.await(ctx, l.controls.keys[0], true)
}

// await waits for a read of the controls; fresh: for one that begins after the call.
// key is what an error names. The caller is counted in. The read goes on when ctx ends.
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

// readSoon has the controls read at once, if the reader runs.
func (c *controlReader) readSoon() {
	select {
	case c.soon <- struct{}{}:
	default: // that is asked for already, and the read begins after now
	}
}

// run reads the controls again and again until Close. Whoever asks for a read sets
// next before it fills soon, and run empties soon before it takes next: so a read that
// was asked for is never left out.
func (c *controlReader) run() {
	timer := time.NewTimer(controlsEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.soon:
		case <-c.locker.closing.Done():
			return // whoever waits for a read sees that, too
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

// readOnce reads the controls and puts them in force. On an error those that were read
// before stay.
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

// readControls reads the controls. Entries that before has, too, are taken from there.
// The caller is counted in.
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

// refuses reports whether Redis will not let this Locker read the controls, however often
// it tries: the user has no right to, or something else is stored under their key, or far
// too much. A Locker that has read none until then has none, until a read succeeds: a
// program that runs with the rights of an older version goes on.
func refuses(err error) bool {
	var said redis.Error
	return errors.Is(err, errManyControls) || errors.As(err, &said) && !transient(err)
}

// noteRefused logs the first of several reads that Redis refuses.
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

// noteReadable logs the end of what noteRefused has logged.
func (c *controlReader) noteReadable() {
	if c.refused {
		c.refused = false
		c.locker.log.Info("automutex: the controls can be read again", "key", c.keys[0])
	}
}

// noteChange logs what came into force and what has ended, tells OnControls, and has
// waiters ask again. The pause and the limit of a target are logged each by itself.
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

// attributes are those of a log line.
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

// loggedMost is how many unreadable entries are remembered as logged.
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
