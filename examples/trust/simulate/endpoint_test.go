package simulate

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// errAway is what dialing gives during a partition, and after a death.
var errAway = errors.New("simulate: no route to Redis")

// endpoint is one client of one process, as the network knows it.
type endpoint struct {
	redis *redisServer
	name  string
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
	away := e.gone || e.inWindow(apart) || e.inWindow(hung) || e.inWindow(suspended) || time.Now().Before(e.redis.frozenUntil())
	if !away {
		c := &conn{end: e, wake: make(chan struct{}, 1)}
		c.peer = e.redis.peer(c)
		e.conns[c] = struct{}{}
		e.mu.Unlock()
		return c, nil
	}
	e.mu.Unlock()
	return nil, errAway
}

// inWindow tells whether a fault of the kind goes on. Callers hold mu.
func (e *endpoint) inWindow(kind faultKind) bool {
	for _, a := range e.active {
		if a.kind == kind && time.Now().Before(a.until) {
			return true
		}
	}
	return false
}

// begin starts a fault, and gives the connections that it breaks. Callers hold mu.
func (e *endpoint) begin(f faultPlan) (broken []*conn) {
	now := time.Now()
	e.active = append(e.active, activeFault{f.Kind, now, now.Add(f.For)})
	switch f.Kind {
	case setup, apart, split:
		for c := range e.conns {
			broken = append(broken, c)
		}
	case frozen:
		e.redis.freeze(now.Add(f.For))
	}
	e.redis.faulted(f.Kind)
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
	var broken []*conn
	for c := range e.conns {
		broken = append(broken, c)
	}
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
		if e.inWindow(setup) && (name == "HELLO" || name == "AUTH") {
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
		e.redis.faulted(f.Kind)
		return f.Kind, f.For, nil
	}
	for _, a := range e.active {
		if !time.Now().Before(a.until) {
			continue
		}
		switch a.kind {
		case hung, loading, readOnly, wrapped, misconf, setup, apart:
			return a.kind, 0, broken
		}
	}
	return "", 0, broken
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
