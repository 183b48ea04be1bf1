// Package claim is what package unique and the Guard's middleware write for each other: the
// ID of a task that has a claim which ends when its handler begins, and the error with which
// a Guard returns a task to asynq.
//
// The mark is in the task's ID, since a header cannot be added to a task without losing the
// options that the task was made with.
package claim

import "strings"

// untilStart follows the lock's key in the ID of a task with such a claim.
const untilStart = ":start:"

// ID makes the ID of a task whose claim, beside the lock with that key, ends
// when its handler begins. nonce is different for each.
func ID(lockKey, nonce string) string { return lockKey + untilStart + nonce }

// Has reports whether a task with that ID has a claim beside the lock with that
// key. It allocates nothing.
func Has(id, lockKey string) bool {
	rest, ok := strings.CutPrefix(id, lockKey)
	return ok && strings.HasPrefix(rest, untilStart)
}

// HasAny reports whether a task with that ID has a claim beside some lock of that
// prefix. A lock's key ends with its only closing brace.
func HasAny(id, prefix string) bool {
	return strings.HasPrefix(id, prefix) && strings.HasPrefix(id[len(prefix):], ":{") && strings.Contains(id, "}"+untilStart)
}

// returnPrefix begins the error with which a Guard returns a task to asynq before its
// handler has begun. It is then the last error of the task.
const returnPrefix = "automutex: "

// ReturnText returns the text of such an error: text, with the prefix.
func ReturnText(text string) string {
	if IsReturn(text) {
		return text
	}
	return returnPrefix + text
}

// IsReturn reports whether lastErr, the last error of a task, is that of a Guard that
// returned the task before its handler began.
func IsReturn(lastErr string) bool { return strings.HasPrefix(lastErr, returnPrefix) }
