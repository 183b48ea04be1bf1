package lock

import (
	"context"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
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
	parse(reply any) (a answer, ok bool)
	// release is the script that releases le, and its arguments.
	release(le *Lease) (*exchange.Script, []any)
	// member is the name of a holder in Redis without its "h:". value is what the holder
	// has taken out of a pool.
	member(body, value string) string
	// parseHolder reads a holder's whole member.
	parseHolder(member string) (inside.Holder, bool)
	// pruneSome drops up to 64 dead waiters of m, and reports whether there may be more.
	pruneSome(m *Lock) (more bool)
}

// isPool is for operations that only a lock or only a pool has: they refuse the other.
func (m *Lock) isPool() bool { return m.kind == poolKind{} }

// lockKind is the kind of mutexes and semaphores.
type lockKind struct{}

// mayTakeString reports true for a mutex that was not contended lately. All other locks are
// sorted sets from the start: those with several slots, a rate or MinReplicas, and a
// contended mutex, for which the SET would probably fail.
func (lockKind) mayTakeString(m *Lock) bool {
	l := m.locker
	return m.slots() == 1 && m.rate.every == 0 && l.replicas == 0 && l.strings && !l.conn.SetIsRefused() && !l.contended.isContended(m.keys[0])
}

func (lockKind) ask(le *Lease, mode askMode) (*exchange.Script, []any) {
	m, park := le.lock, int64(0)
	if mode == modePark {
		park = 1
		if m.parkFirst {
			park = 2
		}
	}
	return askScript, askScript.Short([]any{&le.asks, m.keepArg, mode.lifetime(), int64(m.slots()), park, m.rate.every, m.rate.spare})
}

func (lockKind) parse(reply any) (a answer, ok bool) {
	if fence, isNumber := reply.(int64); isNumber {
		return answer{yours: true, fence: fence}, true
	}
	f := listOf(reply)
	switch len(f.list) {
	case 4:
		return readBusy(f)
	case 5:
		a = answer{yours: true, fence: f.num(0), returned: true, inLine: f.ms(1), sinceCall: f.ms(2), slotFreeFor: f.ms(3), othersParked: int(f.num(4))}
	case 9:
		a, ok = readBusy(f)
		f.wrong = !ok
		a.returned, a.inLine, a.sinceCall, a.othersParked, a.parked = true, f.ms(4), f.ms(5), int(f.num(6)), f.num(7) == 1
		a.sinceTaken = time.Duration(a.serverUS-f.num(8)) * time.Microsecond
	default:
		return answer{}, false
	}
	return a, !f.wrong
}

// readBusy reads the first four fields of a busy reply, which all busy replies have.
func readBusy(f *fields) (a answer, ok bool) {
	a = answer{serverUS: f.num(0), deadline: f.ms(1), morePruning: f.num(1) == 0, place: int(f.num(2)), holder: f.text(3)}
	return a, a.readGate() && !f.wrong
}

func (lockKind) release(le *Lease) (*exchange.Script, []any) {
	m := le.lock
	inbound, life := m.locker.parking.wantedCalls(m)
	return releaseScript, releaseScript.Short([]any{&le.releases, inbound, int64(m.slots()), le.cooldownArgument(), life, le.unusedArgument()})
}

func (lockKind) member(body, _ string) string { return body }

// parseHolder reads h:<token>|<owner>|<note>.
func (lockKind) parseHolder(member string) (inside.Holder, bool) {
	prefix, body, ok := strings.Cut(member, ":")
	f := strings.SplitN(body, "|", 3)
	if !ok || len(f) != 3 || prefix != "h" {
		return inside.Holder{}, false
	}
	return inside.Holder{Token: f[0], Owner: unescape(f[1]), Note: f[2]}, true
}

func (lockKind) pruneSome(m *Lock) (more bool) {
	l := m.locker
	reply, err := l.conn.Run(context.Background(), callScript, m.keys, l.parking.args(m, "", inside.FateUnsure))
	if err != nil {
		return false
	}
	l.parking.handleCalls(m, reply)
	return mustPruneAgain(reply)
}

// poolKind is the kind of pools, whose slots are values.
type poolKind struct{}

func (poolKind) mayTakeString(*Lock) bool { return false }

func (poolKind) ask(le *Lease, mode askMode) (*exchange.Script, []any) {
	return poolTakeScript, []any{&le.asks, le.lock.ttlArg, mode.lifetime()}
}

func (poolKind) parse(reply any) (a answer, ok bool) {
	switch f := listOf(reply); len(f.list) {
	case 2:
		a = answer{yours: true, fence: f.num(0), value: f.text(1)}
		return a, !f.wrong
	case 4:
		return readBusy(f)
	}
	return answer{}, false
}

func (poolKind) release(le *Lease) (*exchange.Script, []any) {
	consume := ""
	if le.consuming.Load() {
		consume = le.value
	}
	return poolReleaseScript, []any{&le.releases, consume}
}

func (poolKind) member(body, value string) string { return value + "|" + body }

// parseHolder reads h:<value>|<token>|<owner>|<note>.
func (poolKind) parseHolder(member string) (inside.Holder, bool) {
	_, body, _ := strings.Cut(member, "|")
	return lockKind{}.parseHolder("h:" + body)
}

func (poolKind) pruneSome(m *Lock) (more bool) {
	reply, err := m.locker.conn.Run(context.Background(), poolPutScript, m.keys, nil)
	r, _ := reply.([]any)
	return err == nil && len(r) == 3 && r[2] == int64(1)
}
