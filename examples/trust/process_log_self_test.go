package trust

import (
	"strings"
	"testing"

	"github.com/automutex/automutex/lock"
)

// The books find what is wrong in a log, and only that.
func TestProcessBooks(t *testing.T) {
	t.Parallel()
	begin := func(us int64, run string, pid int, fence int64) processEvent {
		return processEvent{US: us, Accepted: true, What: processBegins, PID: pid, Key: "k", Run: run, Fence: fence, N: int(fence)}
	}
	end := func(us int64, run string, pid int, fence int64) processEvent {
		e := begin(us, run, pid, fence)
		e.What = processEnds
		return e
	}
	refused := func(e processEvent, cause string) processEvent {
		e.Accepted, e.Cause = false, cause
		return e
	}
	with := func(what string, pid int) processEvent { return processEvent{Accepted: true, What: what, PID: pid} }
	stopped := processEvent{Accepted: true, What: processStopped, PID: 1, Until: map[string]int64{"k": 100}}
	lost := lock.ErrLost.Error()
	stop := []processEvent{begin(1, "a", 1, 1), with(processStopping, 1), stopped}
	stalled := refused(end(60, "a", 1, 1), lost)
	stalled.Stalls = 1
	for name, c := range map[string]struct {
		log  []processEvent
		want string // in what is wrong; "": nothing is
		done int
	}{
		"in turn":                      {[]processEvent{begin(1, "a", 1, 1), end(2, "a", 1, 1), begin(3, "b", 2, 2), end(4, "b", 2, 2)}, "", 2},
		"a write sent again":           {[]processEvent{begin(1, "a", 1, 1), begin(2, "a", 1, 1), end(3, "a", 1, 1)}, "", 1},
		"two at once":                  {[]processEvent{begin(1, "a", 1, 1), begin(2, "b", 2, 2), end(3, "a", 1, 1), end(4, "b", 2, 2)}, "under way", 2},
		"after a kill":                 {[]processEvent{begin(1, "a", 1, 1), with(processKilled, 1), begin(2, "b", 2, 2), end(3, "b", 2, 2)}, "", 1},
		"done before a kill":           {[]processEvent{begin(1, "a", 1, 1), with(processKilled, 1), end(2, "a", 1, 1)}, "", 1},
		"begun before a stop":          {[]processEvent{with(processStopping, 1), begin(1, "a", 1, 1), stopped, begin(100, "b", 2, 2), end(102, "b", 2, 2), refused(end(103, "a", 1, 1), "")}, "", 1},
		"begun after a stop":           {[]processEvent{with(processStopping, 1), stopped, with(processResumed, 1), begin(1, "a", 1, 1), begin(100, "b", 2, 2), end(102, "b", 2, 2), end(103, "a", 1, 1)}, "under way", 2},
		"after the kill of another":    {[]processEvent{begin(1, "a", 1, 1), with(processKilled, 3), begin(2, "b", 2, 2), end(3, "b", 2, 2), end(4, "a", 1, 1)}, "under way", 2},
		"a fence that goes back":       {[]processEvent{begin(1, "a", 1, 2), end(2, "a", 1, 2), begin(3, "b", 2, 1), end(4, "b", 2, 1)}, "has fence 1, after 2", 2},
		"a fence twice":                {[]processEvent{begin(1, "a", 1, 2), end(2, "a", 1, 2), begin(3, "b", 2, 2), end(4, "b", 2, 2)}, "has fence 2, after 2", 1},
		"one that never ends":          {[]processEvent{begin(1, "a", 1, 1)}, "never ended", 0},
		"refused for nothing":          {[]processEvent{begin(1, "a", 1, 1), refused(end(2, "a", 1, 1), "")}, "never stood still, was refused", 0},
		"stopped":                      {append(stop, begin(100, "b", 2, 2), refused(end(101, "a", 1, 1), lost), end(102, "b", 2, 2)), "", 1},
		"stopped, overtaken too early": {append(stop, begin(99, "b", 2, 2), refused(end(101, "a", 1, 1), lost), end(102, "b", 2, 2)), "1 us before", 1},
		"stopped, no work left":        {append(stop, begin(100, "b", 2, 2), refused(end(101, "a", 1, 1), ""), end(102, "b", 2, 2)), "", 1},
		"stopped, not refused":         {append(stop, begin(100, "b", 2, 2), end(101, "a", 1, 1), end(102, "b", 2, 2)), "was overtaken", 1},
		"stopped, not overtaken":       {append(stop, end(101, "a", 1, 1)), "", 1},
		"a late one after a stop":      {[]processEvent{with(processStopping, 1), begin(1, "b", 2, 2), refused(begin(2, "a", 1, 1), ""), refused(end(3, "a", 1, 1), lost), end(4, "b", 2, 2)}, "", 1},
		"it stood still by itself":     {[]processEvent{begin(1, "a", 1, 1), begin(50, "b", 2, 2), stalled, end(61, "b", 2, 2)}, "", 1},
	} {
		b := balance(c.log)
		got := strings.Join(append(b.overlaps, b.wrong...), "; ")
		if got != "" && (c.want == "" || !strings.Contains(got, c.want)) || got == "" && c.want != "" {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
		if len(b.done) != c.done {
			t.Errorf("%s: %d tasks done, want %d", name, len(b.done), c.done)
		}
	}
}
