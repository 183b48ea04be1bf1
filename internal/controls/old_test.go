package controls

import (
	"testing"
	"time"
)

// What runs in the background grants to nobody while the controls are too old to rely on, and
// goes on when a read has failed.
func TestControls_tooOld(t *testing.T) {
	t.Parallel()
	c := New(Options{Prefix: "p"}) // without its goroutine
	slots := func() int { return c.Slots("p:{report}", 3, false) }
	old := time.Now().Add(-Delay - time.Second)
	for _, step := range []struct {
		what            string
		sent, failed    time.Time
		refused, behind bool
	}{
		{"just read", time.Now(), time.Time{}, false, false},
		{"read long ago", old, time.Time{}, false, true},
		{"by the wall clock alone", time.Now().Round(0).Add(-time.Hour), time.Time{}, false, true},
		{"a read has failed since", old, time.Now(), false, false},
		{"a read has failed long ago", old, old, false, true},
		{"the last read was refused", old, time.Time{}, true, false},
	} {
		c.state.Store(&State{sent: step.sent})
		c.failed.Store(&step.failed)
		c.refused.Store(step.refused)
		want := 3
		if step.behind {
			want = 0
		}
		if c.isBehind() != step.behind || slots() != want {
			t.Errorf("%s: behind %v, %d slots; want %v, %d", step.what, c.isBehind(), slots(), step.behind, want)
		}
	}
	c.state.Store(nil)
	if c.isBehind() || slots() != 3 {
		t.Errorf("nothing was read: behind %v, %d slots", c.isBehind(), slots())
	}
}
