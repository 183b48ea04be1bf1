package metrics

import "github.com/automutex/automutex"

// outcomeArchived is the outcome of a task that its policy has archived.
const outcomeArchived = "archived"

// outcomeOf says what became of an attempt that did not get its lock; empty for events
// that do not tell. What AfterFailure answers has no outcome of its own.
func outcomeOf(e automutex.Event) string {
	switch e.Kind {
	case automutex.EventSkipped:
		return "skipped"
	case automutex.EventRetried:
		return "retried"
	case automutex.EventParked:
		return "parked"
	case automutex.EventReplaced:
		return "replaced"
	case automutex.EventBusy:
		switch e.Policy.String() {
		case automutex.Archive.String():
			return outcomeArchived
		case automutex.Fail.String():
			return "failed"
		case automutex.Allow.String():
			return "allowed"
		}
	}
	return ""
}
