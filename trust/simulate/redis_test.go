package simulate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
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

// redisServer is the Redis of a world: a miniredis whose clock and key expiries are
// in virtual time.
type redisServer struct {
	mini    *miniredis.Miniredis
	latency time.Duration
	losing  float64
	reportf func(format string, args ...any) // told of what must not happen

	// commands runs one command at a time, as Redis does: a nested call of a script
	// is known by that.
	commands sync.Mutex
	inScript bool          // a script runs
	wrote    bool          // and has written
	full     bool          // and it is out of memory
	step     time.Duration // what operators have moved its clock by
	clock    time.Time
	ticked   time.Time // up to when keys have expired
	scripts  *scripts
	executed int

	mu     sync.Mutex // guards what follows; held for moments
	frozen time.Time
	// freezes are all times in which Redis stood still, or its replicas were away.
	freezes      []activeFault
	replicasAway time.Time // until when no replica acknowledges anything
	faults       map[faultKind]int
	ends         []*endpoint

	// instant and here count what is sent within one virtual instant.
	instant atomic.Int64
	here    atomic.Int64
	spun    atomic.Bool
}

func newRedis(p *plan, report func(string, ...any)) *redisServer {
	mini := miniredis.NewMiniRedis()
	mini.RequireAuth(password)
	first, err := mini.Dial() // makes a server that has no listener
	if err != nil {
		panic(err)
	}
	_ = first.Close()
	s := &redisServer{mini: mini, latency: p.Latency, losing: p.Losing, reportf: report, faults: map[faultKind]int{}}
	s.clock, s.ticked = time.Now(), time.Now()
	s.scripts = newScripts(mini.Server())
	mini.Server().SetPreHook(s.nested)
	return s
}

// endpoint makes a client's place in the network.
func (s *redisServer) endpoint(proc int, kind string, seed uint64, faults []faultPlan) *endpoint {
	e := &endpoint{
		redis: s, name: fmt.Sprintf("%s of %d", kind, proc), proc: proc, kind: kind,
		dice: rand.New(rand.NewPCG(seed, uint64(proc+2))), conns: map[*conn]struct{}{},
	}
	for _, f := range faults {
		if f.Nth > 0 && f.Proc == proc && f.Client == kind {
			e.armed = append(e.armed, f)
		}
	}
	s.mu.Lock()
	s.ends = append(s.ends, e)
	s.mu.Unlock()
	return e
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
// itself cannot, and any of asynq's that is refused: asynq asks again at once. It takes the
// shortcut for commands that find nothing to do.
type slowFailure struct{ end *endpoint }

// DialHook is part of redis.Hook and changes nothing.
func (s slowFailure) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is part of redis.Hook.
func (s slowFailure) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if answered, err := s.end.shortcut(ctx, cmd); answered {
			return err
		}
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

func (s *redisServer) freeze(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until.After(s.frozen) {
		s.frozen = until
	}
	s.freezes = append(s.freezes, activeFault{frozen, time.Now(), until})
}

func (s *redisServer) frozenUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

func (s *redisServer) faulted(kind faultKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[kind]++
}

// stepClock moves Redis' clock.
func (s *redisServer) stepClock(by time.Duration) {
	s.commands.Lock()
	s.step += by
	s.clock = time.Now().Add(s.step)
	s.mini.SetTime(s.clock)
	s.commands.Unlock()
}

// advance sets Redis' clock for the next command. No two run in one microsecond, by which
// fences are counted. Callers hold commands.
func (s *redisServer) advance() {
	s.clock = s.clock.Add(time.Microsecond)
	if now := time.Now().Add(s.step); now.After(s.clock) {
		s.clock = now
	}
	s.mini.SetTime(s.clock)
	// Keys expire to the millisecond, as in Redis.
	if passed := s.clock.Sub(s.ticked); passed >= time.Millisecond {
		s.mini.FastForward(passed)
		s.ticked = s.clock
	}
}

// tick is advance for those who only look.
func (s *redisServer) tick() {
	s.commands.Lock()
	defer s.commands.Unlock()
	s.advance()
}

// heal ends all faults but the clock's.
func (s *redisServer) heal() {
	s.mu.Lock()
	ends := append([]*endpoint(nil), s.ends...)
	s.frozen, s.replicasAway = time.Time{}, time.Time{}
	for i := range s.freezes {
		if s.freezes[i].until.After(time.Now()) {
			s.freezes[i].until = time.Now()
		}
	}
	s.mu.Unlock()
	for _, e := range ends {
		e.heal()
	}
}

// spinning is how many commands in one virtual instant mean that
// somebody spins.
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
		s.reportf("spins: %d commands in one instant, now in %s", spinning, callers())
	}
	if slow { // others may be sent with a mutex held, see dial
		time.Sleep(10 * time.Millisecond)
	}
}

// callers are the functions of the library, or of asynq, that send the command.
func callers() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	var names []string
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "automutex/automutex") && !strings.Contains(f.Function, "simulate") || strings.Contains(f.Function, "asynq.") {
			names = append(names, f.Function[strings.LastIndex(f.Function, "/")+1:])
		}
		if !more {
			return strings.Join(names, " < ")
		}
	}
}

// peer is the server's side of a connection.
type peer struct {
	redis *redisServer
	conn  *conn
	peer  *server.Peer

	mu         sync.Mutex
	subscribes bool
	discards   bool // what is written is lost
	over       bool // the connection is closed: a subscription that arrives yet would be nobody's
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
	case subscribes && isMessage(data) && p.conn.end.loses():
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
	p.mu.Lock()
	p.discards = p.discards || lost
	if command[0] == "SUBSCRIBE" {
		if p.over {
			p.mu.Unlock()
			return
		}
		p.subscribes = true
	}
	p.mu.Unlock()
	s.executed++
	s.full = p.conn.end.isFull()
	if answer, idle := s.idle(command); idle && !s.full { // none of its keys expires: the clock need not be set
		if !lost {
			p.conn.deliver(encode(nil, answer))
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
	s.inScript, s.wrote = s.scripts.handles(command), false
	if !s.inScript && s.full && needsMemory(command[0]) {
		p.conn.deliver([]byte("-OOM command not allowed when used memory > 'maxmemory'.\r\n"))
	} else {
		s.dispatch(p.peer, command)
		p.peer.Flush()
	}
	s.inScript, s.full = false, false
}

// dispatch runs one command. Callers hold commands.
func (s *redisServer) dispatch(p *server.Peer, command []string) {
	if s.scripts.handles(command) {
		s.scripts.run(p, command)
		return
	}
	s.mini.Server().Dispatch(p, command)
}

// idle answers what servers ask again and again while there is nothing to do, as the
// scripts would; a nil answer is Redis' null. Not idle: the command has to run. It makes
// quiet hours cheap. Callers hold commands.
func (s *redisServer) idle(command []string) (answer any, idle bool) {
	if !polls(command) {
		return nil, false
	}
	if command[0] == "ZADD" {
		return int64(0), command[1] == "asynq:servers" || command[1] == "asynq:workers" // see below
	}
	first := command[3]
	switch {
	case readsControls(command):
		return s.noControls(first)
	case strings.HasPrefix(first, "asynq:servers:{"):
		return "OK", true // what asynq's own pages show of servers, which nobody reads here
	case !strings.HasPrefix(first, "asynq:{") || len(command) < 5 || s.mini.Exists(first):
		return nil, false
	case command[2] == "4" && strings.HasSuffix(first, ":pending") && strings.HasSuffix(command[6], ":lease"):
		return nil, true // nothing to dequeue
	case command[2] == "2" && strings.HasSuffix(command[4], ":pending") &&
		(strings.HasSuffix(first, ":scheduled") || strings.HasSuffix(first, ":retry")):
		return int64(0), true // nothing to forward
	}
	return nil, false
}

// encode adds an answer of idle to b, as Redis writes it.
func encode(b []byte, answer any) []byte {
	switch answer := answer.(type) {
	case nil:
		return append(b, "_\r\n"...)
	case int64:
		return fmt.Appendf(b, ":%d\r\n", answer)
	case string:
		return fmt.Appendf(b, "+%s\r\n", answer)
	case []any:
		b = fmt.Appendf(b, "*%d\r\n", len(answer))
		for _, each := range answer {
			b = encode(b, each)
		}
		return b
	}
	panic(fmt.Sprintf("simulate: an answer is a %T", answer))
}

// nested sees every command before it runs; those of scripts as well. As in Redis,
// a script that finds the memory full may not add, unless it has written before.
func (s *redisServer) nested(c *server.Peer, name string, _ ...string) bool {
	if !s.full || !s.inScript || name == "EVALSHA" || name == "EVAL" {
		return false
	}
	if needsMemory(name) && !s.wrote {
		c.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		return true
	}
	s.wrote = s.wrote || needsMemory(name) || strings.HasPrefix(name, "ZREM") || name == "DEL" || name == "PEXPIRE"
	return false
}

// needsMemory tells whether Redis refuses a command when its memory is full.
func needsMemory(name string) bool {
	switch name {
	case "ZADD", "SET", "SETEX", "SADD", "HSET", "INCR", "LPUSH", "RPUSH", "RPOPLPUSH", "EVALSHA_RO":
		return true
	}
	return false
}

func (e *endpoint) isFull() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inWindow(outOfMemory)
}

// hangUp ends the subscriptions of a connection that is over.
func (p *peer) hangUp() {
	p.mu.Lock()
	p.discards, p.over = true, true
	subscribes := p.subscribes
	p.mu.Unlock()
	if subscribes {
		// Not within the caller's command: it may be the one that runs.
		go func() {
			p.redis.commands.Lock()
			defer p.redis.commands.Unlock()
			p.redis.mini.Server().Dispatch(p.peer, []string{"UNSUBSCRIBE"})
		}()
	}
}
