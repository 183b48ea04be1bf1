package inspect

import (
	"testing"
	"time"
)

// Of a lock with several holders the age of the newest is known alone: it is shown, since
// another may hang.
func TestFilter_longer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	recent, old := now.Add(-time.Second), now.Add(-time.Hour)
	for what, one := range map[string]struct {
		lock Lock
		want bool
	}{
		"taken lately":     {Lock{Held: 1, Since: &recent}, false},
		"taken long ago":   {Lock{Held: 1, Since: &old}, true},
		"held by nobody":   {Lock{}, false},
		"held by two":      {Lock{Held: 2, Since: &recent}, true},
		"held, since when": {Lock{Held: 1}, false},
	} {
		if got := (Filter{Longer: time.Minute}).Passes(one.lock, now); got != one.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
