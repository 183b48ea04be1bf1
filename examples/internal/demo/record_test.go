package demo

import "testing"

// A task that begins after one of its key that was enqueued later is found, whatever other keys do.
func TestRecorder_disorder(t *testing.T) {
	for _, c := range []struct {
		runs           []string // IDs of tasks; of those that end with x the handler fails
		broken, failed int
	}{
		{[]string{"a1", "b1", "a2", "b2"}, 0, 0},
		{[]string{"a1", "b1x", "a2", "b1", "b2"}, 0, 1},
		{[]string{"a2", "b1", "a1", "b2"}, 1, 0},
		{[]string{"a1x", "a2", "a1", "b1", "b2"}, 1, 1},
	} {
		r := newRecorder()
		for _, id := range []string{"a1", "b1", "a2", "b2"} {
			r.enqueue(id[:1], id)
		}
		for _, id := range c.runs {
			end := r.begin(id[:1], id[:2], "t")
			if len(id) > 2 {
				end(errOnce)
			} else {
				end(nil)
			}
		}
		if broken, failed := r.disorder(); broken != c.broken || failed != c.failed {
			t.Errorf("%q: %d broken, %d failed; want %d, %d", c.runs, broken, failed, c.broken, c.failed)
		}
	}
}
