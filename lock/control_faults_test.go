package lock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// What cannot be read is logged once and left alone; the rest is obeyed.
func TestControls_unreadable(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &redistest.Log{}
		prefix := ownPrefix(t)
		operator, l := newLocker(t, s.Client(t), prefix), newLocker(t, s.Client(t), prefix, logTo(log))
		rdb, key := s.Client(t), operator.controls.Keys[0]
		wrong := map[string]string{
			"text": "not JSON", "number": "17", "list": "[]", "none": "{}", "newer": `{"v":2,"stop":true}`,
			"limit": `{"v":1,"limit":{"holders":0}}`, "huge": `{"v":1,"limit":{"holders":1e300}}`,
			"until": `{"v":1,"pause":{"until":"tomorrow"}}`, "nul\x00": "\x00\xff",
		}
		for target, entry := range wrong {
			redistest.Must(t, rdb.HSet(t.Context(), key, target, entry).Err())
		}
		pause(t, operator, "report", time.Time{}, "")
		for target := range wrong {
			if strings.IndexByte(target, 0) < 0 {
				mustUnlock(t, mustTry(t, l.Mutex(target)))
			}
		}
		mustNotTry(t, l.Mutex("report"))
		for range 3 {
			if list, err := l.Controls().List(t.Context()); err != nil || len(list) != 1 {
				t.Errorf("List: %v, %v", list, err)
			}
		}
		if found, err := l.Controls().unreadable(t.Context()); err != nil || len(found) != len(wrong) || !strings.Contains(found["newer"], "newer version") {
			t.Errorf("Unreadable: %v, %v", found, err)
		}
		if n := strings.Count(log.String(), "cannot be read"); n != len(wrong) {
			t.Errorf("%d log lines for %d entries:\n%s", n, len(wrong), log.String())
		}
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, "cannot be read") {
				continue
			}
			for _, part := range []string{key, " target=", " problem=", "automutex resume TARGET"} {
				if !strings.Contains(line, part) {
					t.Errorf("no %q in %s", part, line)
				}
			}
			if strings.Contains(line, "newer version") != strings.Contains(line, "update this program") {
				t.Errorf("an update helps with what a newer version wrote, and with nothing else: %s", line)
			}
		}

		// A newer version's order is not overwritten, and can be removed.
		if err := operator.Controls().SetLimit(t.Context(), "newer", 3, ""); err == nil || !strings.Contains(err.Error(), "newer version") {
			t.Errorf("SetLimit over a newer version's entry: %v", err)
		}
		resume(t, operator, "newer")
		for _, junk := range []string{"a{b", "a~b", "report|~x", "nul\x00"} {
			redistest.Must(t, rdb.HSet(t.Context(), key, junk, "junk").Err())
			resume(t, operator, junk)
			if there, err := rdb.HExists(t.Context(), key, junk).Result(); err != nil || there {
				t.Errorf("resume leaves the entry %q: %v", junk, err)
			}
		}
		pause(t, operator, "text", time.Time{}, "")
		knows(t, l, "report", "text")
	})
}

// Something else under the key of the controls, or no right to read them, is said once,
// and locks go on without.
func TestControls_notReadable(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &redistest.Log{}
		l := newLocker(t, s.Client(t), ownPrefix(t), logTo(log))
		redistest.Must(t, s.Client(t).Set(t.Context(), l.controls.Keys[0], "x", time.Minute).Err())
		mustUnlock(t, mustTry(t, l.Mutex("report")))
		if n := strings.Count(log.String(), "the controls cannot be read; this process obeys no pause and no limit until they can"); n != 1 {
			t.Errorf("%d log lines:\n%s", n, log.String())
		}
		for _, part := range []string{l.controls.Keys[0], "something else than controls is stored", "DEL"} {
			if !strings.Contains(log.String(), part) {
				t.Errorf("the log does not say %q:\n%s", part, log.String())
			}
		}
		if err := l.Controls().Pause(t.Context(), "report", time.Time{}, ""); !errors.Is(err, ErrBackend) {
			t.Errorf("Pause: %v, want ErrBackend", err)
		}
	})
}

// A user with the rights of an older version has no controls, and one log line.
func TestControls_noRights(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	log := &redistest.Log{}
	l := newLocker(t, denied(t, s, s.Client(t), "-hlen", "-hgetall", "-hget", "-hset", "-hdel"), ownPrefix(t), logTo(log))
	mustUnlock(t, mustTry(t, l.Mutex("report")))
	if n := strings.Count(log.String(), "the controls cannot be read"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, log.String())
	}
	err := l.Controls().Pause(t.Context(), "report", time.Time{}, "")
	wantDenied(t, "Pause", err, "HLEN")
}

// Bad input is refused, with what is wrong and what to do.
func TestControls_badInput(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	ctx, controls := t.Context(), l.Controls()
	for _, target := range []string{"", " ", "report ", "|acme", "report|a b", "re{port}", "a\nb", "\xff", strings.Repeat("x", 2000), "report|%zz|y",
		"report|~x", "report|50%", "report|50%41", "report|a~", "report|" + strings.Repeat("y", 201), "report|~" + strings.Repeat("0", 64) + "|a",
		"re~port|a", strings.Repeat("z", 201) + "|a", "report" + strings.Repeat("|", 201), "report|~" + strings.Repeat("F", 64)} {
		for what, err := range map[string]error{
			"Pause": controls.Pause(ctx, target, time.Time{}, ""), "Resume": controls.Resume(ctx, target),
			"SetLimit": controls.SetLimit(ctx, target, 3, ""), "ClearLimit": controls.ClearLimit(ctx, target),
		} {
			if err == nil || !strings.Contains(err.Error(), "a target is a scope") {
				t.Errorf("%s of %.20q: %v", what, target, err)
			}
		}
	}
	for what, err := range map[string]error{
		"in the past":     controls.Pause(ctx, "report", time.Now().Add(-time.Second), ""),
		"at most":         controls.Pause(ctx, "report", time.Now().Add(inside.MaxTTL+time.Hour), ""),
		"limit of 0":      controls.SetLimit(ctx, "report", 0, ""),
		"limit of -1":     controls.SetLimit(ctx, "report", -1, ""),
		"at most 1000":    controls.Pause(ctx, "report", time.Time{}, strings.Repeat("y", 1001)),
		"limit of 214748": controls.SetLimit(ctx, "report", 1<<31, ""),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: want it to say %q", err, what)
		}
	}
	if list, err := controls.List(ctx); err != nil || len(list) > 0 {
		t.Errorf("List: %v, %v", list, err)
	}
}

// Each process logs a change, once, and tells OnControls.
func TestControls_logged(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	log, told := &redistest.Log{}, make(chan []Control, 10)
	prefix := ownPrefix(t)
	operator := newLocker(t, s.Client(t), prefix, owner("alice"))
	pause(t, operator, "report", time.Time{}, "repair")
	l := newLocker(t, s.Client(t), prefix, logTo(log), func(o *Options) {
		o.onControls = func(inForce []Control) { told <- inForce }
	})
	mustNotTry(t, l.Mutex("report"))
	if list := come(t, told, "OnControls"); len(list) != 1 || list[0].Target != "report" {
		t.Errorf("told of %v", list)
	}
	resume(t, operator, "report")
	if list := come(t, told, "OnControls"); len(list) != 0 {
		t.Errorf("told of %v", list)
	}
	redistest.Eventually(t, soon, func() bool { return strings.Contains(log.String(), "a control has ended") }, "a log line of the end")
	for part, want := range map[string]int{"a control is in force": 1, "target=report": 2, "by=alice": 1, "why=repair": 1, "paused until=resumed": 1} {
		if n := strings.Count(log.String(), part); n != want {
			t.Errorf("%q stands %d times in the log, want %d:\n%s", part, n, want, log.String())
		}
	}
}

// The controls are in a slot of their own, and the entries of pauses that have ended go.
func TestControls_stored(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		rdb := s.Client(t)
		if s.Kind() == redistest.KindCluster {
			a, b := rdb.ClusterKeySlot(t.Context(), l.controls.Keys[0]).Val(), rdb.ClusterKeySlot(t.Context(), l.Mutex("report").Key()).Val()
			if a == b {
				t.Errorf("controls and lock are both in slot %d", a)
			}
		}
		if list := l.Controls().inForce(); len(list) > 0 {
			t.Errorf("in force before anything was read: %v", list)
		}
		pauseFor(t, l, "short", 50*time.Millisecond)
		redistest.Eventually(t, soon, func() bool { return len(l.Controls().inForce()) == 0 }, "the end of the pause")
		setLimit(t, l, "short", 3)
		if entry := rdb.HGet(t.Context(), l.controls.Keys[0], "short").Val(); strings.Contains(entry, "pause") {
			t.Errorf("a limit keeps the pause that has ended: %s", entry)
		}
		pauseFor(t, l, "shorter", 50*time.Millisecond)
		redistest.Eventually(t, soon, func() bool { return len(l.Controls().inForce()) == 1 }, "the end of the pause")
		redistest.Must(t, l.Controls().ClearLimit(t.Context(), "short"))
		pause(t, l, "long", time.Time{}, "")
		if fields := rdb.HKeys(t.Context(), l.controls.Keys[0]).Val(); !slices.Equal(fields, []string{"long"}) {
			t.Errorf("the controls are %q", fields)
		}
	})
}

// A closed Locker says so.
func TestControls_closed(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	pause(t, l, "report", time.Time{}, "")
	_ = l.Close()
	if err := l.Controls().Resume(t.Context(), "report"); !errors.Is(err, ErrClosed) {
		t.Errorf("Resume: %v, want ErrClosed", err)
	}
	if _, err := l.Controls().List(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("List: %v, want ErrClosed", err)
	}
}

// There is a most of what has controls; what has some can still be changed.
func TestControls_tooMany(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	l := newLocker(t, rdb, ownPrefix(t))
	entries := map[string]any{}
	for i := range 1000 {
		entries[fmt.Sprintf("report|%d", i)] = `{"v":1,"limit":{"holders":2}}`
	}
	redistest.Must(t, rdb.HSet(t.Context(), l.controls.Keys[0], entries).Err())
	if err := l.Controls().Pause(t.Context(), "mail", time.Time{}, ""); err == nil || !strings.Contains(err.Error(), "1000 targets have controls already") {
		t.Errorf("Pause of one more: %v", err)
	}
	pause(t, l, "report|7", time.Time{}, "")
	redistest.Must(t, l.Controls().ClearLimit(t.Context(), "report|8"))
	pause(t, l, "mail", time.Time{}, "")
}
