package claims

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Kind says what a Guard writes in the claim of a task. It follows the lock's key in the task's ID: a header cannot be
// added to a task without losing the options that the task was made with.
type Kind string

// The kinds of claims. A task that can be superseded has a kind that ends with -r or -k.
const (
	Start     Kind = "start" // the claim ends when the task's handler begins
	StartNew  Kind = "start-r"
	DoneNew   Kind = "done-r" // that the handler has begun is written; the claim ends with the task
	KeptNew   Kind = "done-k" // as DoneNew, and the claim stays when the task is archived or completed
	Window    Kind = "for"    // the claim ends at its time: a Guard has nothing to write
	WindowNew Kind = "for-r"  // that the handler has begun is written
)

// EndsAtStart reports whether the claim ends when the task's handler begins.
func (k Kind) EndsAtStart() bool { return k == Start || k == StartNew }

// CanBeSuperseded reports whether another task may take the place of this one until its handler begins.
func (k Kind) CanBeSuperseded() bool { return strings.Contains(string(k), "-") }

// EndsWithTask reports whether the claim has no meaning any more when the task has ended.
func (k Kind) EndsWithTask() bool { return k.EndsAtStart() || k == DoneNew }

const (
	// Kept is how long a claim lasts after a write at least, in shared.lua too: only garbage is collected.
	Kept = 30 * 24 * time.Hour
	// rest is how long it lasts after its task has ended: asynq files the task within moments, or runs it again after the
	// end of its own lease on it.
	rest = 5 * time.Minute
)

// Lasts is how long the claim lasts after a worker wrote that phase; 0: it ends at its time.
func (k Kind) Lasts(phase Phase) time.Duration {
	switch {
	case phase == Ended:
		return rest
	case k == WindowNew:
		return 0
	}
	return Kept
}

// TaskID returns the ID of the task under UntilDone that is its own claim. It is the lock's key, with ~XX for each byte
// that a URL path would not carry as it is: tools such as asynqmon put IDs into paths unescaped. TaskID is injective.
func TaskID(lockKey string) string {
	var id strings.Builder
	for _, c := range []byte(lockKey) {
		if c <= ' ' || c == 0x7F || strings.IndexByte(`%/?#\~`, c) >= 0 {
			fmt.Fprintf(&id, "~%02X", c)
		} else {
			id.WriteByte(c)
		}
	}
	return id.String()
}

func lockKey(id string) (key string, ok bool) {
	key, err := url.PathUnescape(strings.ReplaceAll(id, "~", "%")) // an ID has no % of its own
	return key, err == nil && TaskID(key) == id
}

// ID makes the ID of a task that has a claim beside the lock with that key. nonce is different for each task, and has
// neither a colon nor a comma.
func ID(lockKey string, kind Kind, nonce string) string {
	return TaskID(lockKey) + ":" + string(kind) + ":" + nonce
}

// Parse returns the lock's key and the kind of the claim of a task with that ID; false without a claim of that prefix.
func Parse(id, prefix string) (key string, kind Kind, ok bool) {
	before, after, found := strings.Cut(id, "}:") // a lock's key ends with its only closing brace
	name, _, _ := strings.Cut(after, ":")
	switch kind = Kind(name); kind {
	case Start, StartNew, DoneNew, KeptNew, Window, WindowNew:
	default:
		return "", "", false
	}
	key, ok = lockKey(before + "}")
	return key, kind, found && ok && strings.HasPrefix(key, prefix+":{")
}
