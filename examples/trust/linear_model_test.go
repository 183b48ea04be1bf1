package trust

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/automutex/automutex/lock"
)

// linOp is one step of a history: what was asked, what came of it, and what else
// may have taken slots at that time. The model sees nothing but these.
type linOp struct {
	kind  linKind
	stay  int16 // whose: a lease's number in this history, from 1; 0: of no lease
	ok    bool  // release: held; extend: done; break: it was a holder
	rank  int16 // take, granted: the place of its fence among all fences; 0: not looked at
	free  int   // release: slots free after it, or linUnknown; available: slots free
	maybe int   // how many unseen ones may have had a slot or a place in line (see linHistory)
}

type linKind uint8

const (
	linTake      linKind = iota // a slot at once
	linJoin                     // no slot: a place in line
	linGranted                  // the first in line has a slot
	linUnplaced                 // a slot after a wait so long that the place may have been lost
	linBusy                     // no slot
	linRelease                  // a lease is given back
	linExtend                   // a lease is made longer
	linBreak                    // a lease is taken away
	linEnd                      // a lease ends by itself: nobody renewed it
	linLost                     // a holder is told that its lease is over
	linAvailable                // a look
)

func (k linKind) String() string {
	return [...]string{
		"take", "join", "granted", "granted late", "busy", "release", "extend", "break", "end", "lost", "available",
	}[k]
}

const linUnknown = -1

// The most slots, and the most in line, that the state has room for.
const (
	linSlots = 4
	linLine  = 12
)

// linState is a lock as the model has it. It is comparable, and each state has
// one form only: holders are sorted.
type linState struct {
	rank    int16
	holders [linSlots]int16 // 0: none
	line    [linLine]int16  // in order, 0: none
}

func (s *linState) held() int {
	n := 0
	for n < linSlots && s.holders[n] != 0 {
		n++
	}
	return n
}

func (s *linState) waiting() int {
	n := 0
	for n < linLine && s.line[n] != 0 {
		n++
	}
	return n
}

func (s *linState) has(stay int16) bool { return slices.Contains(s.holders[:s.held()], stay) }

func (s *linState) add(stay int16) {
	n := s.held()
	for n > 0 && s.holders[n-1] > stay {
		s.holders[n] = s.holders[n-1]
		n--
	}
	s.holders[n] = stay
}

func (s *linState) remove(stay int16) {
	if i := slices.Index(s.holders[:], stay); i >= 0 {
		copy(s.holders[i:], s.holders[i+1:])
		s.holders[linSlots-1] = 0
	}
}

// linStep is the lock as it should be: what op does to s; false when that cannot
// be. A release that grants, or a purge, is no step of its own here: whoever is
// granted takes that step some time before its call returns, and until then is
// in line, which keeps newcomers out just the same.
func linStep(limit int, s linState, op *linOp) (bool, linState) {
	held, waiting := s.held(), s.waiting()
	full := held+waiting+op.maybe >= limit
	grant := func() (bool, linState) {
		if held >= limit || op.rank != 0 && op.rank != s.rank+1 {
			return false, s // no slot, or a fence that is not above all before
		}
		if op.rank != 0 {
			s.rank = op.rank
		}
		s.add(op.stay)
		return true, s
	}
	switch op.kind {
	case linTake:
		if waiting > 0 {
			return false, s // nobody overtakes the line
		}
		return grant()
	case linJoin:
		s.line[waiting] = op.stay
		return full, s
	case linGranted:
		if s.line[0] != op.stay {
			return false, s // first come, first served
		}
		copy(s.line[:], s.line[1:])
		s.line[linLine-1] = 0
		return grant()
	case linUnplaced:
		return grant()
	case linBusy:
		return full, s
	case linRelease:
		if op.ok != s.has(op.stay) {
			return false, s
		}
		s.remove(op.stay)
		most := max(0, limit-s.held()-waiting)
		least := max(0, most-op.maybe)
		return !op.ok || op.free == linUnknown || least <= op.free && op.free <= most, s
	case linExtend:
		return op.ok == s.has(op.stay), s
	case linBreak:
		ok := op.ok == s.has(op.stay)
		s.remove(op.stay)
		return ok, s
	case linEnd:
		ok := s.has(op.stay)
		s.remove(op.stay)
		return ok, s
	case linLost:
		return !s.has(op.stay), s
	case linAvailable:
		// Those in line here may have been granted already.
		return limit-held-waiting-op.maybe <= op.free && op.free <= limit-held, s
	}
	panic(fmt.Sprintf("no such step: %d", op.kind))
}

// linModel is a lock with so many slots, for the checker.
func linModel(limit int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return linState{} },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := linStep(limit, state.(linState), input.(*linOp))
			return ok, next
		},
		DescribeOperation: func(input, _ any) string { return input.(*linOp).String() },
		DescribeState: func(state any) string {
			s := state.(linState)
			return fmt.Sprintf("held by %v of %d, in line %v", s.holders[:s.held()], limit, s.line[:s.waiting()])
		},
	}
}

// linFences is the order of fences alone, for a semaphore: there a lease may
// have a slot, and be given a higher fence while it still waits for the news, so
// that slots and fences need not be taken in one order.
func linFences() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int16(0) },
		Step: func(state, input, _ any) (bool, any) {
			rank := input.(*linOp).rank
			return rank == state.(int16)+1, rank
		},
		DescribeOperation: func(input, _ any) string { return input.(*linOp).String() },
	}
}

func (op *linOp) String() string {
	s := op.kind.String()
	if op.stay != 0 {
		s += fmt.Sprintf(" %d", op.stay)
	}
	switch op.kind {
	case linRelease, linExtend:
		s += map[bool]string{true: ": was held", false: ": was not held"}[op.ok]
	case linBreak:
		s += map[bool]string{true: ": it was", false: ": no such holder"}[op.ok]
	default:
	}
	if op.kind == linRelease && op.ok && op.free != linUnknown || op.kind == linAvailable {
		s += fmt.Sprintf(", %d free", op.free)
	}
	if op.maybe > 0 {
		s += fmt.Sprintf(" (%d unseen)", op.maybe)
	}
	return s
}

// linCheckWithin bounds the checker for one history; it needs milliseconds.
const linCheckWithin = 30 * time.Second

// linVerdict is what the checker says of a history: "" when it is linearizable.
func linVerdict(limit int, history []porcupine.Operation) string {
	if limit > 1 {
		var fences []porcupine.Operation
		plain := slices.Clone(history)
		for i, op := range history {
			if in := op.Input.(*linOp); in.rank != 0 {
				fences = append(fences, op)
				unranked := *in
				unranked.rank = 0
				plain[i].Input = &unranked
			}
		}
		history = plain
		if verdict := linCheck(linFences(), fences); verdict != "" {
			return "fences: " + verdict
		}
	}
	return linCheck(linModel(limit), history)
}

func linCheck(model porcupine.Model, history []porcupine.Operation) string {
	switch porcupine.CheckOperationsTimeout(model, history, linCheckWithin) {
	case porcupine.Ok:
		return ""
	case porcupine.Unknown:
		return fmt.Sprintf("undecided after %s", linCheckWithin)
	default:
		// Again, for what stands in the way.
		_, info := porcupine.CheckOperationsVerbose(model, history, linCheckWithin)
		return "not linearizable: " + linStuck(model, history, &info)
	}
}

// linStuck says where the longest order that the checker found ends: the step
// that had to come by then and cannot, and the last ones before it.
func linStuck(model porcupine.Model, history []porcupine.Operation, info *porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	placed := make(map[any]bool, len(longest))
	state := model.Init()
	for _, op := range longest {
		placed[op.Input] = true
		_, state = model.Step(state, op.Input, op.Output)
	}
	var stuck *porcupine.Operation
	by := int64(math.MaxInt64)
	for i, op := range history {
		if !placed[op.Input] && op.Return < by {
			stuck, by = &history[i], op.Return
		}
	}
	if stuck == nil {
		return "in no order"
	}
	describe := func(op porcupine.Operation) string { return model.DescribeOperation(op.Input, op.Output) }
	var before []string
	for _, op := range longest[max(0, len(longest)-6):] {
		before = append(before, describe(op))
	}
	s := fmt.Sprintf("no place for %q after %q", describe(*stuck), strings.Join(before, "; "))
	if model.DescribeState != nil {
		s += ", when it is " + model.DescribeState(state)
	}
	return s
}

// linForever is later than everything in a history.
const linForever = int64(math.MaxInt64)

// How long Redis may take to run what had been sent when a process died, and
// what its own clock, which counts in milliseconds, may be off.
const (
	linLate  = int64(time.Second)
	linClock = int64(5 * time.Millisecond)
	linStay  = int64(3 * time.Second) // life of a place in line that nobody keeps
)

// linNow is the monotonic clock of all histories, in ns.
func linNow() int64 { return int64(time.Since(linEpoch)) }

var linEpoch = time.Now()

// linStayed is one lease in a history. Its client writes it; breakers write the
// fields under mu; it is read when all of them are done.
type linStayed struct {
	lease    *lock.Lease
	fence    int64 // 0: it was not told
	site     *linSite
	number   int16
	called   int64 // when it was asked for
	ttl      time.Duration
	bounded  bool  // it is not renewed
	until    int64 // bounded: when Redis has let go of it at the latest
	released bool  // it was given back, and was held then
	leaving  int64 // when it was to be given back, but was over, or no answer came; 0: never
	lostBy   int64 // when that answer came; 0: never

	mu     sync.Mutex
	broken bool  // somebody was told that it was taken away
	shaken int64 // since when a break may or may not have run; 0: none
}

// deadline is until when the library says that the lease is its holder's for
// certain. Asked when everything is over.
func (s *linStayed) deadline() int64 { return int64(s.lease.Deadline().Sub(linEpoch)) }

// dead tells whether the lease's process has died: its client does no more.
func (s *linStayed) dead() bool { return s.site.ctx.Err() != nil }

// linEvent is a step as a client saw it, with the times between which it took
// place.
type linEvent struct {
	client   int
	from, to int64
	stay     *linStayed // nil: of no lease
	op       linOp
	own      *linMaybe // what this very call may have had besides: not counted for it
}

// linMaybe is a call that may have had a slot, or a place in line, without
// anybody being told: a wait that was given up, a call whose process died. For
// that time others may find the lock busy, and nothing else follows from it.
type linMaybe struct{ from, to int64 }

// linRecord is what one client did on one lock. No other goroutine writes it.
type linRecord struct {
	events []linEvent
	maybes []*linMaybe
	stays  []*linStayed
}

// linHistory makes of what the clients of one lock recorded the history that is
// to be checked. What clients cannot see is put in here:
//
//   - A lease that nobody gave back, or whose release said "not held", has ended
//     by itself: not before the deadline that the library believed in, and not
//     after the one that Redis can have had.
//   - What became of a call without an answer is not known: it may have had a slot.
func linHistory(records []*linRecord) []porcupine.Operation {
	var all linRecord
	for _, r := range records {
		all.events = append(all.events, r.events...)
		all.maybes = append(all.maybes, r.maybes...)
		all.stays = append(all.stays, r.stays...)
	}
	slices.SortFunc(all.stays, func(a, b *linStayed) int { return int(a.fence - b.fence) })
	rank := make(map[*linStayed]int16, len(all.stays))
	ranked := int16(0)
	for i, s := range all.stays {
		s.number = int16(i + 1)
		if s.fence > 0 {
			ranked++
			rank[s] = ranked
		}
	}

	var history []porcupine.Operation
	put := func(e linEvent) {
		op := e.op
		if e.stay != nil {
			op.stay = e.stay.number
			if op.kind == linTake || op.kind == linGranted || op.kind == linUnplaced {
				op.rank = rank[e.stay]
			}
		}
		for _, m := range all.maybes {
			if m != e.own && m.from <= e.to && e.from <= m.to {
				op.maybe++
			}
		}
		history = append(history, porcupine.Operation{ClientId: e.client, Input: &op, Call: e.from,
			Return: max(e.from, e.to)})
	}
	for _, e := range all.events {
		switch e.op.kind {
		case linExtend, linLost, linRelease:
			// Once the deadline has passed by the client's own clock it says so,
			// whether or not Redis has let go yet.
			if !e.op.ok && e.stay.deadline() <= e.to {
				continue
			}
		default:
		}
		put(e)
	}
	for _, s := range all.stays {
		if end, ok := s.end(); ok {
			put(end)
		}
	}
	return history
}

// end is when the lease ended by itself; false when somebody ended it.
func (s *linStayed) end() (linEvent, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released || s.broken {
		return linEvent{}, false
	}
	from, to := s.deadline(), linForever
	if s.leaving != 0 && (s.lostBy == 0 || from <= s.lostBy) {
		// Or the release itself ended it: go-redis lost the first answer, and the
		// second came when the deadline had passed.
		from = min(from, s.leaving)
	}
	if s.shaken != 0 {
		from = min(from, s.shaken)
	}
	if s.bounded {
		to = s.until + linClock
	} else if died := s.site.died.Load(); died != 0 {
		to = max(died+int64(s.ttl), s.until) + linLate
	}
	if s.lostBy != 0 {
		to = min(to, s.lostBy)
	}
	from = max(from, s.called)
	return linEvent{from: from, to: max(from, to), stay: s, op: linOp{kind: linEnd}}, true
}
