package engine

import (
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/life"
)

// This file decides how one caller waits in line: when it asks Redis, for what, and how its wait ends. It only sees
// what comes and the time; line.go carries out the moves. testdata/waits.txt has stories.

const (
	// how often a waiter asks again. A lost message delays it by about that long at most
	refreshEvery = time.Second
	// what is due so soon goes with what is due now
	together = refreshEvery / 4
	// entryLifetime is how long a line entry lives in Redis without another ask. With less, one slow exchange would cost a
	// live waiter its place. With more, more waiters of a dead process would be granted the lock, each for its lease.
	entryLifetime = 3 * refreshEvery
	// how long a waiter goes on asking while Redis does not answer. After entryLifetime a grant may drop its entry,
	// and the next ask joins at the end of the line.
	patience = 15 * time.Second
	// a gate closed for longer has a waiter park at once
	longGate = time.Second
)

// askMode is what an ask does when no slot is free.
type askMode uint8

const (
	askTry        askMode = iota // nothing
	askJoin                      // join the line, or stay in it, for entryLifetime
	askJoinOrPark                // so; but park if it is an ordered key, whose head is away
	askPark                      // keep a place in line without a goroutine
	askFree                      // nothing; nor is it sent, but for the SET of a lock that seems free
)

// lifetime is how long an ask's line entry lives (ms); 0: it does not join the line.
func (a askMode) lifetime() int64 {
	if a == askJoin || a == askJoinOrPark {
		return entryLifetime.Milliseconds()
	}
	return 0
}

// terms do not change.
type terms struct {
	gateBy  time.Time     // it ends at once, tooLate, if the gate opens later; zero: it does not
	mayPark bool          // it may park
	atPause bool          // a pause ends it
	grant   time.Duration // how long a lease lasts that a message grants
	counted time.Duration // the part of grant that the holder counts on
	// grant is less than the caller wants, and not renewed: it asks for the rest first
	short bool
}

func (t *terms) isTooLate(opens time.Time) bool {
	return !t.gateBy.IsZero() && t.gateBy.Before(opens)
}

// move is what line.go does next. All but stay end the wait.
type move uint8

const (
	stay            move = iota // nothing: next says when to ask again
	won                         // hand out the lock that the reply gave
	granted                     // hand out the lock that a message gave: see hint
	parkedOrRefused             // it is parked, or refused because a holder has its note: see last
	failed                      // return the error of the ask
	tooLate                     // return that it is busy: the gate opens too late
	paused                      // return that it is busy: an operator has paused the lock
	leave                       // send the leave: the caller has given up, and no ask is under way any more
)

// turn is one caller's wait, from before its first ask. Asks and the leave never overlap: if the leave reached Redis
// before an ask, that ask would take the lock for a caller that is gone. Not safe for concurrent use.
type turn struct {
	terms terms

	over     bool    // it has ended, or the caller has given up
	gaveUp   bool    // the caller has
	parkNext bool    // the next ask parks it
	asking   bool    // an ask is under way
	mode     askMode // what it asks
	repeat   bool    // ask once more after it

	askedAt   time.Time // when the last ask with a busy reply was sent
	repliedAt time.Time // when Redis last replied, for patience
	refreshAt time.Time // when to ask again at the latest
	// when a slot may come free without a release: the first deadline, or the gate opens; zero: not known, or waiters
	// with a better place ask then, see sawBusy
	slotFreeAt time.Time
	last       Answer // the last busy reply
	ticket     int64  // its place in line, Redis' time (us); 0: it has none yet
	// the newest message of a grant or a break; zero once a later ask was busy, so it is stale
	hint   message
	hintAt time.Time
}

// newTurn returns a turn whose first ask is under way: the caller sends it.
func newTurn(t terms, parkNow bool) turn {
	w := turn{terms: t, parkNext: parkNow}
	w.begin()
	return w
}

func (w *turn) putOff(now time.Time) { w.asking, w.refreshAt = false, now }

func (w *turn) begin() {
	w.asking, w.repeat, w.mode = true, false, askJoin
	switch {
	case w.parkNext:
		w.mode = askPark
	case w.terms.mayPark:
		w.mode = askJoinOrPark
	}
}

// regret gives back a grant that came after a pause, by an ask that is due at once. It parks who may.
func (w *turn) regret(now time.Time) move {
	w.parkNext = w.parkNext || w.terms.mayPark
	w.refreshAt, w.slotFreeAt = now, time.Time{}
	return stay
}

// next is when due is to be called; zero: not for now.
func (w *turn) next() time.Time {
	if w.asking || w.over {
		return time.Time{}
	}
	return life.Earliest(w.refreshAt, w.slotFreeAt)
}

// due reports whether an ask is to be sent now; it is under way then.
func (w *turn) due(now time.Time) bool {
	free := !w.slotFreeAt.IsZero() && !w.slotFreeAt.After(now)
	if w.asking || w.over || !free && w.refreshAt.After(now.Add(together)) {
		return false
	}
	w.begin()
	return true
}

type askReply struct {
	Answer
	err   error     // instead of Answer
	final bool      // asking again does not change err
	sent  time.Time // when the ask was sent
	slots int       // how many may hold the lock
}

func (w *turn) replied(r askReply, now time.Time) move {
	w.asking = false
	switch {
	case w.gaveUp:
		if r.err == nil && r.Parked { // the caller returns, and its place in line stays
			w.last = r.Answer
		}
		return leave
	case r.err != nil && (r.final || now.Sub(w.repliedAt) > patience):
		return w.end(failed)
	case r.err != nil:
		// An old slotFreeAt that has passed would have asks sent without a pause.
		w.refreshAt, w.slotFreeAt = now.Add(refreshEvery/4), time.Time{}
		return stay
	case r.Yours && w.hint.fence == brokenFence && r.Fence < w.hint.serverUS: // it was taken away since the ask ran
		w.hint, w.refreshAt, w.slotFreeAt = message{}, now, time.Time{}
		return stay
	case r.Yours && r.Pause != nil: // it was asked with more
		w.repliedAt = now
		return w.regret(now)
	case r.Yours:
		return w.end(won)
	case r.Parked || w.mode == askPark:
		w.last = r.Answer
		return w.end(parkedOrRefused)
	}
	return w.sawBusy(r, now)
}

func (w *turn) end(m move) move {
	w.over = true
	return m
}

func (w *turn) sawBusy(r askReply, now time.Time) move {
	w.last, w.askedAt, w.repliedAt = r.Answer, r.sent, now
	if w.ticket == 0 {
		w.ticket = r.ServerUS - r.InLine.Microseconds()
	}
	if w.hintAt.Before(r.sent) {
		w.hint = message{} // the caller did not hold the lock at this later reply
	}
	if w.terms.mayPark && (r.Gate > longGate || r.Pause != nil) {
		w.parkNext = true // nobody may take the lock for a while
	}
	w.refreshAt, w.slotFreeAt = now.Add(refreshEvery), time.Time{}
	if w.repeat || w.parkNext {
		w.refreshAt = now
	}
	// Only the first waiters, one for each slot, watch the first deadline, and only the first one the gate.
	switch {
	case r.Gate > 0 && r.Place == 0:
		w.slotFreeAt = now.Add(r.Gate)
	case r.Gate == 0 && r.Deadline >= 0 && r.Place < r.slots:
		w.slotFreeAt = now.Add(r.Deadline + time.Millisecond)
	}
	switch {
	case r.Pause != nil && r.Pause != control.Unread && w.terms.atPause:
		return w.end(paused)
	case r.Gate > 0 && !w.parkNext && w.terms.isTooLate(now.Add(r.Gate)):
		return w.end(tooLate)
	}
	return w.takeGrant(r.Pause != nil, now)
}

// sawGrant takes in a grant; paused: the lock is. While an ask is under way, its reply decides.
func (w *turn) sawGrant(m message, paused bool, now time.Time) move {
	if w.over || m.serverUS <= w.hint.serverUS {
		return stay
	}
	w.hint, w.hintAt = m, now
	if w.asking {
		return stay
	}
	return w.takeGrant(paused, now)
}

// sawBroken takes in a message that a lease granted by message was broken: the caller asks again, without a place.
func (w *turn) sawBroken(m message, now time.Time) {
	if !w.over && m.serverUS >= w.hint.serverUS {
		w.hint, w.hintAt = m, now
		w.askAgain(now)
	}
}

// takeGrant makes the caller the holder if its hint is newer than the last busy reply. (If older, the granted lease
// has ended.)
//
// The lease counts from when the ask with that reply was sent: before the grant, so the caller never counts on it for
// longer than Redis. If less than half is left, or the lease is short, it asks for a new one instead.
func (w *turn) takeGrant(paused bool, now time.Time) move {
	if w.hint.serverUS <= w.last.ServerUS || w.hint.fence == brokenFence {
		return stay
	}
	if paused {
		return w.regret(now)
	}
	if left := w.askedAt.Add(w.terms.counted).Sub(now); w.terms.short || left < w.terms.grant/2 {
		w.refreshAt = now
		return stay
	}
	return w.end(granted)
}

// gateOpens takes the message that the gate opens after in: the first in line asks then. An old message costs one ask;
// for a lost one the next refresh asks.
func (w *turn) gateOpens(serverUS int64, in time.Duration, now time.Time) {
	if serverUS > w.last.ServerUS {
		w.slotFreeAt = now.Add(in)
		w.repeat = true // an ask under way may not know of the gate, and overwrites slotFreeAt
		if w.terms.isTooLate(w.slotFreeAt) {
			w.refreshAt = now
		}
	}
}

// askAgain has the caller ask at once, or after the ask under way.
func (w *turn) askAgain(now time.Time) { w.refreshAt, w.repeat = now, true }

// parkSoon makes the next ask a parking one, due at once. A caller that is granted the lock meanwhile does not park.
func (w *turn) parkSoon(now time.Time) {
	if !w.parkNext {
		w.parkNext, w.refreshAt = true, now
	}
}

// giveUp ends the wait. It returns stay while an ask is under way: its reply then says leave.
func (w *turn) giveUp() move {
	w.over, w.gaveUp = true, true
	if w.asking {
		return stay
	}
	return leave
}

// Answer is the reply to an ask: "yours", the asker holds the lock, or "busy".
type Answer struct {
	Yours    bool
	Fence    int64         // yours
	Value    string        // yours: what was taken out of a pool, escaped
	ServerUS int64         // busy: Redis' time (us)
	Deadline time.Duration // busy: until the first deadline; below 0: no holder
	Place    int           // busy: waiters before the asker
	Holder   string        // busy: the body of one holder, or the head of an ordered key; empty: none
	Gate     time.Duration // busy: until the gate opens, if the asker waits for that; else 0
	Reason   string        // busy: what closed the gate
	// Pause keeps the asker out, whatever the script says: see control.Bounds; nil: none does.
	Pause *control.Order

	// Returned: the asker's note was parked or called before, or this ask parked it. The fields below are zero otherwise.
	Returned     bool
	InLine       time.Duration // since the note's first place in line
	SinceCall    time.Duration // since the note was called; below 0: it was not
	OthersParked int           // how many more notes are parked
	Parked       bool          // busy: the note is parked now
}

// message is published to the holder or waiter with a token: a grant, or what a negative fence names.
type message struct {
	token    string
	fence    int64  // of a grant: its fence; else brokenFence, stopFence or gateFence
	serverUS int64  // Redis' time when the script ran
	value    string // of a grant: what was taken out of a pool, escaped; of gateFence: opens in (us)
}

const ( // as in lua/send.lua
	brokenFence = -1 // the holder's lease was broken
	stopFence   = -2 // a newer arrival asks the holder or waiter to stop
	gateFence   = -3 // to the first waiter: when the gate opens
)

// parseMessage reads "<token> <fence> <server us>[ <value>]".
func parseMessage(payload string) (message, bool) {
	f := strings.Fields(payload)
	if len(f) != 3 && len(f) != 4 {
		return message{}, false
	}
	fence, err1 := strconv.ParseInt(f[1], 10, 64)
	us, err2 := strconv.ParseInt(f[2], 10, 64)
	msg := message{token: f[0], fence: fence, serverUS: us}
	if len(f) == 4 {
		msg.value = f[3] // escaped: no spaces in it
	}
	return msg, err1 == nil && err2 == nil
}
