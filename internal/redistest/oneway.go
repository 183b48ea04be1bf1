package redistest

import (
	"slices"
	"strings"
	"time"
)

// Direction is where something goes that passes a [Proxy].
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// Connections are those of a kind that pass a [Proxy].
type Connections int

// The kinds of connections: one on which a SUBSCRIBE was seen counts among
// Subscriptions, from that SUBSCRIBE on, all others among Commands.
const (
	Commands Connections = iota
	Subscriptions
)

// swallowing says for each direction and kind of connections whether it is
// swallowed.
type swallowing [2][2]bool

// Swallow has everything in one direction on one kind of connections vanish:
// commands that never arrive, or replies, messages and pongs to commands that
// have run. The connections stay open.
func (p *Proxy) Swallow(d Direction, c Connections, on bool) {
	p.set(func(f *faults) { f.swallow[d][c] = on })
}

// Swallowed tells how many commands of that name came and were not sent on,
// because of Swallow or Blackhole.
func (p *Proxy) Swallowed(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallowed[strings.ToUpper(name)]
}

// Throttle has the connections share a wire that carries so many bytes in a
// second in each direction. 0: no limit.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.set(func(f *faults) { f.throttle = bytesPerSecond })
}

// swallows tells whether a command vanishes on its way to the server. command
// is not empty, its first word in upper case.
func (l *link) swallows(command []string) bool {
	l.mu.Lock()
	l.pubsub = l.pubsub || slices.Contains(pubsubCommands, command[0])
	kind := kindOf(l.pubsub)
	l.mu.Unlock()
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if !l.p.faults.swallow[ToServer][kind] {
		return false
	}
	l.p.swallowed[command[0]]++
	return true
}

func kindOf(pubsub bool) Connections {
	if pubsub {
		return Subscriptions
	}
	return Commands
}

// wires have, for each direction, when the throttled wire is free again.
type wires [2]time.Time

// through gives when n bytes that come now have passed the wire.
func (p *Proxy) through(d Direction, n int) time.Time {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.throttle <= 0 {
		p.wires[d] = now
		return now
	}
	if p.wires[d].Before(now) {
		p.wires[d] = now
	}
	p.wires[d] = p.wires[d].Add(time.Duration(n) * time.Second / time.Duration(p.faults.throttle))
	return p.wires[d]
}

// waits blocks until t; false when the link has ended before.
func (l *link) waits(t time.Time) bool {
	wait := time.Until(t)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.gone:
		return false
	}
}
