package lock

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
)

// A target is a scope as the program has it, or a key as it stands in Redis.
func TestControls_targets(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	long := strings.Repeat("a long scope ", 30)
	for target, locks := range map[string][]*Lock{
		"report":                 {l.Mutex("report"), l.Mutex("report", Parts("acme")), l.Mutex("report", Parts("a", "b"))},
		"report|acme":            {l.Mutex("report", Parts("acme"))},
		"my scope":               {l.Mutex("my scope"), l.Mutex("my scope", Parts("x"))},
		"my%20scope|x%20y":       {l.Mutex("my scope", Parts("x y"))},
		l.prefix + ":{report|b}": {l.Mutex("report", Parts("b"))},
		"50%":                    {l.Mutex("50%"), l.Mutex("50%", Parts("x"))},
		"50%41":                  {l.Mutex("50%41")},
		"a~b":                    {l.Mutex("a~b")},
		l.Mutex("50%", Parts("~x", "a|b", "")).Key():                          {l.Mutex("50%", Parts("~x", "a|b", ""))},
		l.Mutex("report", Parts(long)).Key():                                  {l.Mutex("report", Parts(long))},
		l.Mutex("report", Parts(strings.Repeat("y", 200))).Key():              {l.Mutex("report", Parts(strings.Repeat("y", 200)))},
		inBraces(keys.HashedKey("a secret of 16 b", l.prefix, "s", "a", "b")): {},
		"control":                     {l.Mutex("control"), l.Mutex("control", Parts("x"))},
		long[:len(long)-1]:            {l.Mutex(long[:len(long)-1]), l.Mutex(long[:len(long)-1], Parts("x"))},
		inBraces(l.Mutex(long).Key()): {l.Mutex(long)},
		"itunes:verify":               {l.Mutex("itunes:verify", Parts("1"))},
		"itunes:":                     {l.Mutex("itunes:verify", Parts("1")), l.Mutex("itunes:verify:again"), l.Mutex("itunes:", Parts("1")), l.Mutex("itunes:")},
	} {
		pause(t, l, target, time.Time{}, "")
		for _, m := range locks {
			if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused || !err.Pause.appliesTo(m.Key()) {
				t.Errorf("%q: %s: %v, want paused", target, m.Key(), err)
			}
		}
		mustUnlock(t, mustTry(t, l.Mutex("reports")))
		mustUnlock(t, mustTry(t, l.Mutex("report-", Parts("acme"))))
		resume(t, l, target)
		for _, m := range locks {
			mustUnlock(t, mustTry(t, m))
		}
	}
	if list := l.Controls().inForce(); len(list) > 0 {
		t.Errorf("left: %v", list)
	}
}

// The narrowest target decides; a beginning of a scope is one only up to a ':'.
func TestControls_beginnings(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	c := l.Controls()
	for target, n := range map[string]int{"a:": 2, "a:b:": 3, "a:b:c": 4, "a:b:c|1": 5, "a": 6} {
		setLimit(t, l, target, n)
		pause(t, l, target, time.Time{}, target)
	}
	for _, test := range []struct {
		m     *Lock
		limit int
		by    string
	}{
		{l.Mutex("a:b:c", Parts("1")), 5, "a:b:c|1"},
		{l.Mutex("a:b:c", Parts("2")), 4, "a:b:c"},
		{l.Mutex("a:b:d"), 3, "a:b:"},
		{l.Mutex("a:b"), 2, "a:"},
		{l.Mutex("a"), 6, "a"},
		{l.Mutex("b:a:"), 0, ""},
		{l.Mutex("ab:"), 0, ""},
	} {
		limit, by := l.controls.Of(test.m.Key())
		its, limitOfList, byOfList := controlsFor(c.inForce(), test.m.Key())
		if limit != test.limit || limitOfList != limit || (by != nil) != (test.by != "") || by != nil && (by.Target != test.by || byOfList.Target != test.by) {
			t.Errorf("%s: limit %d, pause %v, and of the list %d, %v (%v)", test.m.Key(), limit, by, limitOfList, byOfList, its)
		}
	}
}

func inBraces(key string) string {
	_, text, _ := strings.Cut(key, "{")
	return strings.TrimSuffix(text, "}")
}

// A lock whose name is that of the controls has a key of its own, and the controls are
// no lock.
func TestControls_keyOfTheirOwn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("control")
		pause(t, l, "report", time.Time{}, "")
		held := mustTry(t, m)
		mustNotTry(t, m)
		for info, err := range l.list(t.Context()) {
			if err != nil || info.Key != m.Key() {
				t.Errorf("List: %v, %v", info, err)
			}
		}
		if _, err := l.sweep(t.Context()); err != nil {
			t.Errorf("Sweep: %v", err)
		}
		if err := l.byKey(l.controls.Keys[0]).err; err == nil {
			t.Error("the key of the controls passes for a lock's")
		}
		if err := l.byKey(m.Key()).err; err != nil {
			t.Errorf("ByKey: %v", err)
		}
		mustUnlock(t, held)
		pause(t, l, m.Key(), time.Time{}, "") // the lock's, and not that of the controls
		if busy := wantBusy(t, mustNotTry(t, m)); busy.Reason != ReasonPaused || busy.Pause.Target != m.name {
			t.Errorf("%+v, want that it is paused", busy)
		}
		resume(t, l, m.name)
		mustUnlock(t, mustTry(t, m))
	})
}

// A leader is alone whatever the limit; nobody becomes the leader while it is paused.
func TestControls_lead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		setLimit(t, l, "scheduler", 5)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leads := make(chan int, 10)
		var wg sync.WaitGroup
		for i := range 2 {
			redistest.Go(&wg, func() {
				_ = l.Lead(ctx, "scheduler", func(ctx context.Context) error { leads <- i; <-ctx.Done(); return nil })
			})
		}
		come(t, leads, "a leader")
		waiting(t, l.Mutex("scheduler"), 1)
		select {
		case <-leads:
			t.Error("two leaders at once")
		default:
		}
		cancel()
		wg.Wait()
	})
}
