package simulate

import (
	"slices"
	"time"
)

// faultKind is what goes wrong.
type faultKind string

const (
	// One command.
	refused   faultKind = "refused"    // an error reply, not executed
	replyLost faultKind = "reply lost" // executed, and the connection breaks before the reply
	swallowed faultKind = "swallowed"  // executed, and no reply ever comes
	late      faultKind = "late"       // executed when its caller has given up
	noScript  faultKind = "NOSCRIPT"
	noPerm    faultKind = "NOPERM"
	cut       faultKind = "cut" // the connection breaks before it is executed

	// Everything that the client sends for a time.
	hung        faultKind = "hung"               // vanishes
	loading     faultKind = "LOADING"            //
	readOnly    faultKind = "READONLY"           //
	wrapped     faultKind = "READONLY, wrapped"  // as a script of Redis 6.2 has it
	misconf     faultKind = "MISCONF"            // it cannot write to its disk; go-redis does not try that again
	outOfMemory faultKind = "OOM"                // commands that may need memory are refused
	setup       faultKind = "set-up refused"     // connections break, and new ones are refused by an error reply
	apart       faultKind = "partition"          // connections break, and there are no new ones
	frozen      faultKind = "Redis stands still" // everything waits for its end: for all clients

	// split has the locks' master replaced for all but this process. See split_test.go.
	split faultKind = "split brain"

	// Not of a client.
	// noReplicas has replicas acknowledge nothing for For.
	noReplicas faultKind = "replicas away"
	// arrival is when what was late is executed. No plan has it.
	arrival faultKind = "late arrival"
	// suspended has the process stand still for For. See suspended_test.go.
	suspended faultKind = "suspended"
	stops     faultKind = "stops" // the process: Close beside Shutdown, then it exits
	dies      faultKind = "dies"  // the process
	starts    faultKind = "starts"
)

// spansTime tells whether a fault of the kind lasts, and is no single command's.
func (k faultKind) spansTime() bool {
	return slices.Contains([]faultKind{hung, loading, readOnly, wrapped, misconf, outOfMemory, setup, apart, frozen}, k)
}

// replies are what a client is answered in place of an execution.
var replies = map[faultKind]string{
	refused:  "ERR the simulation refuses this command",
	noScript: "NOSCRIPT No matching script. Please use EVAL.",
	noPerm:   "NOPERM this user has no permissions to run this command",
	loading:  "LOADING Redis is loading the dataset in memory",
	misconf:  "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
	readOnly: "READONLY You can't write against a read only replica.",
	wrapped:  "ERR Error running script (call to f_2d7a5c7a): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.",
}

// windows are the faults of a process' lock client, as times, and those of all clients.
func (w *world) windows(p *process) (windows []activeFault) {
	for _, a := range append(w.redis.standstills(), p.locks.faults()...) {
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
	for _, a := range w.windows(p) {
		begin, end := min(time.Since(a.since), within), max(time.Since(a.until), 0) // ago
		away += max(begin-end, 0)
	}
	return away
}

// calmAt tells whether nothing was wrong for a process at a time, and shortly after.
func (w *world) calmAt(p *process, at time.Time, after time.Duration) bool {
	return !slices.ContainsFunc(w.windows(p), func(a activeFault) bool {
		return a.since.Before(at.Add(after)) && a.until.After(at.Add(-time.Second))
	})
}

// harms are the faults that tasks may notice: not those of leaders, nor the start of a server.
func (p *plan) harms() []faultPlan {
	return slices.DeleteFunc(slices.Clone(p.Faults), func(f faultPlan) bool { return f.Kind == starts || f.Client == leadClient })
}

// faultWithin tells whether anything was wrong with anybody lately.
func (w *world) faultWithin(within time.Duration) bool {
	from := time.Now().Add(-within)
	recent := func(a activeFault) bool { return a.until.After(from) }
	return slices.ContainsFunc(w.redis.standstills(), recent) || slices.ContainsFunc(w.redis.endpoints(), func(e *endpoint) bool {
		return e.kind != leadClient && slices.ContainsFunc(e.faults(), recent)
	})
}

// longFault tells whether a process was cut off around a time for so long that even
// what is tried again is lost.
func (w *world) longFault(p *process, at time.Time, length time.Duration) bool {
	return slices.ContainsFunc(w.windows(p), func(a activeFault) bool {
		return a.until.Sub(a.since) > length && a.since.Before(at.Add(5*time.Second)) && a.until.After(at.Add(-5*time.Second))
	})
}

// sentAgainAfter is how long go-redis waits for a reply, and then until it sends again.
const sentAgainAfter = 6 * time.Second

// comesAgain notes that a task comes, which may have ended: it tells whether a wake that was held up explains that. As
// docs/guarantees.md says, a parked task may run once more: the Guard that wakes one has looked at it, and the command that has
// asynq run it arrives when the task has come back by itself and has ended. What refuses commands holds up none. Callers hold mu.
func (b *ledger) comesAgain(t *taskBook) bool {
	since := t.left.Add(-sentAgainAfter)
	holdsUp := func(a activeFault) bool {
		refuses := []faultKind{refused, noScript, noPerm, misconf, wrapped, outOfMemory, noReplicas}
		return a.until.After(since) && !slices.Contains(refuses, a.kind)
	}
	if !t.parked || t.left.IsZero() || !slices.ContainsFunc(b.w.redis.standstills(), holdsUp) && !slices.ContainsFunc(b.w.redis.endpoints(), func(e *endpoint) bool {
		return (e.kind == "lock" || e.kind == skips) && slices.ContainsFunc(e.faults(), holdsUp) // who wakes tasks
	}) {
		return false
	}
	t.again = t.again || t.success > 0
	return true
}

func (s *redisServer) endpoints() []*endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ends)
}

func (s *redisServer) standstills() []activeFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.freezes)
}

// faults are those that have begun.
func (e *endpoint) faults() []activeFault {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.active)
}
