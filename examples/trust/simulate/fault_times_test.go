package simulate

import (
	"slices"
	"time"
)

// stops are the stops that the plan asks for.
func (w *world) stops() (stopped []faultPlan) {
	for _, f := range w.plan.Faults {
		if f.Kind == stops {
			stopped = append(stopped, f)
		}
	}
	return stopped
}

// windows are the faults of a process' lock client, as times, and those of all clients.
func (w *world) windows(p *process) (windows []activeFault) {
	w.redis.mu.Lock()
	all := slices.Clone(w.redis.freezes)
	w.redis.mu.Unlock()
	p.locks.mu.Lock()
	all = append(all, p.locks.active...)
	p.locks.mu.Unlock()
	for _, a := range all {
		switch a.kind {
		case outOfMemory, arrival:
			continue // leases outlive the first, and the second keeps nobody away
		case hung, swallowed, late, frozen, suspended:
			a.until = a.until.Add(3 * time.Second) // the client's own timeout
		}
		windows = append(windows, a)
	}
	return windows
}

// away is for how long of the latest time Redis was out of reach for a process.
func (w *world) away(p *process, within time.Duration) (away time.Duration) {
	now := time.Now()
	from := now.Add(-within)
	for _, a := range w.windows(p) {
		begin, end := a.since, a.until
		if begin.Before(from) {
			begin = from
		}
		if end.After(now) {
			end = now
		}
		if end.After(begin) {
			away += end.Sub(begin)
		}
	}
	return away
}

// calmAt tells whether nothing was wrong for a process at a time, and shortly after.
func (w *world) calmAt(p *process, at time.Time, after time.Duration) bool {
	for _, a := range w.windows(p) {
		if a.since.Before(at.Add(after)) && a.until.After(at.Add(-time.Second)) {
			return false
		}
	}
	return true
}

// harms are the faults that tasks may notice: not those of leaders, nor the start of a server.
func (p *plan) harms() []faultPlan {
	return slices.DeleteFunc(slices.Clone(p.Faults), func(f faultPlan) bool { return f.Kind == starts || f.Client == leadClient })
}

// faultWithin tells whether anything was wrong with anybody lately.
func (w *world) faultWithin(within time.Duration) bool {
	from := time.Now().Add(-within)
	w.redis.mu.Lock()
	ends := append([]*endpoint(nil), w.redis.ends...)
	all := slices.ContainsFunc(w.redis.freezes, func(a activeFault) bool { return a.until.After(from) })
	w.redis.mu.Unlock()
	if all {
		return true
	}
	for _, e := range ends {
		if e.kind == leadClient {
			continue
		}
		e.mu.Lock()
		for _, a := range e.active {
			if a.until.After(from) {
				e.mu.Unlock()
				return true
			}
		}
		e.mu.Unlock()
	}
	return false
}

// longFault tells whether a process was cut off around a time for so long that even
// what is tried again is lost.
func (w *world) longFault(p *process, at time.Time, length time.Duration) bool {
	for _, a := range w.windows(p) {
		if a.until.Sub(a.since) > length && a.since.Before(at.Add(5*time.Second)) && a.until.After(at.Add(-5*time.Second)) {
			return true
		}
	}
	return false
}
