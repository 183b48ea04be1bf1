package simulate

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// errAway is what dialing gives during a partition, and after a death.
var errAway = errors.New("simulate: no route to Redis")

// endpoint is one client of one process, as the network knows it.
type endpoint struct {
	redis *redisServer
	proc  int    // -1: the producer
	kind  string // as a faultPlan's Client

	began time.Time  // never changes
	mu    sync.Mutex // guards what follows; not held while a command runs
	dice  *rand.Rand // for delays and lost messages
	count int        // commands that came, those of a set-up not counted
	evals int        // scripts among them, but for those that read the controls
	// controlReads is how often the controls were read.
	controlReads int
	armed        []faultPlan
	active       []activeFault
	conns        map[*conn]struct{}
	gone         bool // its process has died
}

// activeFault is one that has begun.
type activeFault struct {
	kind  faultKind
	since time.Time
	until time.Time
}

func (e *endpoint) latency() time.Duration {
	most := e.redis.latency
	if most == 0 {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Duration(e.dice.Int64N(int64(most)) + 1)
}

// loses tells whether a Pub/Sub message is lost.
func (e *endpoint) loses() bool {
	if e.redis.losing == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dice.Float64() < e.redis.losing
}

// dial is redis.Options.Dialer. Neither it nor the set-up of a connection takes virtual
// time: go-redis does both with the mutex of a subscription held, and a goroutine that
// waits for a mutex keeps virtual time from going on. So where a dial would hang it
// fails at once.
func (e *endpoint) dial() (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone || e.inWindow(apart, hung, suspended) != "" || time.Now().Before(e.redis.frozenUntil()) {
		return nil, errAway
	}
	c := &conn{end: e, wake: make(chan struct{}, 1)}
	c.peer = e.redis.peer(c)
	e.conns[c] = struct{}{}
	return c, nil
}

// inWindow is the first fault, of these kinds, that goes on; empty: none does. Callers hold mu.
func (e *endpoint) inWindow(kinds ...faultKind) faultKind {
	for _, a := range e.active {
		if slices.Contains(kinds, a.kind) && time.Now().Before(a.until) {
			return a.kind
		}
	}
	return ""
}

// suffers tells whether a fault of the kind goes on.
func (e *endpoint) suffers(kind faultKind) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inWindow(kind) != ""
}

// begin starts a fault, and gives the connections that it breaks. Callers hold mu.
func (e *endpoint) begin(f faultPlan) (broken []*conn) {
	now := time.Now()
	e.active = append(e.active, activeFault{f.Kind, now, now.Add(f.For)})
	switch f.Kind {
	case setup, apart, split:
		broken = slices.Collect(maps.Keys(e.conns))
	case frozen:
		e.redis.freeze(now.Add(f.For))
	}
	e.redis.faulted()
	return broken
}

// start begins a fault that has a time and no command.
func (e *endpoint) start(f faultPlan) {
	e.mu.Lock()
	broken := e.begin(f)
	e.mu.Unlock()
	for _, c := range broken {
		c.sever()
	}
}

// heal ends all faults, and those that would come.
func (e *endpoint) heal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.armed = nil
	for i := range e.active {
		if e.active[i].until.After(now) {
			e.active[i].until = now
		}
	}
}

// die breaks everything for good.
func (e *endpoint) die() {
	e.mu.Lock()
	e.gone = true
	e.mu.Unlock()
	e.breakAll()
}

// breakAll breaks the connections that there are.
func (e *endpoint) breakAll() {
	e.mu.Lock()
	broken := slices.Collect(maps.Keys(e.conns))
	e.mu.Unlock()
	for _, c := range broken {
		c.sever()
	}
}

// fate says what becomes of a command that came; broken are connections that break
// with it. An empty fate: it is executed.
func (e *endpoint) fate(command []string) (fate faultKind, lasts time.Duration, broken []*conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := command[0]
	if isSetup(name) {
		if e.inWindow(setup) != "" && (name == "HELLO" || name == "AUTH") {
			return setup, 0, nil
		}
		return "", 0, nil
	}
	counted := e.note(command)
	for i := 0; i < len(e.armed) && counted; i++ {
		f := e.armed[i]
		switch {
		case f.Saying == "" && f.Nth != e.count:
			continue
		case f.Saying == "":
		case time.Since(e.began) < f.At || !slices.ContainsFunc(command, func(word string) bool { return strings.HasSuffix(word, f.Saying) }):
			continue
		default:
			e.armed = slices.Delete(e.armed, i, i+1)
		}
		if f.Kind.spansTime() {
			broken = append(broken, e.begin(f)...)
			continue
		}
		now := time.Now()
		e.active = append(e.active, activeFault{f.Kind, now, now})
		if f.Kind == late {
			e.active = append(e.active, activeFault{arrival, now.Add(f.For), now.Add(f.For)})
		}
		e.redis.faulted()
		return f.Kind, f.For, nil
	}
	return e.inWindow(hung, loading, readOnly, wrapped, misconf, setup, apart), 0, broken
}

// note counts a command, and tells whether a fault may be meant for its number. Callers
// hold mu.
func (e *endpoint) note(command []string) (counted bool) {
	counted = true
	if readsControls(command) {
		// Each Guard reads them all the time: a fault hits some of the first reads.
		e.controlReads++
		counted = e.controlReads <= 3
	} else if strings.HasPrefix(command[0], "EVAL") {
		e.evals++
	}
	if counted {
		e.count++
	}
	return counted
}

// isSetup tells whether a command sets up a connection.
func isSetup(name string) bool {
	return name == "HELLO" || name == "AUTH" || name == "CLIENT" || name == "SELECT"
}

// forget takes a connection off the endpoint's.
func (e *endpoint) forget(c *conn) {
	e.mu.Lock()
	delete(e.conns, c)
	e.mu.Unlock()
	c.peer.hangUp()
}

// client makes a go-redis client. No pool of connections is ever used up: a goroutine
// that waits for one would take a timer that belongs to another world.
func (e *endpoint) client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Dialer:          func(context.Context, string, string) (net.Conn, error) { return e.dial() },
		Password:        password,
		PoolSize:        3000,
		DialerRetries:   1, // each further one would sleep, see dial
		DisableIdentity: true,
		ReadBufferSize:  2048, WriteBufferSize: 2048, PipelineReadBufferSize: 2048, PipelineWriteBufferSize: 2048,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	c.AddHook(slowFailure{e})
	return c
}

// slowFailure has a command take time whose connection could not be made, which the dial
// itself cannot, and any of asynq's that is refused: asynq asks again at once.
type slowFailure struct{ end *endpoint }

// DialHook is part of redis.Hook and changes nothing.
func (s slowFailure) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is part of redis.Hook.
func (s slowFailure) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil && !isSetup(strings.ToUpper(cmd.Name())) {
			s.waitOut(err)
		}
		return err
	}
}

// ProcessPipelineHook is part of redis.Hook.
func (s slowFailure) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		s.waitOut(err)
		return err
	}
}

func (s slowFailure) waitOut(err error) {
	if err == nil || err == redis.Nil {
		return
	}
	var said redis.Error
	if s.end.kind == "asynq" && errors.As(err, &said) && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") || errors.Is(err, errAway) || strings.Contains(err.Error(), "WRONGPASS") {
		time.Sleep(100 * time.Millisecond)
	}
}

// What follows is about a process that is suspended, as by SIGSTOP or with its virtual machine, and goes on later. Until then
// nothing that it sends arrives, nothing reaches it, and none of its handlers ends. All of that happens when it goes on.
//
// Not covered: the timers of the library, of asynq and of go-redis fire meanwhile, since all processes of a bubble have one
// clock. So contexts end in time that would end when the process goes on, calls give up that would get their replies, and
// what was tried again arrives as often as it was sent. TestProcess_stopped in examples/trust suspends real processes.

// suspensions draws processes that are suspended.
func (d *drawer) suspensions(length time.Duration) {
	s := d.aside("suspended")
	if !s.chance(0.2) {
		return
	}
	for range 1 + s.IntN(2) {
		s.p.Faults = append(s.p.Faults, faultPlan{
			Kind: suspended, Proc: s.IntN(len(s.p.Procs)), At: s.span(0, int(length/time.Millisecond)), For: pick(s, s.span(200, 4000), s.span(2000, 40_000)),
		})
	}
}

// goesOn returns when the process is not suspended, or dead.
func (p *process) goesOn() {
	for {
		left := time.Until(p.locks.suspendedUntil())
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-p.dead:
			timer.Stop()
			return
		}
	}
}

// suspendedUntil is when the endpoint's process goes on; in the past: it is not suspended.
func (e *endpoint) suspendedUntil() (until time.Time) {
	for _, a := range e.faults() {
		if a.kind == suspended && a.until.After(until) {
			until = a.until
		}
	}
	return until
}
