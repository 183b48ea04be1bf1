package simulate

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// password is what every client has to know, so that a set-up can be refused.
const password = "simulated"

// redisServer is the Redis of a world: a miniredis whose clock and key expiries are
// in virtual time.
type redisServer struct {
	master
	latency time.Duration
	losing  float64
	reportf func(format string, args ...any) // told of what must not happen

	// commands runs one command at a time, as Redis does: a nested call of a script
	// is known by that.
	commands sync.Mutex
	old      *master // of locks, in a split brain; nil: there is none
	inScript bool    // a script runs
	wrote    bool    // and has written
	full     bool    // and it is out of memory
	clock    time.Time
	ticked   time.Time // up to when keys have expired
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
	s := &redisServer{master: master{mini, newScripts(mini.Server())}, latency: p.Latency, losing: p.Losing, reportf: report, faults: map[faultKind]int{}}
	s.clock, s.ticked = time.Now(), time.Now()
	mini.Server().SetPreHook(s.nested)
	return s
}

// endpoint makes a client's place in the network.
func (s *redisServer) endpoint(proc int, kind string, seed uint64, faults []faultPlan) *endpoint {
	e := &endpoint{
		redis: s, name: fmt.Sprintf("%s of %d", kind, proc), proc: proc, kind: kind, began: time.Now(),
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

// advance sets Redis' clock for the next command. No two run in one microsecond, by which
// fences are counted. Callers hold commands.
func (s *redisServer) advance() {
	s.clock = s.clock.Add(time.Microsecond)
	if now := time.Now(); now.After(s.clock) {
		s.clock = now
	}
	minis := []*miniredis.Miniredis{s.mini}
	if s.old != nil {
		minis = append(minis, s.old.mini)
	}
	for _, mini := range minis {
		mini.SetTime(s.clock)
	}
	// Keys expire to the millisecond, as in Redis.
	if passed := s.clock.Sub(s.ticked); passed >= time.Millisecond {
		for _, mini := range minis {
			mini.FastForward(passed)
		}
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
