package trust

import (
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// What the model allows, and what it does not: one step after the other, unless
// times say that they overlap.
func TestLinear_model(t *testing.T) {
	t.Parallel()
	type step struct {
		from, to int64 // 0, 0: after all before it
		op       linOp
	}
	take := func(stay, rank int16) linOp { return linOp{kind: linTake, stay: stay, rank: rank} }
	op := func(kind linKind, stay int16) linOp { return linOp{kind: kind, stay: stay, rank: stay} }
	gives := func(stay int16, free int) linOp { return linOp{kind: linRelease, stay: stay, ok: true, free: free} }
	tell := func(kind linKind, stay int16, ok bool) linOp { return linOp{kind: kind, stay: stay, ok: ok} }
	busy := linOp{kind: linBusy}
	for _, c := range []struct {
		name  string
		limit int
		steps []step
		stuck string // the step that has no place; "": all have one
	}{
		{"one after the other", 1, []step{{op: take(1, 1)}, {op: gives(1, 1)}, {op: take(2, 2)}}, ""},
		{"two hold a mutex", 1, []step{{op: take(1, 1)}, {op: take(2, 2)}}, "take 2"},
		{"two of two", 2, []step{{op: take(1, 1)}, {op: take(2, 2)}, {op: busy}}, ""},
		{"three of two", 2, []step{{op: take(1, 1)}, {op: take(2, 2)}, {op: take(3, 3)}}, "take 3"},
		{"a take that overlaps the release", 1, []step{{op: take(1, 1)}, {20, 30, gives(1, 1)}, {25, 35, take(2, 2)}}, ""},
		{"a take before the release", 1, []step{{op: take(1, 1)}, {20, 24, take(2, 2)}, {25, 35, gives(1, 1)}}, "take 2"},

		{"busy with nobody there", 1, []step{{op: busy}}, "busy"},
		{"busy with one unseen", 1, []step{{op: linOp{kind: linBusy, maybe: 1}}}, ""},
		{"busy with one of two", 2, []step{{op: take(1, 1)}, {op: busy}}, "busy"},
		{"busy for the line", 1, []step{{op: take(1, 1)}, {op: op(linJoin, 2)}, {30, 60, gives(1, 0)}, {40, 50, busy}, {30, 60, op(linGranted, 2)}}, ""},
		{"in line with a slot free", 1, []step{{op: op(linJoin, 1)}}, "join 1"},

		{"the line in order", 1, []step{
			{op: take(1, 1)}, {op: op(linJoin, 2)}, {op: op(linJoin, 3)},
			{op: gives(1, 0)}, {op: op(linGranted, 2)}, {op: gives(2, 0)}, {op: op(linGranted, 3)},
		}, ""},
		{"the second in line first", 1, []step{{op: take(1, 1)}, {op: op(linJoin, 3)}, {op: op(linJoin, 2)}, {op: gives(1, 0)}, {op: op(linGranted, 2)}}, "granted 2"},
		{"overtaken by a newcomer", 1, []step{{op: take(1, 1)}, {op: op(linJoin, 3)}, {op: gives(1, 0)}, {op: take(2, 2)}, {op: op(linGranted, 3)}}, "take 2"},
		{"a release that forgets the line", 1, []step{{op: take(1, 1)}, {op: op(linJoin, 2)}, {op: gives(1, 1)}, {op: op(linGranted, 2)}}, "release 1"},

		{"a release by somebody else", 1, []step{{op: take(1, 1)}, {op: tell(linEnd, 1, false)}, {op: take(2, 2)}, {op: gives(1, 1)}}, "release 1"},
		{"a late release", 1, []step{{op: take(1, 1)}, {op: tell(linEnd, 1, false)}, {op: take(2, 2)}, {op: tell(linRelease, 1, false)}, {op: gives(2, 1)}}, ""},
		{"a release that finds nothing", 1, []step{{op: take(1, 1)}, {op: tell(linRelease, 1, false)}}, "release 1"},
		{"taken before its end", 1, []step{{op: take(1, 1)}, {op: take(2, 2)}, {30, 90, tell(linEnd, 1, false)}}, "take 2"},

		{"extended", 1, []step{{op: take(1, 1)}, {op: tell(linExtend, 1, true)}, {op: gives(1, 1)}}, ""},
		{"extended after its end", 1, []step{{op: take(1, 1)}, {op: tell(linEnd, 1, false)}, {op: tell(linExtend, 1, true)}}, "extend 1"},
		{"extended after it was broken", 1, []step{{op: take(1, 1)}, {op: tell(linBreak, 1, true)}, {op: tell(linExtend, 1, true)}}, "extend 1"},
		{"not extended though held", 1, []step{{op: take(1, 1)}, {op: tell(linExtend, 1, false)}}, "extend 1"},
		{"lost though held", 1, []step{{op: take(1, 1)}, {op: op(linLost, 1)}}, "lost 1"},
		{"broken", 1, []step{{op: take(1, 1)}, {op: tell(linBreak, 1, true)}, {op: op(linLost, 1)}, {op: take(2, 2)}, {op: tell(linRelease, 1, false)}}, ""},
		{"broken twice", 1, []step{{op: take(1, 1)}, {op: tell(linBreak, 1, true)}, {op: tell(linBreak, 1, true)}}, "break 1"},
		{"not broken though held", 1, []step{{op: take(1, 1)}, {op: tell(linBreak, 1, false)}}, "break 1"},

		{"a fence that falls", 1, []step{{op: take(1, 2)}, {op: gives(1, 1)}, {op: take(2, 1)}}, "take 1"},
		{"a fence that falls, in a semaphore", 3, []step{{op: take(1, 2)}, {op: take(2, 1)}}, "take 1"},
		{"fences of two at once", 2, []step{{10, 20, take(1, 2)}, {10, 20, take(2, 1)}}, ""},

		{"free ones", 3, []step{{op: take(1, 1)}, {op: linOp{kind: linAvailable, free: 2}}}, ""},
		{"one free too many", 3, []step{{op: take(1, 1)}, {op: linOp{kind: linAvailable, free: 3}}}, "available"},
		{"one free too few", 3, []step{{op: take(1, 1)}, {op: linOp{kind: linAvailable, free: 1}}}, "available"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var history []porcupine.Operation
			for i, s := range c.steps {
				if s.from == 0 {
					s.from = int64(10 * (i + 1))
					s.to = s.from + 5
				}
				history = append(history, porcupine.Operation{ClientId: i, Input: &s.op, Call: s.from, Return: s.to})
			}
			verdict := linVerdict(c.limit, history)
			switch {
			case c.stuck == "" && verdict != "":
				t.Error(verdict)
			case c.stuck != "" && !strings.Contains(verdict, "not linearizable"):
				t.Errorf("%q is to have no place: %q", c.stuck, verdict)
			case c.stuck != "" && !strings.Contains(verdict, `no place for "`+c.stuck):
				t.Errorf("%q is to have no place: %s", c.stuck, verdict)
			}
		})
	}
}
