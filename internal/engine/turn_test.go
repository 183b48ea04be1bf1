package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/control"
)

// TestWaits plays the stories of testdata/waits.txt, whose head says how to read them.
func TestWaits(t *testing.T) {
	t.Parallel()
	play(t, "testdata/waits.txt", func() func(*event) (string, error) { return (&toldWait{}).play })
}

// toldWait is one wait, and what has become of it.
type toldWait struct {
	wait *turn
	sent time.Time // when the ask under way was sent
}

func (s *toldWait) play(e *event) (string, error) {
	if s.wait == nil != (e.Name == "waits") {
		return "", errors.New(`a story begins with "waits", once`)
	}
	next, err := s.event(e, began.Add(e.At))
	if err != nil {
		return "", err
	}
	return s.tell(next), nil
}

func (s *toldWait) event(e *event, now time.Time) (move, error) {
	redis := func() int64 { return now.Add(-e.Duration("redis-is-behind", 0)).UnixMicro() }
	switch e.Name {
	case "waits":
		t := terms{mayPark: e.Has("may-park"), atPause: e.Has("leaves-paused"), short: e.Has("short"),
			grant: e.Duration("grant", 3*time.Second)}
		t.counted = t.grant
		if end := e.Duration("gate-by", 0); end > 0 {
			t.gateBy = began.Add(end)
		}
		w := newTurn(t, e.Has("park-now"))
		s.wait, s.sent = &w, now
	case "asks":
		if !s.wait.due(now) {
			return 0, errors.New("no ask is due")
		}
		s.sent = now
	case "rests":
		if s.wait.due(now) {
			return 0, errors.New("an ask is due")
		}
	case "busy", "parked", "yours", "error":
		if !s.wait.asking {
			return 0, errors.New("no ask is under way")
		}
		r := askReply{sent: s.sent, slots: e.Number("slots", 1)}
		r.ServerUS, r.Deadline, r.Place, r.Gate = redis(), e.Duration("deadline", -1), e.Number("place", 0),
			e.Duration("gate", 0)
		r.Yours, r.Parked, r.Fence = e.Name == "yours", e.Name == "parked", r.ServerUS
		if r.slots == 0 {
			r.Pause = control.Unread
		}
		if e.Has("paused") {
			r.Pause = &control.Order{Kind: control.Pauses}
		}
		if e.Name == "error" {
			r = askReply{err: errors.New("an error"), final: e.Has("final"), sent: s.sent}
		}
		return s.wait.replied(r, now), nil
	case "granted":
		return s.wait.sawGrant(message{fence: 7, serverUS: redis()}, e.Number("slots", 1) == 0, now), nil
	case "broken":
		s.wait.sawBroken(message{fence: brokenFence, serverUS: redis()}, now)
	case "gate":
		s.wait.gateOpens(redis(), e.Duration("opens", 0), now)
	case "missed": // messages may have been missed
		s.wait.askAgain(now)
	case "park-soon":
		s.wait.parkSoon(now)
	case "gives-up":
		return s.wait.giveUp(), nil
	default:
		return 0, fmt.Errorf("no event %q", e.Name)
	}
	return stay, nil
}

// tell says what an event has led to.
func (s *toldWait) tell(next move) string {
	at := func(t time.Time) string { return t.Sub(began).String() }
	w := s.wait
	switch {
	case (w.asking || w.over) && !w.next().IsZero():
		return "an alarm is set for nothing"
	case next == granted:
		return fmt.Sprintf("holds the lock by the message, fence %d; its lease counts from %s", w.hint.fence, at(w.askedAt))
	case next == leave && w.last.Parked:
		return "the leave is sent, and the caller hears that it is parked"
	case next != stay:
		return map[move]string{
			won: "holds the lock by the reply", parkedOrRefused: "parked, or refused", failed: "fails",
			tooLate: "fails: the gate opens too late",
			paused:  "fails: it is paused", leave: "the leave is sent",
		}[next]
	case w.asking && w.gaveUp:
		return "the reply is awaited first"
	case w.asking:
		told := "an ask is under way: " + [...]string{"try", "join", "join, or park behind an absent head", "park"}[w.mode]
		if stay := w.mode.lifetime(); stay > 0 {
			told += fmt.Sprintf("; it stays for %d ms", stay)
		}
		return told
	case w.over:
		return "it has ended"
	}
	return "asks again at " + at(w.next())
}
