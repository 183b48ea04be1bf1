package lock

import (
	"context"
	"fmt"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// kind is how a lock and a pool differ: by their scripts, and by what these store and
// answer. Both are zero-size types without state.
type kind interface {
	// mayTakeString reports whether m is taken by SET first; see form.go.
	mayTakeString(m *Lock) bool
	// ask is the script of an ask, and its arguments.
	ask(le *Lease, mode askMode) (*exchange.Script, []any)
	// parse reads the reply to that script; ok is false for one that its header does not
	// list.
	parse(reply any) (a wire.Answer, ok bool)
	// release is the script that releases le, and its arguments.
	release(le *Lease) (*exchange.Script, []any)
	// member is the name of a holder in Redis without its "h:". value is what the holder
	// has taken out of a pool.
	member(body, value string) string
	// wire.ParseHolder reads a holder's whole member.
	parseHolder(member string) (inside.Holder, bool)
	// pruneSome drops up to 64 dead waiters of m, and reports whether there may be more.
	pruneSome(m *Lock) (more bool)
}

// lockKind is the kind of mutexes and semaphores.
type lockKind struct{}

// mayTakeString reports true for a mutex that was not contended lately. All other locks are
// sorted sets from the start: those with several slots, a rate, a fence (which the reply to an ask
// has, and that to a SET has not) or MinReplicas, and a contended mutex, for which the SET would
// probably fail.
func (lockKind) mayTakeString(m *Lock) bool {
	l := m.locker
	return m.slots() == 1 && m.rate.every == 0 && !m.fenced && l.replicas == 0 && l.strings && !l.conn.SetIsRefused() && !l.contended.isContended(m.keys[0])
}

func (lockKind) ask(le *Lease, mode askMode) (*exchange.Script, []any) {
	m, park := le.lock, int64(wire.ParkNever)
	if mode == modePark {
		park = wire.ParkLast
		if m.parkFirst {
			park = wire.ParkAhead
		}
	}
	return wire.AskScript, wire.AskArgs{Body: &le.asks, Keep: m.keepArg, Stay: mode.lifetime(), Limit: m.slots(), Park: park, Every: m.rate.every, Spare: m.rate.spare}.Args()
}

func (lockKind) parse(reply any) (wire.Answer, bool) { return wire.ParseAsk(reply) }

func (lockKind) release(le *Lease) (*exchange.Script, []any) {
	m := le.lock
	inbound, life := m.locker.parking.WantedCalls(m.parked())
	return wire.ReleaseScript, wire.ReleaseScript.Short([]any{&le.releases, inbound, int64(m.slots()), le.cooldownArgument(), life, le.unusedArgument()})
}

func (lockKind) member(body, _ string) string { return body }

func (lockKind) parseHolder(member string) (inside.Holder, bool) { return wire.ParseHolder(member) }

func (lockKind) pruneSome(m *Lock) (more bool) {
	return m.locker.parking.PruneSome(m.parked())
}

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

func (poolKind) mayTakeString(*Lock) bool { return false }

func (poolKind) ask(le *Lease, mode askMode) (*exchange.Script, []any) {
	return wire.PoolTakeScript, []any{&le.asks, le.lock.ttlArg, mode.lifetime()}
}

func (poolKind) parse(reply any) (wire.Answer, bool) { return wire.ParseTake(reply) }

func (poolKind) release(le *Lease) (*exchange.Script, []any) {
	consume := ""
	if le.consuming.Load() {
		consume = le.value
	}
	return wire.PoolReleaseScript, []any{&le.releases, consume}
}

func (poolKind) member(body, value string) string { return value + "|" + body }

func (poolKind) parseHolder(member string) (inside.Holder, bool) { return wire.ParseTaker(member) }

func (poolKind) pruneSome(m *Lock) (more bool) {
	reply, err := m.locker.conn.Run(context.Background(), wire.PoolPutScript, m.keys, nil)
	if err == nil {
		_, more, err = wire.ParsePut(reply)
	}
	return err == nil && more
}
