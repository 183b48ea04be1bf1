package trust

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/automutex/automutex/lock"
)

// linForever is later than everything in a history.
const linForever = int64(math.MaxInt64)

// How long Redis may take to run what had been sent when a process died, and
// what its own clock, which counts in milliseconds, may be off.
const (
	linLate  = int64(time.Second)
	linClock = int64(5 * time.Millisecond)
	linStay  = int64(3 * time.Second) // life of a place in line that nobody keeps
)

// linNow is the monotonic clock of all histories, in ns.
func linNow() int64 { return int64(time.Since(linEpoch)) }

var linEpoch = time.Now()

// linStayed is one lease in a history. Its client writes it; breakers write the
// fields under mu; it is read when all of them are done.
type linStayed struct {
	lease    *lock.Lease
	fence    int64 // 0: it was not told
	site     *linSite
	number   int16
	called   int64 // when it was asked for
	ttl      time.Duration
	bounded  bool  // it is not renewed
	until    int64 // bounded: when Redis has let go of it at the latest
	released bool  // it was given back, and was held then
	leaving  int64 // when it was to be given back, but was over, or no answer came; 0: never
	lostBy   int64 // when that answer came; 0: never

	mu     sync.Mutex
	broken bool  // somebody was told that it was taken away
	shaken int64 // since when a break may or may not have run; 0: none
}

// deadline is until when the library says that the lease is its holder's for
// certain. Asked when everything is over.
func (s *linStayed) deadline() int64 { return int64(s.lease.Deadline().Sub(linEpoch)) }

// dead tells whether the lease's process has died: its client does no more.
func (s *linStayed) dead() bool { return s.site.ctx.Err() != nil }

// linEvent is a step as a client saw it, with the times between which it took
// place.
type linEvent struct {
	client   int
	from, to int64
	stay     *linStayed // nil: of no lease
	op       linOp
	own      *linMaybe // what this very call may have had besides: not counted for it
}

// linMaybe is a call that may have had a slot, or a place in line, without
// anybody being told: a wait that was given up, a call whose process died. For
// that time others may find the lock busy, and nothing else follows from it.
type linMaybe struct{ from, to int64 }

// linRecord is what one client did on one lock. No other goroutine writes it.
type linRecord struct {
	events []linEvent
	maybes []*linMaybe
	stays  []*linStayed
}

// linHistory makes of what the clients of one lock recorded the history that is
// to be checked. What clients cannot see is put in here:
//
//   - A lease that nobody gave back, or whose release said "not held", has ended
//     by itself: not before the deadline that the library believed in, and not
//     after the one that Redis can have had.
//   - What became of a call without an answer is not known: it may have had a slot.
func linHistory(records []*linRecord) []porcupine.Operation {
	var all linRecord
	for _, r := range records {
		all.events = append(all.events, r.events...)
		all.maybes = append(all.maybes, r.maybes...)
		all.stays = append(all.stays, r.stays...)
	}
	slices.SortFunc(all.stays, func(a, b *linStayed) int { return int(a.fence - b.fence) })
	rank := make(map[*linStayed]int16, len(all.stays))
	ranked := int16(0)
	for i, s := range all.stays {
		s.number = int16(i + 1)
		if s.fence > 0 {
			ranked++
			rank[s] = ranked
		}
	}

	var history []porcupine.Operation
	put := func(e linEvent) {
		op := e.op
		if e.stay != nil {
			op.stay = e.stay.number
			if op.kind == linTake || op.kind == linGranted || op.kind == linUnplaced {
				op.rank = rank[e.stay]
			}
		}
		for _, m := range all.maybes {
			if m != e.own && m.from <= e.to && e.from <= m.to {
				op.maybe++
			}
		}
		history = append(history, porcupine.Operation{ClientId: e.client, Input: &op, Call: e.from, Return: max(e.from, e.to)})
	}
	for _, e := range all.events {
		switch e.op.kind {
		case linExtend, linLost, linRelease:
			// Once the deadline has passed by the client's own clock it says so,
			// whether or not Redis has let go yet.
			if !e.op.ok && e.stay.deadline() <= e.to {
				continue
			}
		default:
		}
		put(e)
	}
	for _, s := range all.stays {
		if end, ok := s.end(); ok {
			put(end)
		}
	}
	return history
}

// end is when the lease ended by itself; false when somebody ended it.
func (s *linStayed) end() (linEvent, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released || s.broken {
		return linEvent{}, false
	}
	from, to := s.deadline(), linForever
	if s.leaving != 0 && (s.lostBy == 0 || from <= s.lostBy) {
		// Or the release itself ended it: go-redis lost the first answer, and the
		// second came when the deadline had passed.
		from = min(from, s.leaving)
	}
	if s.shaken != 0 {
		from = min(from, s.shaken)
	}
	if s.bounded {
		to = s.until + linClock
	} else if died := s.site.died.Load(); died != 0 {
		to = max(died+int64(s.ttl), s.until) + linLate
	}
	if s.lostBy != 0 {
		to = min(to, s.lostBy)
	}
	from = max(from, s.called)
	return linEvent{from: from, to: max(from, to), stay: s, op: linOp{kind: linEnd}}, true
}
