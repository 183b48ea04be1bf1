// Package claim is what package unique and the Guard's middleware agree on: the IDs of tasks that
// have a claim.
//
// That a task has a claim is in its ID, since a header cannot be added to a task without losing the
// options that the task was made with.
package claim

import "strings"

// Kind says what a Guard notes in the claim of a task. It follows the lock's key in the task's ID.
type Kind string

// The kinds of claims. A task that can be superseded has a kind that ends with -r or -k.
const (
	Start     Kind = "start" // the claim ends when the task's handler begins
	StartNew  Kind = "start-r"
	DoneNew   Kind = "done-r" // that the handler has begun is noted; the claim ends with the task
	KeptNew   Kind = "done-k" // as DoneNew, and the claim stays when the task is archived or completed
	Window    Kind = "for"    // the claim ends at its time: a Guard has nothing to note
	WindowNew Kind = "for-r"  // that the handler has begun is noted

	canBeSuperseded = "-"
)

// EndsAtStart reports whether the claim ends when the task's handler begins.
func (k Kind) EndsAtStart() bool { return k == Start || k == StartNew }

// CanBeSuperseded reports whether another task may take the place of this one until its handler
// begins.
func (k Kind) CanBeSuperseded() bool { return strings.Contains(string(k), canBeSuperseded) }

// EndsWithTask reports whether the claim has no meaning any more when the task has ended.
func (k Kind) EndsWithTask() bool { return k.EndsAtStart() || k == DoneNew }

// TaskID returns the ID of the task under UntilDone whose claim is that ID. It is the lock's key,
// with ~XX for each byte that a URL path would not carry as it is: tools such as asynqmon put IDs
// into paths unescaped. TaskID is injective.
func TaskID(lockKey string) string {
	n := 0
	for i := range len(lockKey) {
		if mustEscape(lockKey[i]) {
			n++
		}
	}
	if n == 0 {
		return lockKey
	}
	const hexDigits = "0123456789ABCDEF"
	id := make([]byte, 0, len(lockKey)+2*n)
	for i := range len(lockKey) {
		if c := lockKey[i]; mustEscape(c) {
			id = append(id, '~', hexDigits[c>>4], hexDigits[c&0xF])
		} else {
			id = append(id, c)
		}
	}
	return string(id)
}

func mustEscape(c byte) bool {
	return c <= ' ' || c == 0x7F || strings.IndexByte(`%/?#\~`, c) >= 0
}

// lockKey is the inverse of TaskID.
func lockKey(id string) (key string, ok bool) {
	if strings.IndexByte(id, '~') < 0 {
		return id, true
	}
	b := make([]byte, 0, len(id))
	for i := 0; i < len(id); i++ {
		c := id[i]
		if c == '~' {
			if i+2 >= len(id) {
				return "", false
			}
			high, low := unhex(id[i+1]), unhex(id[i+2])
			if high < 0 || low < 0 {
				return "", false
			}
			c, i = byte(high<<4|low), i+2 //nolint:gosec // both are below 16
		}
		b = append(b, c)
	}
	return string(b), true
}

func unhex(c byte) int { return strings.IndexByte("0123456789ABCDEF", c) }

// ID makes the ID of a task that has a claim beside the lock with that key. nonce is different for
// each series of tasks that supersede each other, and has neither a colon nor a comma. The ID ends
// with the task's number in its series, which is 0.
func ID(lockKey string, kind Kind, nonce string) string {
	return TaskID(lockKey) + ":" + string(kind) + ":" + nonce + ".0"
}

// Parse returns the lock's key and the kind of the claim of a task with that ID. It returns false for
// a task without a claim beside a lock of that prefix.
func Parse(id, prefix string) (key string, kind Kind, ok bool) {
	// A lock's key ends with its only closing brace.
	before, after, found := strings.Cut(id, "}:")
	if !found {
		return "", "", false
	}
	name, _, _ := strings.Cut(after, ":")
	switch kind = Kind(name); kind {
	case Start, StartNew, DoneNew, KeptNew, Window, WindowNew:
	default:
		return "", "", false
	}
	key, ok = lockKey(before + "}")
	return key, kind, ok && strings.HasPrefix(key, prefix) && strings.HasPrefix(key[len(prefix):], ":{")
}
