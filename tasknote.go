package automutex

import (
	"net/url"
	"strings"
)

// taskNote names a task across queues. IDs are unique in their queue only, and
// either may hold any character, so the queue is escaped: no two tasks share a
// note.
func taskNote(queue, id string) string { return url.PathEscape(queue) + "/" + id }

// parseNote undoes taskNote.
func parseNote(note string) (queue, id string, ok bool) {
	escaped, id, ok := strings.Cut(note, "/")
	queue, err := url.PathUnescape(escaped)
	return queue, id, ok && err == nil
}
