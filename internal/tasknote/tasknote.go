// Package tasknote names a task as "queue/id": in the note that the task leaves in its
// locks, in the claims of package unique, and in what operators read.
package tasknote

import (
	"net/url"
	"strings"
)

// Of returns the note of a task. IDs are unique in their queue only, and both may have
// any character, so the queue is escaped: two tasks never have the same note.
func Of(queue, id string) string { return url.PathEscape(queue) + "/" + id }

// Parse returns the queue and the ID of a note. It returns false for a text that Of did not make.
func Parse(note string) (queue, id string, ok bool) {
	escaped, id, found := strings.Cut(note, "/")
	queue, err := url.PathUnescape(escaped)
	return queue, id, found && err == nil
}
