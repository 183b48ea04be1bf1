package trust

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/automutex/automutex/lock"
)

// processBooks is what a log of processEvents comes to.
//
// A handler's stay lasts from its first write to its last one, both of which it
// makes while it holds the lock. That of a process that is killed ends when it
// is about to be killed, which is before whatever else could end it: so what is
// found to overlap did.
type processBooks struct {
	runs      int
	done      map[int]int // how often each task succeeded
	cut       int         // runs that were under way when their process was killed
	overtaken int         // runs of processes that stood still, beside which another began
	told      int         // of those: whose handlers' contexts had ended before they did
	refused   int         // writes that the store did not take
	late      int         // runs that began under a lease which had ended while the process stood still
	overlaps  []string
	wrong     []string
}

// processStay is a run that is under way.
type processStay struct {
	begin     processEvent
	stood     bool  // its process stood still during it
	until     int64 // the deadline of its lease at the stop, us; 0: not known
	overtaken bool
}

func parseProcessLog(t *testing.T, lines []string) []processEvent {
	t.Helper()
	events := make([]processEvent, len(lines))
	for i, line := range lines {
		us, rest, _ := strings.Cut(line, " ")
		accepted, text, _ := strings.Cut(rest, " ")
		var err error
		if events[i].US, err = strconv.ParseInt(us, 10, 64); err != nil {
			t.Fatalf("log: %q: %v", line, err)
		}
		events[i].Accepted = accepted == "1"
		if err := json.Unmarshal([]byte(text), &events[i]); err != nil {
			t.Fatalf("log: %q: %v", line, err)
		}
	}
	return events
}

// balance goes through the log.
func balance(events []processEvent) *processBooks {
	b := &processBooks{done: map[int]int{}}
	open := map[string]map[string]*processStay{} // by key and run
	killed, stood := map[int]bool{}, map[int]bool{}
	stops := map[int]int{}        // where in the log each process was stopped that is
	highest := map[string]int64{} // fence, by key
	ended := map[string]processEvent{}
	for _, e := range events {
		if e.What == processEnds {
			ended[e.Run] = e
		}
	}
	deadlines := stopDeadlines(events)
	each := func(pid int, f func(key, run string, s *processStay)) {
		for key, stays := range open {
			for run, s := range stays {
				if s.begin.PID == pid {
					f(key, run, s)
				}
			}
		}
	}
	for i, e := range events {
		if !e.Accepted {
			b.refused++
		}
		switch e.What {
		case processKilled:
			killed[e.PID] = true
			each(e.PID, func(key, run string, _ *processStay) {
				b.cut++
				delete(open[key], run)
			})
		case processStopping:
			stood[e.PID], stops[e.PID] = true, i
			each(e.PID, func(key, _ string, s *processStay) { s.stood, s.until = true, deadlines[i][key] })
		case processResumed:
			delete(stops, e.PID)
		case processBegins:
			if open[e.Key] == nil {
				open[e.Key] = map[string]*processStay{}
			}
			if open[e.Key][e.Run] != nil {
				continue // its client sent the write again
			}
			b.runs++
			end, ends := ended[e.Run]
			s := &processStay{begin: e, stood: ends && end.Stalls > e.Stalls}
			stood[e.PID] = stood[e.PID] || e.Stalls > 0
			if stop, stopped := stops[e.PID]; stopped { // between the note and the stop
				s.stood, s.until = true, deadlines[stop][e.Key]
			}
			b.begins(e, s, open[e.Key], highest[e.Key], stood[e.PID])
			highest[e.Key] = max(highest[e.Key], e.Fence)
			if !killed[e.PID] {
				open[e.Key][e.Run] = s
			}
		case processEnds:
			if s := open[e.Key][e.Run]; s != nil {
				delete(open[e.Key], e.Run)
				b.ends(e, s)
			} else if killed[e.PID] && e.Accepted && e.Cause == "" {
				b.done[e.N]++ // between the note and the kill
			}
		}
	}
	for key, stays := range open {
		for run := range stays {
			b.wrong = append(b.wrong, fmt.Sprintf("%s: run %s never ended", key, run))
		}
	}
	return b
}

// stopDeadlines has for each stop, by its place in the log, the deadlines of the
// leases that the process had then.
func stopDeadlines(events []processEvent) map[int]map[string]int64 {
	found, last := map[int]map[string]int64{}, map[int]int{}
	for i, e := range events {
		switch e.What {
		case processStopping:
			last[e.PID] = i
		case processStopped:
			found[last[e.PID]] = e.Until
		}
	}
	return found
}

// begins judges a run that begins beside others of its key, after the highest
// fence so far.
func (b *processBooks) begins(e processEvent, s *processStay, beside map[string]*processStay, highest int64, stood bool) {
	if stood && !e.Accepted {
		b.late++ // it has a lease from before; the store knows
		s.stood = true
		return
	}
	if e.Fence <= highest {
		b.wrong = append(b.wrong, fmt.Sprintf("%s: run %s has fence %d, after %d", e.Key, e.Run, e.Fence, highest))
	}
	for run, other := range beside {
		switch {
		case !other.stood:
			b.overlaps = append(b.overlaps, fmt.Sprintf("%s: run %s (task %d) began %d us after run %s (task %d), which was under way",
				e.Key, e.Run, e.N, e.US-other.begin.US, run, other.begin.N))
		case e.US < other.until:
			b.overlaps = append(b.overlaps, fmt.Sprintf("%s: run %s began %d us before the lease of run %s, whose process was stopped, ended",
				e.Key, e.Run, other.until-e.US, run))
		default:
			if !other.overtaken {
				b.overtaken++
			}
			other.overtaken = true
		}
	}
}

func (b *processBooks) ends(e processEvent, s *processStay) {
	if s.overtaken && strings.HasPrefix(e.Cause, lock.ErrLost.Error()) {
		b.told++ // the others had no work left when they went on
	}
	switch {
	case s.overtaken && e.Accepted:
		b.wrong = append(b.wrong, fmt.Sprintf("%s: run %s was overtaken while its process stood still, and its last write was accepted", e.Key, e.Run))
	case !e.Accepted && !s.stood:
		b.wrong = append(b.wrong, fmt.Sprintf("%s: a write of run %s, whose process never stood still, was refused", e.Key, e.Run))
	case e.Accepted && e.Cause == "":
		b.done[e.N]++
	}
}
