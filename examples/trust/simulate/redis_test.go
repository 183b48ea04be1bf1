package simulate

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
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

// endpoint makes a client's place in the network.
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

// advance sets Redis' clock for the next command. No two run in one microsecond, by which
// fences are counted. Callers hold commands.
func (s *redisServer) advance() {
	s.clock = s.clock.Add(time.Microsecond)
	s.clock = latest(s.clock, time.Now())
	passed := s.clock.Sub(s.ticked)
	for _, mini := range []*miniredis.Miniredis{s.mini, s.old} {
		if mini == nil {
			continue
		}
		mini.SetTime(s.clock)
		if passed >= time.Millisecond { // keys expire to the millisecond, as in Redis
			mini.FastForward(passed)
		}
	}
	if passed >= time.Millisecond {
		s.ticked = s.clock
	}
}

// tick is advance for those who only look.
func (s *redisServer) tick() {
	s.commands.Lock()
	defer s.commands.Unlock()
	s.advance()
}

// heal ends all faults.
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
		s.reportf("spins: %d commands in one instant", spinning)
	}
	if slow { // others may be sent with a mutex held, see dial
		time.Sleep(10 * time.Millisecond)
	}
}

// peer is the server's side of a connection.
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
	if answer := s.idle(command); answer != "" && !s.full && at != s.old { // none of its keys expires: the clock need not be set
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

// idle answers, as the scripts would, what servers ask again and again while there is nothing to do; empty: the command has
// to run. It makes quiet hours cheap. Callers hold commands.
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
	case command[2] == "2" && strings.HasSuffix(command[4], ":pending") && (strings.HasSuffix(first, ":scheduled") || strings.HasSuffix(first, ":retry")):
		return ":0\r\n" // nothing to forward
	}
	return ""
}

// readsControls tells whether a command reads the controls, as each Guard does every other second.
func readsControls(command []string) bool {
	return strings.HasPrefix(command[0], "EVAL") && len(command) == 5 && strings.HasSuffix(command[3], ":{control}")
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
	s.wrote = s.wrote || needsMemory(name) || strings.HasPrefix(name, "ZREM") || slices.Contains([]string{"DEL", "UNLINK", "HDEL", "ZPOPMIN", "PEXPIRE", "PEXPIREAT"}, name)
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

// hangUp ends the subscriptions of a connection that is over.
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
