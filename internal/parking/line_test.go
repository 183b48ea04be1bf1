package parking

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/story"
	"github.com/automutex/automutex/internal/wire"
)

var update = flag.Bool("update", false, "write what the stories of testdata/lines.txt lead to anew")

// TestLines plays the stories of testdata/lines.txt, whose head says how to read them.
func TestLines(t *testing.T) {
	t.Parallel()
	story.Play(t, "testdata/lines.txt", *update, func() func(*story.Event) (string, error) {
		return (&told{line: &Line{Inbound: 1}}).play
	})
}

// began is when each story begins.
var began = time.Unix(1_000_000_000, 0)

// told is the line of a story.
type told struct{ line *Line }

var fates = map[string]inside.Fate{"coming": inside.FateComing, "later": inside.FateLater, "gone": inside.FateGone, "unsure": inside.FateUnsure}

func (s *told) play(e *story.Event) (string, error) {
	n, now := s.line, began.Add(e.At)
	answer := func() wire.Answer {
		return wire.Answer{
			Yours: e.Has("yours"), InLine: e.Duration("in-line", 0), SinceCall: e.Duration("since-call", -1),
			SlotFreeFor: e.Duration("slot-free", 0), OthersParked: e.Number("others", 0),
		}
	}
	switch e.Name {
	case "named":
		paused, ends := e.Has("paused"), e.Duration("ends", -1)
		named := n.noteNamed(e.Words(), paused, n.callLife(MinCallLife), now)
		n.planCheck(n.interval(1), now)
		n.checkAtEnd(ends, now)
		for _, note := range named {
			n.set(note, call{})
		}
		return s.tell("calls " + cmp.Or(strings.Join(named, " "), "nobody")), nil
	case "makes":
		return s.tell(map[bool]string{true: "the Caller is called", false: "nobody is called"}[n.beginCall(noteOf(e))]), nil
	case "answers":
		note, fate, err := answerOf(e)
		if err != nil {
			return "", err
		}
		leaves := n.noteFate(note, fate)
		return s.tell(map[bool]string{true: "leaves the called", false: "stays called"}[leaves]), nil
	case "ends":
		note, fate, err := answerOf(e)
		if err != nil {
			return "", err
		}
		told := ""
		if n.endCall(note, fate, now) {
			n.set(note, call{})
			told = "called once more"
		}
		return s.tell(told), nil
	case "comes":
		a := answer()
		_, called := n.noteReturned(noteOf(e), a)
		return s.tell(map[bool]string{true: "by a call", false: "by itself"}[called]), nil
	case "parks":
		a, called := answer(), e.Has("called")
		n.lock.Ordered = n.lock.Ordered || e.Has("ordered")
		n.noteParked(noteOf(e), a, called)
		n.planCheck(n.interval(1), now)
		return s.tell(""), nil
	case "checks":
		n.beginCheck()
		return s.tell(""), nil
	case "checked":
		n.endCheck(e.Has("idle"))
		n.planCheck(n.interval(e.Number("lines", 1)), now)
		return s.tell(""), nil
	case "nothing":
		ended := n.noteNothing(began.Add(e.Duration("sent", e.At)))
		return s.tell(map[bool]string{true: "nothing is parked", false: "the reply is old, or it was known"}[ended]), nil
	}
	return "", fmt.Errorf("no event %q", e.Name)
}

// answerOf reads the note and what its Caller said.
func answerOf(e *story.Event) (note string, fate inside.Fate, err error) {
	words := e.Words()
	if len(words) != 2 {
		return "", 0, fmt.Errorf("%v: want a note and an answer", words)
	}
	fate, known := fates[words[1]]
	if !known {
		return "", 0, fmt.Errorf("%q is no answer of a Caller", words[1])
	}
	return words[0], fate, nil
}

// noteOf reads the one note of an event.
func noteOf(e *story.Event) string {
	words := e.Words()
	if len(words) != 1 {
		return fmt.Sprintf("%v, which is not one note", words)
	}
	return words[0]
}

// tell says what an event has led to, and what is known of the line then.
func (s *told) tell(led string) string {
	var parts []string
	if led != "" {
		parts = append(parts, led)
	}
	n := s.line
	for _, note := range slices.Sorted(maps.Keys(n.Calls)) {
		parts = append(parts, note+" "+[...]string{"under way", "arrived", "named again", "coming"}[n.Calls[note].state])
	}
	if len(n.notNow) > 0 {
		parts = append(parts, "not now: "+strings.Join(slices.Sorted(maps.Keys(n.notNow)), " "))
	}
	if n.Inbound != 1 {
		parts = append(parts, fmt.Sprintf("%g at once", n.Inbound))
	}
	if n.AvgReturn > 0 {
		parts = append(parts, fmt.Sprintf("comes within %s", n.callLife(MinCallLife)))
	}
	switch {
	case n.Checking:
		parts = append(parts, "a check is under way")
	case n.CheckAt.IsZero():
		parts = append(parts, "no check")
	default:
		parts = append(parts, "check at "+n.CheckAt.Sub(began).String())
	}
	return strings.Join(parts, "; ")
}
