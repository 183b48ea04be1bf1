package wire

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// Answer is the reply to an ask: "yours", the asker holds the lock, or "busy".
type Answer struct {
	Yours    bool
	Fence    int64         // yours
	Value    string        // yours: what was taken out of a pool
	ServerUS int64         // busy: Redis' time (us)
	Deadline time.Duration // busy: until the first deadline; below 0: no holder
	Place    int           // busy: waiters before the asker
	Holder   string        // busy: the member of one holder; empty: none
	Gate     time.Duration // busy: until the gate opens, if the asker waits for that; else 0
	Reason   string        // busy: what closed the gate

	// returned: the asker's note was parked or called before, or this ask parked it. The
	// fields below are zero otherwise.
	Returned     bool
	InLine       time.Duration // since the note's first place in line
	SinceCall    time.Duration // since the note was called; below 0: it was not
	SlotFreeFor  time.Duration // yours: how long the slot was free
	OthersParked int           // how many more notes are parked
	Parked       bool          // busy: the note is parked now
	SinceTaken   time.Duration // busy: how long ago the lock was last taken

	// refused is refusedDone or RefusedSpent if the task of an ordered key does not get the lock, and has no
	// place to wait in.
	Refused string
}

// ParseAsk reads a reply of the script ask; ok is false for one that its header does not list.
func ParseAsk(reply any) (a Answer, ok bool) {
	if fence, isNumber := reply.(int64); isNumber {
		return Answer{Yours: true, Fence: fence}, true
	}
	f := listOf(reply)
	switch len(f.list) {
	case 4:
		return readBusy(f)
	case 5:
		a = Answer{Yours: true, Fence: f.num(0), Returned: true, InLine: f.ms(1), SinceCall: f.ms(2), SlotFreeFor: f.ms(3), OthersParked: int(f.num(4))}
	case 9:
		a, ok = readBusy(f)
		f.wrong = !ok
		a.Returned, a.InLine, a.SinceCall, a.OthersParked, a.Parked = true, f.ms(4), f.ms(5), int(f.num(6)), f.num(7) == 1
		a.SinceTaken = time.Duration(a.ServerUS-f.num(8)) * time.Microsecond
	default:
		return Answer{}, false
	}
	return a, !f.wrong
}

// readBusy reads the first four fields of a busy reply, which all busy replies have.
func readBusy(f *fields) (a Answer, ok bool) {
	a = Answer{ServerUS: f.num(0), Deadline: f.ms(1), Place: int(f.num(2)), Holder: f.text(3)}
	return a, a.readGate() && !f.wrong
}

// ParseTake reads a reply of the script pool_take.
func ParseTake(reply any) (a Answer, ok bool) {
	switch f := listOf(reply); len(f.list) {
	case 2:
		a = Answer{Yours: true, Fence: f.num(0), Value: f.text(1)}
		return a, !f.wrong
	case 4:
		return readBusy(f)
	}
	return Answer{}, false
}

// readGate reads the gate, which a busy reply names in place of a holder while it is closed:
// "g:<reason> <for (us)>". It returns false for text of another form.
func (a *Answer) readGate() bool {
	text, closed := strings.CutPrefix(a.Holder, "g:")
	if !closed {
		return true
	}
	reason, in, _ := strings.Cut(text, " ")
	us, err := strconv.ParseInt(in, 10, 64)
	a.Reason, a.Gate, a.Holder = reason, time.Duration(us)*time.Microsecond, ""
	return err == nil && GateText(reason) != "" && us > 0 && us < math.MaxInt64/int64(time.Microsecond)
}

// GateText says why nobody gets a lock whose gate is closed for that reason. It is empty for a
// reason that is not one of the gate.
func GateText(reason string) string { return gateTexts[reason] }

var gateTexts = map[string]string{
	"rate":     "its rate allows no start",
	"closed":   "closed for now",
	"cooldown": "cooling down",
}

// Behind returns the reason of an asker that is behind a head which does not hold the lock, and in how long that head comes
// or is looked for. The reason is empty if the reply names no head.
func (a *Answer) Behind() (reason string, comes time.Duration) {
	head, ok := parseOrderMember(a.Holder)
	back, err := strconv.ParseInt(head.since, 10, 64)
	switch {
	case !ok:
		return "", 0
	case head.state == "h":
		return inside.ReasonArchived, 0
	case head.state != "a" || err != nil:
		return inside.ReasonBehind, 0
	case head.begun != "":
		reason = inside.ReasonFailed
	default:
		reason = inside.ReasonBehind
	}
	return reason, max(0, time.Duration(back-a.ServerUS/1000)*time.Millisecond)
}
