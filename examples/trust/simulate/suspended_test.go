package simulate

import "time"

// What follows is about a process that is suspended, as by SIGSTOP or with its virtual machine, and goes on later. Until then
// nothing that it sends arrives, nothing reaches it, and none of its handlers ends. All of that happens when it goes on.
//
// Not covered: the timers of the library, of asynq and of go-redis fire meanwhile, since all processes of a bubble have one
// clock. So contexts end in time that would end when the process goes on, calls give up that would get their replies, and
// what was tried again arrives as often as it was sent. TestProcess_stopped in examples/trust suspends real processes.

// suspensions draws processes that are suspended.
func (d *drawer) suspensions(length time.Duration) {
	s := d.aside("suspended")
	if !s.chance(0.2) {
		return
	}
	for range 1 + s.IntN(2) {
		s.p.Faults = append(s.p.Faults, faultPlan{
			Kind: suspended, Proc: s.IntN(len(s.p.Procs)), At: s.span(0, int(length/time.Millisecond)), For: pick(s, s.span(200, 4000), s.span(2000, 40_000)),
		})
	}
}

// goesOn returns when the process is not suspended, or dead.
func (p *process) goesOn() {
	for {
		left := time.Until(p.locks.suspendedUntil())
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-p.dead:
			timer.Stop()
			return
		}
	}
}

// suspendedUntil is when the endpoint's process goes on; in the past: it is not suspended.
func (e *endpoint) suspendedUntil() (until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.active {
		if a.kind == suspended && a.until.After(until) {
			until = a.until
		}
	}
	return until
}
