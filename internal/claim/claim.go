// Package claim is what the producers of package unique and the guard's
// middleware have to agree on: how a task says that it has a claim which ends
// when its handler begins, and what that claim is called.
//
// The task says so by its ID. Headers would say it better, but cannot be added
// to a task without losing the options it was made with.
package claim

import "strings"

// untilStart follows the lock's key in the ID of a task with such a claim.
const untilStart = ":start:"

// ID makes the ID of a task whose claim, beside the lock with that key, ends
// when its handler begins. nonce is different for each.
func ID(lockKey, nonce string) string { return lockKey + untilStart + nonce }

// Has tells whether a task with that ID has a claim beside the lock with that
// key. It allocates nothing.
func Has(id, lockKey string) bool {
	rest, ok := strings.CutPrefix(id, lockKey)
	return ok && strings.HasPrefix(rest, untilStart)
}

// HasAny tells whether a task with that ID has a claim beside some lock of that
// prefix. A lock's key ends with its only closing brace.
func HasAny(id, prefix string) bool {
	return strings.HasPrefix(id, prefix) && strings.HasPrefix(id[len(prefix):], ":{") && strings.Contains(id, "}"+untilStart)
}

// handedBack begins the errors with which a Guard gives a task back to asynq before
// its handler has begun, and so the last error of such a task.
const handedBack = "automutex: "

// HandBackText is the text of such an error.
func HandBackText(text string) string {
	if HandedBack(text) {
		return text
	}
	return handedBack + text
}

// HandedBack tells whether a task's last error is that of a Guard that handed it back.
func HandedBack(lastErr string) bool { return strings.HasPrefix(lastErr, handedBack) }
