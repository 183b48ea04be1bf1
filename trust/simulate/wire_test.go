package simulate

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// faultKind is what goes wrong.
type faultKind string

const (
	// One command.
	refused   faultKind = "refused"    // an error reply, not executed
	replyLost faultKind = "reply lost" // executed, and the connection breaks before the reply
	swallowed faultKind = "swallowed"  // executed, and no reply ever comes
	late      faultKind = "late"       // executed when its caller has given up
	noScript  faultKind = "NOSCRIPT"
	noPerm    faultKind = "NOPERM"
	cut       faultKind = "cut" // the connection breaks before it is executed

	// Everything that the client sends for a time.
	hung        faultKind = "hung"               // vanishes
	loading     faultKind = "LOADING"            //
	readOnly    faultKind = "READONLY"           //
	wrapped     faultKind = "READONLY, wrapped"  // as a script of Redis 6.2 has it
	misconf     faultKind = "MISCONF"            // it cannot write to its disk; go-redis does not try that again
	outOfMemory faultKind = "OOM"                // commands that may need memory are refused
	setup       faultKind = "set-up refused"     // connections break, and new ones are refused by an error reply
	apart       faultKind = "partition"          // connections break, and there are no new ones
	frozen      faultKind = "Redis stands still" // everything waits for its end: for all clients

	// Not of a client.
	backward faultKind = "clock back" // Redis' clock steps back by For
	forward  faultKind = "clock forward"
	// noReplicas has replicas acknowledge nothing for For.
	noReplicas faultKind = "replicas away"
	// arrival is when what was late is executed. No plan has it.
	arrival faultKind = "late arrival"
	stops   faultKind = "stops" // the process: Close beside Shutdown, then it exits
	dies    faultKind = "dies"  // the process
	starts  faultKind = "starts"
)

// spansTime tells whether a fault of the kind lasts, and is no single command's.
func (k faultKind) spansTime() bool {
	switch k {
	case hung, loading, readOnly, wrapped, misconf, outOfMemory, setup, apart, frozen:
		return true
	}
	return false
}

// reply is what a client is answered in place of an execution; empty: nothing.
func (k faultKind) reply() string {
	switch k {
	case refused:
		return "-ERR the simulation refuses this command\r\n"
	case noScript:
		return "-NOSCRIPT No matching script. Please use EVAL.\r\n"
	case noPerm:
		return "-NOPERM this user has no permissions to run this command\r\n"
	case loading:
		return "-LOADING Redis is loading the dataset in memory\r\n"
	case misconf:
		return "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.\r\n"
	case readOnly:
		return "-READONLY You can't write against a read only replica.\r\n"
	case wrapped:
		return "-ERR Error running script (call to f_2d7a5c7a): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.\r\n"
	}
	return ""
}

// errAway is what dialing gives during a partition, and after a death.
var errAway = errors.New("simulate: no route to Redis")

// endpoint is one client of one process, as the network knows it.
type endpoint struct {
	redis *redisServer
	name  string
	proc  int    // -1: the producer
	kind  string // "lock" or "asynq"

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
	severed      int  // connections that the network has broken
	broken       int  // those among them that the client has not closed yet
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
	away := e.gone || e.inWindow(apart) || e.inWindow(hung) || time.Now().Before(e.redis.frozenUntil())
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
	case setup, apart:
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
		if f.Nth != e.count {
			continue
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

// conn is a connection to Redis without any network beneath: a command is executed
// within Write unless it is delayed, and its reply is there for Read.
type conn struct {
	end  *endpoint
	peer *peer

	mu       sync.Mutex
	in       []byte // what was written, up to the last whole command
	out      []byte // what is to be read
	closed   bool   // by the client
	severed  bool   // by the network
	black    bool   // whatever is sent vanishes
	setUp    bool   // the first reply has come, which is that of the set-up
	deadline time.Time
	wake     chan struct{} // Read looks again; buffered, so that nobody waits to send
	// arrives and returns are when the latest command reaches Redis, and its reply
	// the client: later ones come later.
	arrives, returns time.Time
}

var _ net.Conn = (*conn)(nil)

func (c *conn) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Read is part of net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		c.mu.Lock()
		switch {
		case c.closed:
			c.mu.Unlock()
			return 0, net.ErrClosed
		case len(c.out) > 0:
			n := copy(p, c.out)
			c.out = c.out[n:]
			c.mu.Unlock()
			return n, nil
		case c.severed:
			c.mu.Unlock()
			return 0, io.EOF
		}
		deadline := c.deadline
		c.mu.Unlock()
		if deadline.IsZero() {
			<-c.wake
			continue
		}
		left := time.Until(deadline)
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		timer := time.NewTimer(left)
		select {
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Write is part of net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.closed || c.severed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.in = append(c.in, p...)
	var commands [][]string
	for {
		command, n := parseCommand(c.in)
		if command == nil {
			break
		}
		commands = append(commands, command)
		c.in = c.in[n:]
	}
	c.mu.Unlock()
	for _, command := range commands {
		c.send(command)
	}
	return len(p), nil
}

// tcpGivesUp is after how long a kernel breaks a connection on which nothing is acknowledged:
// Linux, with what it has set, after 924 s.
const tcpGivesUp = 924 * time.Second

// send carries a command to its fate.
func (c *conn) send(command []string) {
	command[0] = strings.ToUpper(command[0])
	c.end.redis.spins(strings.HasPrefix(command[0], "EVAL"))
	fate, lasts, broken := c.end.fate(command)
	for _, b := range broken {
		b.sever()
	}
	c.mu.Lock()
	if c.black || c.severed {
		c.mu.Unlock()
		return
	}
	now := time.Now()
	arrives := now
	if !isSetup(command[0]) {
		arrives = now.Add(c.end.latency())
	}
	if until := c.end.redis.frozenUntil(); arrives.Before(until) {
		arrives = until
	}
	if !arrives.After(c.arrives) && arrives.After(now) {
		arrives = c.arrives.Add(1)
	}
	switch fate {
	case hung, swallowed, late:
		if !c.black {
			time.AfterFunc(tcpGivesUp, c.sever) // after the world's end it finds nobody
		}
		c.black = true
	}
	if fate == late {
		arrives = now.Add(lasts)
	}
	inTurn := !c.arrives.After(now)
	if fate != late {
		c.arrives = arrives
	}
	c.mu.Unlock()
	act := func() { c.arrive(command, fate) }
	if arrives.After(now) || !inTurn && fate != late {
		time.AfterFunc(max(arrives.Sub(now), 1), act)
		return
	}
	act()
}

// arrive is when the command reaches Redis.
func (c *conn) arrive(command []string, fate faultKind) {
	switch fate {
	case hung:
	case cut, apart:
		c.sever()
	case replyLost:
		c.mu.Lock()
		c.black = true
		c.mu.Unlock()
		c.peer.execute(command, true)
		c.sever()
	case swallowed, late:
		c.end.redis.faulted(fate)
		c.peer.execute(command, true)
	case setup:
		if isSetup(command[0]) {
			c.deliver([]byte("-WRONGPASS invalid username-password pair or user is disabled.\r\n"))
			return
		}
		c.sever()
	case "":
		c.peer.execute(command, false)
	default:
		c.deliver([]byte(fate.reply()))
	}
}

func isError(data []byte) bool { return bytes.HasPrefix(data, []byte("-")) }

// deliver brings what Redis says to the client.
func (c *conn) deliver(data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.black || c.severed || c.closed {
		return
	}
	delay := time.Duration(0)
	if c.setUp {
		c.mu.Unlock()
		delay = c.end.latency() // takes the endpoint's mutex
		c.mu.Lock()
	} else {
		c.setUp = !isError(data)
	}
	now := time.Now()
	at := now.Add(delay)
	if at.Before(c.returns) {
		at = c.returns.Add(1)
	}
	if !at.After(now) {
		c.out = append(c.out, data...)
		c.look()
		return
	}
	c.returns = at
	data = bytes.Clone(data)
	time.AfterFunc(at.Sub(now), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.black && !c.severed {
			c.out = append(c.out, data...)
			c.look()
		}
	})
}

// sever breaks the connection, as the client finds out when it next uses it.
func (c *conn) sever() {
	c.mu.Lock()
	was := c.severed || c.closed
	c.severed = true
	c.mu.Unlock()
	c.look()
	if !was {
		c.end.forget(c, 1)
	}
}

// forget takes a connection off the endpoint's; broken: what changes of the number of
// connections that the network has broken.
func (e *endpoint) forget(c *conn, broken int) {
	e.mu.Lock()
	delete(e.conns, c)
	e.broken += broken
	e.severed += broken
	e.mu.Unlock()
	c.peer.hangUp()
}

// Close is part of net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	was, broken := c.closed, c.severed
	c.closed = true
	c.mu.Unlock()
	c.look()
	switch {
	case was:
	case broken:
		c.end.mu.Lock()
		c.end.broken--
		c.end.mu.Unlock()
	default:
		c.end.forget(c, 0)
	}
	return nil
}

// SetDeadline is part of net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline is part of net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	c.look()
	return nil
}

// SetWriteDeadline is part of net.Conn: nothing ever waits to be written.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr is part of net.Conn.
func (c *conn) LocalAddr() net.Addr { return address(c.end.name) }

// RemoteAddr is part of net.Conn.
func (c *conn) RemoteAddr() net.Addr { return address("redis") }

type address string

func (a address) Network() string { return "simulated" }
func (a address) String() string  { return string(a) }

// parseCommand takes the first whole command off b, and says how long it is; nil:
// there is none yet.
func parseCommand(b []byte) (command []string, length int) {
	line := func(at int) (int, int, bool) { // the number after a sign, and where the next line begins
		end := bytes.Index(b[at:], []byte("\r\n"))
		if end < 0 {
			return 0, 0, false
		}
		n, err := strconv.Atoi(string(b[at+1 : at+end]))
		if err != nil {
			panic("simulate: not a command: " + string(b))
		}
		return n, at + end + 2, true
	}
	if len(b) == 0 {
		return nil, 0
	}
	words, at, ok := line(0)
	if !ok {
		return nil, 0
	}
	for range words {
		if at >= len(b) {
			return nil, 0
		}
		n, next, ok := line(at)
		if !ok || next+n+2 > len(b) {
			return nil, 0
		}
		command = append(command, string(b[next:next+n]))
		at = next + n + 2
	}
	return command, at
}
