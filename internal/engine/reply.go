package engine

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/redisx"
)

// ok is false for a reply that ask.lua does not list.
func parseAsk(reply any, pool bool) (a Answer, ok bool) {
	f := &fields{}
	switch reply := reply.(type) {
	case int64:
		return Answer{Yours: true, Fence: reply}, reply > 0
	case []any:
		f.list = reply
	}
	switch {
	case len(f.list) == 2 && pool:
		a = Answer{Yours: true, Fence: f.num(0), Value: f.text(1)}
	case len(f.list) == 4 && f.isNum(3):
		a = Answer{Yours: true, Fence: f.num(0), Returned: true, InLine: f.ms(1), SinceCall: f.ms(2),
			OthersParked: int(f.num(3))}
	case len(f.list) == 4 || len(f.list) == 8:
		a = Answer{ServerUS: f.num(0), Deadline: f.ms(1), Place: int(f.num(2)), Holder: f.text(3)}
		if gate, closed := strings.CutPrefix(a.Holder, "g:"); closed {
			reason, in, _ := strings.Cut(gate, " ")
			us, err := strconv.ParseInt(in, 10, 64)
			a.Reason, a.Gate, a.Holder = reason, time.Duration(us)*time.Microsecond, ""
			f.wrong = f.wrong || err != nil || us <= 0
		}
		if len(f.list) == 8 {
			a.Returned, a.InLine, a.SinceCall, a.OthersParked, a.Parked = true, f.ms(4), f.ms(5), int(f.num(6)), f.num(7) == 1
		}
	default:
		return Answer{}, false
	}
	return a, !f.wrong
}

// isStopped: the script has stopped at its bound, so the asker asks again now. Each such ask has taken waiters out of
// the way, so asking ends.
func isStopped(a Answer) bool { return !a.Yours && !a.Parked && a.Deadline == 0 && a.ServerUS > 0 }

// named is a reply of check, of order_act, or the rest of one of release.
type named struct {
	free   int           // slots
	parked int           // notes that are parked and not called
	called []string      // notes to call; of an ordered key tasks, see ParseItem
	opens  time.Duration // with parked or called notes: until the first deadline or the gate opens; below 0: neither
	gated  bool          // the gate is closed
}

func parseNamed(reply any) (n named, err error) {
	f := &fields{list: []any{reply}}
	if list, isList := reply.([]any); isList {
		f.list = list
		n.parked, n.opens = int(f.num(1)), f.ms(2)
		if n.gated = n.opens < -time.Millisecond; n.gated {
			n.opens = -time.Millisecond - n.opens
		}
		for i := 3; i < len(list); i++ {
			n.called = append(n.called, f.text(i))
		}
	}
	if n.free = int(f.num(0)); f.wrong {
		err = unexpected(reply)
	}
	return n, err
}

type released struct {
	named
	held   bool
	resent bool      // one that was sent before may have run
	grants []message // to waiters of this process
}

func parseRelease(reply any) (r released, err error) {
	rest := reply
	if list, isList := reply.([]any); isList && len(list) > 1 {
		if _, isText := list[1].(string); isText {
			rest = list[0]
			for _, one := range list[1:] {
				text, _ := one.(string)
				if msg, ok := parseMessage(text); ok {
					r.grants = append(r.grants, msg)
				}
			}
		}
	}
	if r.named, err = parseNamed(rest); r.free < 0 {
		r.free = -1 - r.free
	} else {
		r.held = true
	}
	return r, err
}

func unexpected(reply any) error { return fmt.Errorf("unexpected reply %v", reply) }

func wrongReply(op, key string, reply any) error { return redisx.Failed(op, key, unexpected(reply)) }

// fields reads a list. wrong: a field was missing or of another type.
type fields struct {
	list  []any
	wrong bool
}

func fieldsOf(reply any) *fields {
	list, isList := reply.([]any)
	return &fields{list, !isList}
}

func (f *fields) sub(i int) *fields {
	sub := fieldsOf(f.at(i))
	f.wrong = f.wrong || sub.wrong
	return sub
}

// score is the number at i, a member's score.
func (f *fields) score(i int) int64 {
	n, err := strconv.ParseFloat(f.text(i), 64)
	f.wrong = f.wrong || err != nil
	return int64(n)
}

func (f *fields) isNum(i int) bool {
	_, is := f.list[i].(int64)
	return is
}

func (f *fields) num(i int) int64 {
	n, ok := f.at(i).(int64)
	f.wrong = f.wrong || !ok
	return n
}

func (f *fields) text(i int) string {
	s, ok := f.at(i).(string)
	f.wrong = f.wrong || !ok
	return s
}

func (f *fields) at(i int) any {
	if i < len(f.list) {
		return f.list[i]
	}
	return nil
}

func (f *fields) ms(i int) time.Duration { return time.Duration(f.num(i)) * time.Millisecond }
