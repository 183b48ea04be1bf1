package lock

import (
	"testing"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// A key that only tasks in order want is listed, with how many they are, its head, and its line.
func TestOrder_isSeen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		key := l.Mutex(t.Name()).Key()
		a, b, c := stampTask(t, l, key, "default/a"), stampTask(t, l, key, "default/b"), stampTask(t, l, key, "default/c")
		see := func(queued int, state string, failed, runs bool) inside.Info {
			t.Helper()
			found := 0
			var seen inside.Info
			for info, err := range l.list(t.Context()) {
				redistest.Must(t, err)
				found, seen = found+1, info
			}
			h := seen.Head
			if found != 1 || seen.Queued != queued || h.Note != a.note || h.Queued != 3 || h.State != state || h.Failed != failed || h.Runs != runs {
				t.Fatalf("%d locks, %+v; want %d queued, the head in state %s, failed %v, runs %v", found, seen, queued, state, failed, runs)
			}
			line, err := l.byOrder(key).listLine(t.Context(), seen, 100)
			if err != nil || len(line) != queued || line[len(line)-1].Note != c.note || !line[0].Ordered {
				t.Fatalf("line %+v, %v; want %d", line, err, queued)
			}
			if short, err := l.byOrder(key).listLine(t.Context(), seen, 1); err != nil || len(short) != 1 || short[0].Note != line[0].Note {
				t.Fatalf("the first of the line: %+v, %v", short, err)
			}
			return seen
		}
		see(3, "i", false, false)
		b.mustPark(t)
		le := a.mustRun(t)
		if info := see(2, "a", false, true); info.Head.MayBlock() {
			t.Errorf("a head at work blocks: %+v", info.Head)
		}
		if info, err := c.lock().inspectAll(t.Context()); err != nil || info.Place != 1 {
			t.Errorf("place %d, %v, want 1 behind the one at work", info.Place, err)
		}
		a.end(t, le, inside.OutcomeStays)
		if info := see(3, "a", true, false); !info.Head.Blocks() || info.Head.Held() {
			t.Errorf("a head that failed does not block: %+v", info.Head)
		}
		if info, err := c.lock().inspectAll(t.Context()); err != nil || info.Place != 2 {
			t.Errorf("place %d, %v, want 2", info.Place, err)
		}
		a.end(t, a.mustRun(t), inside.OutcomeHeld)
		if info := see(3, "h", false, false); !info.Head.Blocks() || !info.Head.Held() {
			t.Errorf("a held head does not block: %+v", info.Head)
		}
		line, err := l.byOrder(key).listLine(t.Context(), inside.Info{}, 100)
		if err != nil || !line[0].Held || line[1].Parked != true {
			t.Errorf("%+v, %v", line, err)
		}
	})
}
