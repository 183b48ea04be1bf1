package web

import "time"

const (
	// slotLength and slots make the last hour.
	slotLength = 10 * time.Second
	slots      = 360
	// maxSeries bounds how many keys have a history.
	maxSeries = 500
	// unseen marks a slot in which nobody looked.
	unseen = -1
)

// point is the most that was seen of one lock, or of all of them, in one slot. Parked has those in order, too.
type point struct{ Held, Waiting, Parked int }

func (p point) seen() bool { return p.Held != unseen }

// series is a ring of points over the last hour. Slot n is the time from n*slotLength
// since 1970; it stands at n%slots.
type series struct {
	last   int64 // the newest slot that was set
	active int64 // the newest slot with somebody in line, or in which somebody asked
	points [slots]point
}

func newSeries(slot int64) *series {
	s := &series{last: slot - slots, active: slot}
	return s
}

// set adds what was seen in a slot. Slots between the last one and this one are unseen.
func (s *series) set(slot int64, p point) {
	if slot < s.last { // the clock went back: count it for the newest slot
		slot = s.last
	}
	for n := max(s.last+1, slot-slots+1); n <= slot; n++ {
		s.points[n%slots] = point{Held: unseen}
	}
	s.last = slot
	at := &s.points[slot%slots]
	at.Held, at.Waiting, at.Parked = max(at.Held, p.Held), max(at.Waiting, p.Waiting), max(at.Parked, p.Parked)
	if p.Waiting+p.Parked > 0 {
		s.active = slot
	}
}

// lastHour gives the points of the hour that ends with a slot, oldest first.
func (s *series) lastHour(now int64) []point {
	all := make([]point, 0, slots)
	for n := now - slots + 1; n <= now; n++ {
		if n > s.last || n <= s.last-slots {
			all = append(all, point{Held: unseen})
		} else {
			all = append(all, s.points[n%slots])
		}
	}
	return all
}

// pastHour is what the looks of the last hour found. It belongs to the sampler, whose mu
// guards it.
type pastHour struct {
	all  *series
	keys map[string]*series
}

func newPastHour() *pastHour { return &pastHour{keys: map[string]*series{}} }

func slotOf(t time.Time) int64 { return t.UnixNano() / int64(slotLength) }

// add adds a look at all locks. A key has a history from when it has a line until an
// hour after its last one.
func (h *pastHour) add(snap *snapshot) {
	slot := slotOf(snap.at)
	if h.all == nil {
		h.all = newSeries(slot)
	}
	h.all.set(slot, point{snap.totals.Held, snap.totals.Waiting, snap.totals.Parked + snap.totals.Queued})
	for key, s := range h.keys {
		if slot-s.active >= slots {
			delete(h.keys, key)
			continue
		}
		i, ok := snap.byKey[key]
		if !ok {
			s.set(slot, point{})
			continue
		}
		s.set(slot, snap.rows[i].point())
	}
	for _, r := range snap.rows { // by contention: those without a line come last
		if r.line() == 0 || len(h.keys) >= maxSeries {
			break
		}
		if h.keys[r.Key] == nil {
			h.keys[r.Key] = newSeries(slot)
			h.keys[r.Key].set(slot, r.point())
		}
	}
}

// follow begins the history of a key that somebody looks at. Where there is no room, the
// key that was quiet for the longest time makes room.
func (h *pastHour) follow(r row, slot int64) {
	s := h.keys[r.Key]
	if s == nil {
		if len(h.keys) >= maxSeries {
			quiet := ""
			for key, other := range h.keys {
				if quiet == "" || other.active < h.keys[quiet].active {
					quiet = key
				}
			}
			delete(h.keys, quiet)
		}
		s = newSeries(slot)
		h.keys[r.Key] = s
	}
	s.set(slot, r.point())
	s.active = s.last
}

func (r row) point() point { return point{r.Held, r.Waiting, r.Parked + r.Queued} }
