// Package turn decides how one caller waits for its turn in the line of a lock: when it asks
// Redis, for what, and how its wait ends. It sees what comes (replies to asks, messages, what
// the caller wants) and the time, and does nothing itself: package engine sends the asks
// and carries out the steps. testdata/waits.txt tells what it does in stories.
package turn

import (
	"time"

	"github.com/automutex/automutex/internal/life"
)

const (
	// RefreshEvery is how often a waiter asks again. A lost message delays a waiter by
	// about that long at most.
	RefreshEvery = time.Second
	// refreshTogether: an ask that is due this soon goes with one that is due now.
	refreshTogether = RefreshEvery / 4
	// EntryLifetime is how long a line entry lives in Redis without another ask: three
	// refreshes. With less, one slow exchange would cost a live waiter its place. With more,
	// releases would grant the lock to more waiters of a dead process, and each such grant
	// blocks the lock until its lease ends.
	EntryLifetime = 3 * RefreshEvery
	// Patience is how long a waiter goes on asking while Redis does not answer. Its entry in
	// Redis lives for EntryLifetime only. After that a grant may drop the entry, and the next
	// ask makes a new one, at the end of the line.
	Patience = 15 * time.Second
	// longGate is how long the gate must yet be closed for a waiter to park at once.
	longGate = time.Second
)

// Ask is what an ask does when no slot is free.
type Ask uint8

// What an ask may do.
const (
	Try        Ask = iota // nothing
	Join                  // join the line, or stay in it, for EntryLifetime
	JoinOrPark            // so; but park if it is an ordered key, whose head is away
	Park                  // keep a place in line without a goroutine
)

// Lifetime is how long the line entry of an ask lives, in ms, as the scripts take it;
// 0: the ask does not join the line.
func (a Ask) Lifetime() int64 {
	if a == Join || a == JoinOrPark {
		return EntryLifetime.Milliseconds()
	}
	return 0
}

// Terms are how a caller wants to wait. They do not change.
type Terms struct {
	Until   time.Time     // when its wait ends; zero: never
	InTime  bool          // it ends at once, TooLate, if the gate opens after Until
	MayPark bool          // it may park
	Grant   time.Duration // how long a lease lasts that a message grants
	Counted time.Duration // the part of Grant that the holder counts on
	Short   bool          // Grant is less than the caller wants, and is not renewed: it asks for the rest before it has the lock
}

// Step is what package engine does next for a wait. All but Stay end it.
type Step uint8

// The steps.
const (
	Stay            Step = iota // nothing: Next says when to ask again
	Won                         // hand out the lock that the reply gave
	Granted                     // hand out the lock that a message gave: see Grant
	ParkedOrRefused             // it is parked, or refused because a holder has its note: see Last
	Failed                      // return the error of the ask
	TooLate                     // return that it is busy: the gate opens after the wait ends
	Leave                       // send the leave: the caller has given up, and no ask is under way any more
)

// Wait is one caller's wait, from before its first ask. For one wait, asks and the leave never
// overlap: while an ask is under way, nothing else is sent. (If the leave reached Redis
// before an ask that is still on its way, that ask would take the lock for a caller that is
// gone.) It is not safe for concurrent use.
type Wait struct {
	terms Terms

	over     bool // it has ended, or the caller has given up
	left     bool // the caller has given up
	parkNext bool // the next ask parks it
	asking   bool // an ask is under way
	ask      Ask  // what it asks
	repeat   bool // ask once more after it: a message may have been missed since it ran

	askedAt    time.Time // when the last ask with a busy reply was sent
	repliedAt  time.Time // when Redis last replied, for Patience
	RefreshAt  time.Time // when to ask again at the latest; tests may put it off
	SlotFreeAt time.Time // when a slot may come free without a release: the first deadline, or the gate opens; zero: it does not ask then, since it is not known, or waiters with a better place do, see noteBusy
	last       Answer    // the last busy reply
	hint       Message   // the newest message that grants it the lock, or takes it away; zero once a later ask was busy, which proves it stale
	hintAt     time.Time // when it was received
}

// New returns a Wait whose first ask is under way: the caller sends it. With parkNow that ask parks.
func New(t Terms, parkNow bool) Wait {
	w := Wait{terms: t, parkNext: parkNow}
	w.begin()
	return w
}

func (w *Wait) begin() {
	w.asking, w.repeat = true, false
	switch {
	case w.parkNext:
		w.ask = Park
	case w.terms.MayPark:
		w.ask = JoinOrPark
	default:
		w.ask = Join
	}
}

// Asks is what the ask asks that is under way.
func (w *Wait) Asks() Ask { return w.ask }

// Last is the last busy reply.
func (w *Wait) Last() Answer { return w.last }

// Grant is the message that Granted speaks of, and when the lease that it grants counts from.
func (w *Wait) Grant() (granted Message, since time.Time) { return w.hint, w.askedAt }

// Next is when Due is to be called; zero: not for now.
func (w *Wait) Next() time.Time {
	if w.asking || w.over {
		return time.Time{}
	}
	return life.Earliest(w.RefreshAt, w.SlotFreeAt)
}

// Due reports whether the caller is to send an ask now, which then is under way.
func (w *Wait) Due(now time.Time) bool {
	free := !w.SlotFreeAt.IsZero() && !w.SlotFreeAt.After(now)
	if w.asking || w.over || !free && w.RefreshAt.After(now.Add(refreshTogether)) {
		return false
	}
	w.begin()
	return true
}

// Reply is what came of an ask.
type Reply struct {
	Answer
	Err   error     // instead of Answer
	Final bool      // Err is one that asking again does not change
	Sent  time.Time // when the ask was sent
	Slots int       // how many may hold the lock now; 0: it is paused
}

// Replied takes the reply to the ask that is under way.
func (w *Wait) Replied(r Reply, now time.Time) Step {
	w.asking = false
	switch {
	case w.left:
		if r.Err == nil && r.Parked { // the caller returns, and its place in line stays
			w.last = r.Answer
		}
		return Leave
	case r.Err != nil && (r.Final || now.Sub(w.repliedAt) > Patience):
		return w.end(Failed)
	case r.Err != nil:
		// Clear SlotFreeAt: it is from an older reply. If it has passed, it would have asks sent
		// again and again without a pause.
		w.RefreshAt, w.SlotFreeAt = now.Add(RefreshEvery/4), time.Time{}
		return Stay
	case r.Yours && w.hint.Fence == BrokenFence && r.Fence < w.hint.ServerUS: // it was taken away since the ask ran
		w.hint, w.RefreshAt, w.SlotFreeAt = Message{}, now, time.Time{}
		return Stay
	case r.Yours:
		return w.end(Won)
	case r.Parked || w.ask == Park:
		w.last = r.Answer
		return w.end(ParkedOrRefused)
	}
	return w.noteBusy(r, now)
}

func (w *Wait) end(s Step) Step {
	w.over = true
	return s
}

// noteBusy takes a busy reply, and sets when to ask again.
func (w *Wait) noteBusy(r Reply, now time.Time) Step {
	w.last, w.askedAt, w.repliedAt = r.Answer, r.Sent, now
	if w.hintAt.Before(r.Sent) {
		w.hint = Message{} // this reply came later, and the caller did not hold the lock then
	}
	if w.terms.MayPark && (r.Gate > longGate || r.Slots == 0) {
		w.parkNext = true // nobody may take the lock for a while
	}
	w.RefreshAt, w.SlotFreeAt = now.Add(RefreshEvery), time.Time{}
	if w.repeat || w.parkNext {
		w.RefreshAt = now
	}
	// Only the first waiters, one for each slot, watch the first deadline: one of them gets
	// the slot that it frees. Only the first waiter watches the gate.
	switch {
	case r.Gate > 0 && r.Place == 0:
		w.SlotFreeAt = now.Add(r.Gate)
	case r.Gate == 0 && r.Deadline >= 0 && r.Place < r.Slots:
		w.SlotFreeAt = now.Add(r.Deadline + time.Millisecond)
	}
	if w.terms.InTime && r.Gate > 0 && !w.terms.Until.IsZero() && w.terms.Until.Before(now.Add(r.Gate)) {
		return w.end(TooLate)
	}
	return w.takeGrant(now)
}

// NoteGrant takes a message that grants the caller the lock. While an ask is under way, its reply decides.
func (w *Wait) NoteGrant(m Message, now time.Time) Step {
	if w.over || m.ServerUS <= w.hint.ServerUS {
		return Stay
	}
	w.hint, w.hintAt = m, now
	if w.asking {
		return Stay
	}
	return w.takeGrant(now)
}

// NoteBroken takes a message that the lock which a message has granted, or is about to, was broken: the caller has neither the lock nor a
// place in line, and asks again.
func (w *Wait) NoteBroken(m Message, now time.Time) {
	if !w.over && m.ServerUS >= w.hint.ServerUS {
		w.hint, w.hintAt = m, now
		w.AskAgain(now)
	}
}

// takeGrant makes the caller the holder if its hint proves a grant, that is, if the message is newer
// than the last busy reply. (A busy reply that is newer than the message means that the
// granted lease has ended.)
//
// The lease counts from when the ask with that reply was sent. That was before the grant,
// so the caller never counts on the lease for longer than Redis stores it. If less than half of the
// lease is left, or the lease is Short, it asks instead, and the reply starts the lease anew.
func (w *Wait) takeGrant(now time.Time) Step {
	if w.hint.ServerUS <= w.last.ServerUS || w.hint.Fence == BrokenFence {
		return Stay
	}
	if left := w.askedAt.Add(w.terms.Counted).Sub(now); w.terms.Short || left < w.terms.Grant/2 {
		w.RefreshAt = now
		return Stay
	}
	return w.end(Granted)
}

// GateOpens takes the message that the gate opens after in, which tells the first in line to ask then.
// If the message is old, one ask is in vain. If it is lost, the next refresh asks.
func (w *Wait) GateOpens(serverUS int64, in time.Duration, now time.Time) {
	if serverUS > w.last.ServerUS {
		w.SlotFreeAt = now.Add(in)
		w.repeat = true // the reply to an ask under way may not know of the gate yet, and overwrites SlotFreeAt
	}
}

// AskAgain has the caller ask at once, or after the ask that is under way: a message may have been missed.
func (w *Wait) AskAgain(now time.Time) { w.RefreshAt, w.repeat = now, true }

// ParkSoon makes the next ask a parking one. It is due at once, or after the one that is under way.
// If the caller is granted the lock meanwhile, it does not park.
func (w *Wait) ParkSoon(now time.Time) {
	if !w.parkNext {
		w.parkNext, w.RefreshAt = true, now
	}
}

// GiveUp ends the wait for the caller. It returns Stay while an ask is under way: its reply then says Leave.
func (w *Wait) GiveUp() Step {
	w.over, w.left = true, true
	if w.asking {
		return Stay
	}
	return Leave
}
