package turn

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/story"
)

var update = flag.Bool("update", false, "write what the stories of testdata/waits.txt lead to anew")

// TestWaits plays the stories of testdata/waits.txt, whose head says how to read them.
func TestWaits(t *testing.T) {
	t.Parallel()
	story.Play(t, "testdata/waits.txt", *update, func() func(*story.Event) (string, error) { return (&told{}).play })
}

// began is when each story begins, and what Redis' clock says then.
var began = time.UnixMicro(1_000_000_000)

// told is one wait, and what has become of it.
type told struct {
	wait *Wait
	sent time.Time // when the ask under way was sent
}

func (s *told) play(e *story.Event) (string, error) {
	if s.wait == nil != (e.Name == "waits") {
		return "", errors.New(`a story begins with "waits", once`)
	}
	step, err := s.event(e, began.Add(e.At))
	if err != nil {
		return "", err
	}
	return s.tell(step), nil
}

func (s *told) event(e *story.Event, now time.Time) (Step, error) {
	redis := func() int64 { return now.Add(-e.Duration("redis-is-behind", 0)).UnixMicro() }
	switch e.Name {
	case "waits":
		t := Terms{InTime: e.Has("in-time"), MayPark: e.Has("may-park"), Short: e.Has("short"), Grant: e.Duration("grant", 3*time.Second)}
		t.Counted = t.Grant
		if end := e.Duration("until", 0); end > 0 {
			t.Until = began.Add(end)
		}
		w := New(t, e.Has("park-now"))
		s.wait, s.sent = &w, now
	case "asks":
		if !s.wait.Due(now) {
			return 0, errors.New("no ask is due")
		}
		s.sent = now
	case "rests":
		if s.wait.Due(now) {
			return 0, errors.New("an ask is due")
		}
	case "busy", "parked", "yours", "error":
		if !s.wait.asking {
			return 0, errors.New("no ask is under way")
		}
		r := Reply{Sent: s.sent, Slots: e.Number("slots", 1)}
		r.ServerUS, r.Deadline, r.Place, r.Gate = redis(), e.Duration("deadline", -1), e.Number("place", 0), e.Duration("gate", 0)
		r.Yours, r.Parked, r.Fence = e.Name == "yours", e.Name == "parked", r.ServerUS
		if e.Name == "error" {
			r = Reply{Err: errors.New("an error"), Final: e.Has("final"), Sent: s.sent}
		}
		return s.wait.Replied(r, now), nil
	case "granted":
		return s.wait.NoteGrant(Message{Fence: 7, ServerUS: redis()}, now), nil
	case "broken":
		s.wait.NoteBroken(Message{Fence: BrokenFence, ServerUS: redis()}, now)
	case "gate":
		s.wait.GateOpens(redis(), e.Duration("opens", 0), now)
	case "missed": // messages may have been missed
		s.wait.AskAgain(now)
	case "park-soon":
		s.wait.ParkSoon(now)
	case "gives-up":
		return s.wait.GiveUp(), nil
	default:
		return 0, fmt.Errorf("no event %q", e.Name)
	}
	return Stay, nil
}

// tell says what an event has led to.
func (s *told) tell(step Step) string {
	at := func(t time.Time) string { return t.Sub(began).String() }
	w := s.wait
	switch {
	case (w.asking || w.over) && !w.Next().IsZero():
		return "an alarm is set for nothing"
	case step == Granted:
		grant, since := w.Grant()
		return fmt.Sprintf("holds the lock by the message, fence %d; its lease counts from %s", grant.Fence, at(since))
	case step == Leave && w.Last().Parked:
		return "the leave is sent, and the caller hears that it is parked"
	case step != Stay:
		return map[Step]string{Won: "holds the lock by the reply", ParkedOrRefused: "parked, or refused", Failed: "fails", TooLate: "fails: the gate opens too late", Leave: "the leave is sent"}[step]
	case w.asking && w.left:
		return "the reply is awaited first"
	case w.asking:
		told := "an ask is under way: " + [...]string{"try", "join", "join, or park behind an absent head", "park"}[w.ask]
		if stay := w.Asks().Lifetime(); stay > 0 {
			told += fmt.Sprintf("; it stays for %d ms", stay)
		}
		return told
	case w.over:
		return "it has ended"
	}
	return "asks again at " + at(w.Next())
}
