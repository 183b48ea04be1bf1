package lock

import (
	"fmt"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// kind is how locks, those in order and pools differ: by their scripts, and by what these store
// and reply. All are zero-size types without state.
type kind interface {
	// ask is the script of an ask, and its arguments.
	ask(le *Lease, mode turn.Ask) (*exchange.Script, []any)
	// parse reads the reply to that script; ok is false for one that its header does not
	// list.
	parse(reply any) (a wire.Answer, ok bool)
	// release is the script that releases le, and its arguments.
	release(le *Lease) (*exchange.Script, []any)
	// parseHolder reads a holder's whole member.
	parseHolder(member string) (inside.Holder, bool)
}

// lockKind is the kind of mutexes and semaphores.
type lockKind struct{}

func (lockKind) ask(le *Lease, mode turn.Ask) (*exchange.Script, []any) {
	m, park := le.lock, int64(wire.ParkNever)
	if mode == turn.Park {
		park = wire.ParkLast
		if m.parkFirst {
			park = wire.ParkAhead
		}
	}
	return wire.AskScript, wire.AskArgs{Body: &le.asks, Keep: m.keepArg, Stay: mode.Lifetime(), Limit: m.slots(), Park: park, Every: m.rate.every, Spare: m.rate.spare}.Args()
}

func (lockKind) parse(reply any) (wire.Answer, bool) { return wire.ParseAsk(reply) }

func (lockKind) release(le *Lease) (*exchange.Script, []any) {
	m := le.lock
	inbound, life := m.locker.parking.WantedCalls(m.parked())
	return wire.ReleaseScript, wire.ReleaseScript.Short([]any{&le.releases, inbound, int64(m.slots()), le.cooldownArgument(), life, le.unusedArgument()})
}

func (lockKind) parseHolder(member string) (inside.Holder, bool) { return wire.ParseHolder(member) }

// poolKind is the kind of the locks that package pool makes: their slots are values.
type poolKind struct{}

func (l *Locker) pool(name string, options ...Option) *Lock {
	m := l.Semaphore(name, 1, options...)
	m.kind = poolKind{}
	if m.rate.every > 0 && m.err == nil {
		m.err = fmt.Errorf("lock: pool %q: a pool has no Rate: its slots are its values; leave the option out", name)
	}
	m.keys = []string{m.keys[0] + ":pool"}
	return m
}

func (poolKind) ask(le *Lease, mode turn.Ask) (*exchange.Script, []any) {
	return wire.PoolTakeScript, []any{&le.asks, le.lock.ttlArg, mode.Lifetime()}
}

func (poolKind) parse(reply any) (wire.Answer, bool) { return wire.ParseTake(reply) }

func (poolKind) release(le *Lease) (*exchange.Script, []any) {
	consume := ""
	if le.consuming.Load() {
		consume = le.value
	}
	return wire.PoolReleaseScript, []any{&le.releases, consume}
}

func (poolKind) parseHolder(member string) (inside.Holder, bool) { return wire.ParseTaker(member) }
