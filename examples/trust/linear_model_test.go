package trust

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
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
