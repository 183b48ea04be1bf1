package simulate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// password is what every client has to know, so that a set-up can be refused.
const password = "simulated"

// redisServer is the Redis of a world: a miniredis whose clock and key expiries are in virtual time.
type redisServer struct {
	mini    *miniredis.Miniredis
	latency time.Duration
	losing  float64
	reportf func(format string, args ...any) // told of what must not happen

	// commands runs one command at a time, as Redis does: a nested call of a script is known by that.
	commands sync.Mutex
	old      *miniredis.Miniredis // of locks, in a split brain; nil: there is none
	inScript bool                 // a script runs
	wrote    bool                 // and has written
	full     bool                 // and it is out of memory
	clock    time.Time
	ticked   time.Time // up to when keys have expired
	executed int

	mu     sync.Mutex // guards what follows; held for moments
	frozen time.Time
	// freezes are all times in which Redis stood still, or its replicas were away.
	freezes      []activeFault
	replicasAway time.Time // until when no replica acknowledges anything
	faults       int
	ends         []*endpoint

	// instant and here count what is sent within one virtual instant.
	instant atomic.Int64
	here    atomic.Int64
	spun    atomic.Bool
}

func newRedis(p *plan, report func(string, ...any)) *redisServer {
	s := &redisServer{latency: p.Latency, losing: p.Losing, reportf: report}
	s.clock, s.ticked = time.Now(), time.Now()
	s.mini = s.newMaster()
	return s
}

func (s *redisServer) newMaster() *miniredis.Miniredis {
	mini := miniredis.NewMiniRedis()
	mini.RequireAuth(password)
	first, err := mini.Dial() // makes a server that has no listener
	if err != nil {
		panic(err)
	}
	_ = first.Close()
	mini.Server().SetPreHook(s.nested)
	return mini
}

func (s *redisServer) endpoint(proc int, kind string, seed uint64, faults []faultPlan) *endpoint {
	e := &endpoint{
		redis: s, proc: proc, kind: kind, began: time.Now(),
		dice: rand.New(rand.NewPCG(seed, uint64(proc+2))), conns: map[*conn]struct{}{},
	}
	for _, f := range faults {
		if (f.Nth > 0 || f.Saying != "") && f.Proc == proc && f.Client == kind {
			e.armed = append(e.armed, f)
		}
	}
	s.mu.Lock()
	s.ends = append(s.ends, e)
	s.mu.Unlock()
	return e
}

func (s *redisServer) freeze(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = latest(s.frozen, until)
	s.freezes = append(s.freezes, activeFault{frozen, time.Now(), until})
}

func (s *redisServer) frozenUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

func (s *redisServer) faulted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults++
}

// advance sets Redis' clock for the next command.
func (s *redisServer) advance() {
	s.clock = s.clock.Add(time.Microsecond)
	s.clock = latest(s.clock, time.Now())
	passed := s.clock.Sub(s.ticked)
	for _, mini := range []*miniredis.Miniredis{s.mini, s.old} {
		if mini == nil {
			continue
		}
		mini.SetTime(s.clock)
		if passed >= ms { // keys expire to the millisecond, as in Redis
			mini.FastForward(passed)
		}
	}
	if passed >= ms {
		s.ticked = s.clock
	}
}

// tick is advance for those who only look.
func (s *redisServer) tick() {
	s.commands.Lock()
	defer s.commands.Unlock()
	s.advance()
}

func (s *redisServer) heal() {
	s.mu.Lock()
	s.frozen, s.replicasAway = time.Time{}, time.Time{}
	for i := range s.freezes {
		if s.freezes[i].until.After(time.Now()) {
			s.freezes[i].until = time.Now()
		}
	}
	s.mu.Unlock()
	for _, e := range s.endpoints() {
		e.heal()
	}
}

// spinning is how many commands in one virtual instant mean that somebody spins.
const spinning = 20_000

// spins is called for each command. Who spins would keep virtual time
// standing still: it is reported, and then slowed down.
func (s *redisServer) spins(slow bool) {
	now := time.Now().UnixNano()
	if s.instant.Swap(now) != now {
		s.here.Store(0)
	}
	if s.here.Add(1) < spinning && !s.spun.Load() {
		return
	}
	if s.spun.CompareAndSwap(false, true) {
		s.reportf("spins: %d commands in one instant", spinning)
	}
	if slow { // others may be sent with a mutex held, see dial
		time.Sleep(10 * ms)
	}
}

type peer struct {
	redis *redisServer
	conn  *conn
	peer  *server.Peer

	mu         sync.Mutex
	subscribes *miniredis.Miniredis // nil: it does not
	discards   bool                 // what is written is lost
	over       bool                 // the connection is closed: a subscription that arrives yet would be nobody's
}

func (s *redisServer) peer(c *conn) *peer {
	p := &peer{redis: s, conn: c}
	p.peer = server.NewPeer(bufio.NewWriterSize(p, 1024))
	return p
}

// Write takes what the server says: replies, and messages at any time.
func (p *peer) Write(data []byte) (int, error) {
	p.mu.Lock()
	discards, subscribes := p.discards, p.subscribes
	p.mu.Unlock()
	switch {
	case discards:
	case subscribes != nil && isMessage(data) && p.conn.end.loses():
	default:
		p.conn.deliver(data)
	}
	return len(data), nil
}

func isMessage(data []byte) bool {
	return bytes.HasPrefix(data, []byte(">3\r\n$7\r\nmessage")) || bytes.HasPrefix(data, []byte("*3\r\n$7\r\nmessage"))
}

// execute runs a command; lost: nobody hears the reply.
func (p *peer) execute(command []string, lost bool) {
	s := p.redis
	s.commands.Lock()
	defer s.commands.Unlock()
	at := s.masterOf(p.conn.end, command)
	p.mu.Lock()
	p.discards = p.discards || lost
	if command[0] == "SUBSCRIBE" {
		if p.over {
			p.mu.Unlock()
			return
		}
		p.subscribes = at
	}
	p.mu.Unlock()
	s.executed++
	s.full = p.conn.end.suffers(outOfMemory)
	// none of its keys expires: the clock need not be set
	if answer := s.idle(command); answer != "" && !s.full && at != s.old {
		if !lost {
			p.conn.deliver([]byte(answer))
		}
		return
	}
	if command[0] == "WAIT" {
		p.wait(command)
		return
	}
	if command[0] != "PING" { // every subscription sends one every three seconds
		s.advance()
	}
	s.inScript, s.wrote = strings.HasPrefix(command[0], "EVAL"), false
	if !s.inScript && s.full && needsMemory(command[0]) {
		p.conn.deliver([]byte("-OOM command not allowed when used memory > 'maxmemory'.\r\n"))
	} else {
		at.Server().Dispatch(p.peer, command)
		p.peer.Flush()
	}
	s.inScript, s.full = false, false
}

// idle answers, as the scripts would, what servers ask again and again while there is nothing to do; empty: the command
// has to run. It makes quiet hours cheap. Callers hold commands.
func (s *redisServer) idle(command []string) (answer string) {
	if len(command) < 4 {
		return ""
	}
	first := command[3]
	switch {
	case command[0] == "ZADD" && (command[1] == "asynq:servers" || command[1] == "asynq:workers"):
		return ":0\r\n" // what asynq's own pages show of servers, which nobody reads here
	case command[0] != "EVALSHA":
		return ""
	case strings.HasPrefix(first, "asynq:servers:{"):
		return "+OK\r\n"
	case s.mini.Exists(first):
		return ""
	case readsControls(command):
		now := time.Now()
		if now.Before(s.clock) {
			now = s.clock
		}
		return fmt.Sprintf("*3\r\n:%d\r\n:0\r\n*0\r\n", now.UnixMicro())
	case !strings.HasPrefix(first, "asynq:{") || len(command) < 5:
		return ""
	case command[2] == "4" && strings.HasSuffix(first, ":pending") && strings.HasSuffix(command[6], ":lease"):
		return "_\r\n" // nothing to dequeue
	case command[2] == "2" && strings.HasSuffix(command[4], ":pending") &&
		(strings.HasSuffix(first, ":scheduled") || strings.HasSuffix(first, ":retry")):
		return ":0\r\n" // nothing to forward
	}
	return ""
}

func readsControls(command []string) bool {
	return strings.HasPrefix(command[0], "EVAL") && len(command) == 5 && strings.HasSuffix(command[3], ":{control}")
}

// nested sees every command before it runs; those of scripts as well.
func (s *redisServer) nested(c *server.Peer, name string, _ ...string) bool {
	if !s.full || !s.inScript || name == "EVALSHA" || name == "EVAL" {
		return false
	}
	if needsMemory(name) && !s.wrote {
		c.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		return true
	}
	s.wrote = s.wrote || needsMemory(name) || strings.HasPrefix(name, "ZREM") ||
		slices.Contains([]string{"DEL", "UNLINK", "HDEL", "ZPOPMIN", "PEXPIRE", "PEXPIREAT"}, name)
	return false
}

func needsMemory(name string) bool {
	switch name {
	case "ZADD", "SET", "SETEX", "SADD", "HSET", "INCR", "LPUSH", "RPUSH", "RPOPLPUSH", "EVALSHA_RO":
		return true
	}
	return false
}

func (p *peer) hangUp() {
	p.mu.Lock()
	p.discards, p.over = true, true
	subscribes := p.subscribes
	p.mu.Unlock()
	if subscribes != nil {
		// Not within the caller's command: it may be the one that runs.
		go func() {
			p.redis.commands.Lock()
			defer p.redis.commands.Unlock()
			subscribes.Server().Dispatch(p.peer, []string{"UNSUBSCRIBE"})
		}()
	}
}

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

func (e *endpoint) loses() bool {
	if e.redis.losing == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dice.Float64() < e.redis.losing
}

// dial is redis.Options.Dialer. Neither it nor the set-up of a connection takes virtual time: go-redis does both with
// the mutex of a subscription held, and a goroutine that waits for a mutex keeps virtual time from going on. So where a
// dial would hang it fails at once.
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

func (e *endpoint) die() {
	e.mu.Lock()
	e.gone = true
	e.mu.Unlock()
	e.breakAll()
}

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
	counted := e.counts(command)
	for i := 0; i < len(e.armed) && counted; i++ {
		f := e.armed[i]
		switch {
		case f.Saying == "" && f.Nth != e.count:
			continue
		case f.Saying == "":
		case time.Since(e.began) < f.At || !slices.ContainsFunc(command,
			func(word string) bool { return strings.HasSuffix(word, f.Saying) }):
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

// counts adds a command, and tells whether a fault may be meant for its number. Callers hold mu.
func (e *endpoint) counts(command []string) (counted bool) {
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

func isSetup(name string) bool {
	return name == "HELLO" || name == "AUTH" || name == "CLIENT" || name == "SELECT"
}

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

func (s slowFailure) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s slowFailure) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if slow, _ := ctx.Value(slowKey{}).(time.Duration); s.end.kind == "asynq" && cmd.Name() == "evalsha" {
			time.Sleep(slow)
		}
		err := next(ctx, cmd)
		if err != nil && !isSetup(strings.ToUpper(cmd.Name())) {
			s.waitOut(err)
		}
		return err
	}
}

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
	if s.end.kind == "asynq" && errors.As(err, &said) && !errors.Is(err, redis.Nil) &&
		!redis.HasErrorPrefix(err, "NOSCRIPT") || errors.Is(err, errAway) || strings.Contains(err.Error(), "WRONGPASS") {
		time.Sleep(100 * ms)
	}
}

// What follows is about a process that is suspended, as by SIGSTOP or with its virtual machine. Nothing that it sends
// arrives, nothing reaches it, and none of its handlers ends before it goes on.
//
// Not covered: the timers of the library, of asynq and of go-redis fire meanwhile, since all processes of a bubble have
// one clock.

func (d *drawer) suspensions(length time.Duration) {
	s := d.aside("suspended")
	if !s.chance(0.2) {
		return
	}
	for range 1 + s.IntN(2) {
		s.p.Faults = append(s.p.Faults, faultPlan{
			Kind: suspended, Proc: s.IntN(len(s.p.Procs)), At: s.span(0, int(length/ms)),
			For: pick(s, s.span(200, 4000), s.span(2000, 40_000)),
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

// conn is a connection to Redis without any network beneath: a command is executed
// within Write unless it is delayed, and its reply is there for Read.
type conn struct {
	net.Conn // nil: nobody asks for what conn lacks
	end      *endpoint
	peer     *peer

	mu       sync.Mutex
	in       []byte // what was written, up to the last whole command
	out      []byte // what is to be read
	closed   bool   // by the client
	severed  bool   // by the network
	black    bool   // whatever is sent vanishes
	setUp    bool   // the first reply has come, which is that of the set-up
	deadline time.Time
	wake     chan struct{} // Read looks again; buffered, so that nobody waits to send
	// arrives and returns are when the latest command reaches Redis, and its reply the client: later ones come later.
	arrives, returns time.Time
}

func (c *conn) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, deadline, err := c.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		var over <-chan time.Time
		if !deadline.IsZero() {
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-c.wake:
		case <-over:
		}
	}
}

func (c *conn) take(p []byte) (n int, deadline time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, c.deadline, net.ErrClosed
	case len(c.out) > 0:
		n = copy(p, c.out)
		c.out = c.out[n:]
		return n, c.deadline, nil
	case c.severed:
		return 0, c.deadline, io.EOF
	case !c.deadline.IsZero() && time.Until(c.deadline) <= 0:
		return 0, c.deadline, os.ErrDeadlineExceeded
	}
	return 0, c.deadline, nil
}

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
const tcpGivesUp = 924 * sec

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
	for _, until := range []time.Time{c.end.redis.frozenUntil(), c.end.suspendedUntil()} {
		if arrives.Before(until) {
			arrives = until
		}
	}
	if !arrives.After(c.arrives) && arrives.After(now) {
		arrives = c.arrives.Add(1)
	}
	if fate == hung || fate == swallowed || fate == late {
		if !c.black {
			time.AfterFunc(tcpGivesUp, c.sever) // after the world's end it finds nobody
		}
		c.black = true
	}
	inTurn := !c.arrives.After(now)
	if fate == late {
		arrives = now.Add(lasts)
	} else {
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
		c.end.redis.faulted()
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
		c.deliver([]byte("-" + replies[fate] + "\r\n"))
	}
}

func (c *conn) deliver(data []byte) {
	suspended := c.end.suspendedUntil()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.black || c.severed || c.closed {
		return
	}
	delay := time.Duration(0)
	if c.setUp {
		c.mu.Unlock()
		delay = max(c.end.latency(), time.Until(suspended)) // takes the endpoint's mutex
		c.mu.Lock()
	} else {
		c.setUp = data[0] != '-'
	}
	now := time.Now()
	at := now.Add(delay)
	if at.Before(c.returns) {
		at = c.returns.Add(1)
	}
	data = bytes.Clone(data)
	read := func() {
		c.out = append(c.out, data...)
		c.look()
	}
	if !at.After(now) {
		read()
		return
	}
	c.returns = at
	time.AfterFunc(at.Sub(now), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.black && !c.severed {
			read()
		}
	})
}

func (c *conn) sever() { c.ends(&c.severed) }

func (c *conn) Close() error {
	c.ends(&c.closed)
	return nil
}

func (c *conn) ends(how *bool) {
	c.mu.Lock()
	was := c.severed || c.closed
	*how = true
	c.mu.Unlock()
	c.look()
	if !was {
		c.end.forget(c)
	}
}

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	c.look()
	return nil
}

// SetWriteDeadline is part of net.Conn: nothing ever waits to be written.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// parseCommand takes the first whole command off b, and says how long it is; nil: there is none yet.
func parseCommand(b []byte) (command []string, length int) {
	at := 0
	number := func() int { // after a sign, in a line; -1: it is not there yet
		end := bytes.Index(b[at:], []byte("\r\n"))
		if end < 0 {
			return -1
		}
		n, err := strconv.Atoi(string(b[at+1 : at+end]))
		if err != nil {
			panic("simulate: not a command: " + string(b))
		}
		at += end + 2
		return n
	}
	for words := number(); len(command) < words; {
		n := number()
		if n < 0 || at+n+2 > len(b) {
			return nil, 0
		}
		command = append(command, string(b[at:at+n]))
		at += n + 2
	}
	return command, at
}

// faultKind: a new one has a place in fate or arrive, in spansTime, and in the lists of generate_test.go and
// simulate_test.go.
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

	// split has the locks' master replaced for all but this process.
	split faultKind = "split brain"

	// Not of a client.
	noReplicas faultKind = "replicas away" // they acknowledge nothing for For
	// arrival is when what was late is executed. No plan has it.
	arrival faultKind = "late arrival"
	// suspended has the process stand still for For.
	suspended faultKind = "suspended"
	stops     faultKind = "stops" // the process: Close beside Shutdown, then it exits
	dies      faultKind = "dies"  // the process
	starts    faultKind = "starts"
)

// spansTime tells whether a fault of the kind lasts, and is no single command's.
func (k faultKind) spansTime() bool {
	return slices.Contains([]faultKind{hung, loading, readOnly, wrapped, misconf, outOfMemory, setup, apart, frozen}, k)
}

// replies are what a client is answered in place of an execution.
var replies = map[faultKind]string{
	refused:  "ERR the simulation refuses this command",
	noScript: "NOSCRIPT No matching script. Please use EVAL.",
	noPerm:   "NOPERM this user has no permissions to run this command",
	loading:  "LOADING Redis is loading the dataset in memory",
	misconf:  "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
	readOnly: "READONLY You can't write against a read only replica.",
	wrapped: "ERR Error running script (call to f_2d7a5c7a): @user_script:1: @user_script: 1: -READONLY You can't " +
		"write against a read only replica.",
}

// windows are the faults of a process' lock client, as times, and those of all clients.
func (w *world) windows(p *process) (windows []activeFault) {
	for _, a := range append(w.redis.standstills(), p.locks.faults()...) {
		switch a.kind {
		case outOfMemory, arrival:
			continue // leases outlive the first, and the second keeps nobody away
		case hung, swallowed, late, frozen, suspended:
			a.until = a.until.Add(3 * sec) // the client's own timeout
		}
		windows = append(windows, a)
	}
	return windows
}

// away is for how long of the latest time Redis was out of reach for a process.
func (w *world) away(p *process, within time.Duration) (away time.Duration) {
	for _, a := range w.windows(p) {
		begin, end := min(time.Since(a.since), within), max(time.Since(a.until), 0) // ago
		away += max(begin-end, 0)
	}
	return away
}

// calmAt tells whether nothing was wrong for a process at a time, and shortly after.
func (w *world) calmAt(p *process, at time.Time, after time.Duration) bool {
	return !slices.ContainsFunc(w.windows(p), func(a activeFault) bool {
		return a.since.Before(at.Add(after)) && a.until.After(at.Add(-sec))
	})
}

// harms are the faults that tasks may notice: not those of leaders, nor the start of a server.
func (p *plan) harms() []faultPlan {
	return slices.DeleteFunc(slices.Clone(p.Faults), func(f faultPlan) bool {
		return f.Kind == starts || f.Client == leadClient
	})
}

func (w *world) faultWithin(within time.Duration) bool {
	from := time.Now().Add(-within)
	recent := func(a activeFault) bool { return a.until.After(from) }
	return slices.ContainsFunc(w.redis.standstills(), recent) ||
		slices.ContainsFunc(w.redis.endpoints(), func(e *endpoint) bool {
			return e.kind != leadClient && slices.ContainsFunc(e.faults(), recent)
		})
}

// longFault tells whether a process was cut off around a time for so long that even
// what is tried again is lost. A cooldown needs memory.
func (w *world) longFault(p *process, at time.Time, length time.Duration) bool {
	return slices.ContainsFunc(append(w.windows(p), p.locks.faults()...), func(a activeFault) bool {
		return a.until.Sub(a.since) > length && a.since.Before(at.Add(5*sec)) && a.until.After(at.Add(-5*sec))
	})
}

// sentAgainAfter is how long go-redis waits for a reply, and then until it sends again.
const sentAgainAfter = 6 * sec

// comesAgain says that a task comes, which may have ended: it tells whether a wake that was held up explains that.
func (b *ledger) comesAgain(t *taskBook) bool {
	since := t.left.Add(-sentAgainAfter)
	holdsUp := func(a activeFault) bool {
		refuses := []faultKind{refused, noScript, noPerm, misconf, wrapped, outOfMemory, noReplicas}
		return a.until.After(since) && !slices.Contains(refuses, a.kind)
	}
	if !t.parked || t.left.IsZero() || !slices.ContainsFunc(b.w.redis.standstills(), holdsUp) &&
		!slices.ContainsFunc(b.w.redis.endpoints(), func(e *endpoint) bool {
			return (e.kind == "lock" || e.kind == skips) && slices.ContainsFunc(e.faults(), holdsUp) // who wakes tasks
		}) {
		return false
	}
	t.again = t.again || t.success > 0
	return true
}

func (s *redisServer) endpoints() []*endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ends)
}

func (s *redisServer) standstills() []activeFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.freezes)
}

func (e *endpoint) faults() []activeFault {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.active)
}
