package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// testBreakGate: break ends a hold or a cooldown, whether or not somebody holds the lock,
// and show tells of one that nobody holds. A rate is left alone, and so is a hold where one
// holder is named.
func testBreakGate(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait)
		take := func(name string, options ...lock.Option) *lock.Lease {
			t.Helper()
			lease, err := tr.others.Semaphore(name, 2, options...).TryLock(t.Context())
			redistest.Must(t, err)
			return lease
		}
		closed := func(name string, want bool) {
			t.Helper()
			info, err := inner.Inspect(t.Context(), tr.others.Mutex(name))
			if err != nil || info.Gate.OpensIn > 0 != want {
				t.Errorf("the gate of %s: %+v, %v; want closed: %v", name, info.Gate, err, want)
			}
		}
		held := take("free")
		redistest.Must(t, errors.Join(inner.CloseGate(t.Context(), held, time.Hour), held.Unlock(t.Context())))
		b.run(t, tr.flags("list")...).want(t, exitOK, keytext.Key(tr.prefix, "free"), "(closed)")
		b.run(t, tr.flags("show", "free")...).want(t, exitOK, "held by 0", "nobody starts for", "closed")
		b.run(t, tr.flags("show", "free", "--json")...).want(t, exitOK, `"closed":"closed"`)
		b.runWith(t, "n\n", nil, tr.flags("break", "free")...).wantErrorLine(t, exitNo, "nothing was done")
		closed("free", true)
		r := b.runWith(t, "y\n", nil, tr.flags("break", "free")...)
		if r.exit != exitOK || !strings.Contains(r.stderr, "End the closed gate? [y/N]") || !strings.HasSuffix(r.stdout, "\nended: the closed gate\n") {
			t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
		}
		closed("free", false)
		b.run(t, tr.flags("break", "free", "--yes")...).wantError(t, exitNo, "nobody holds")
		b.run(t, tr.flags("show", "free")...).wantError(t, exitNo, "nobody holds or waits for")

		stays, cools := take("both"), take("both")
		redistest.Must(t, cools.Cooldown(t.Context(), time.Hour))
		r = b.runWith(t, "y\n", nil, tr.flags("break", "both")...)
		if r.exit != exitOK || !strings.HasSuffix(r.stdout, "\nbroken: 1 of 1\nended: the cooldown\n") || !strings.Contains(r.stderr, "Take the lock from 1 holder, and end the cooldown? [y/N]") {
			t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
		}
		closed("both", false)
		if err := stays.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("Extend of the broken lease: %v", err)
		}

		one := take("one")
		redistest.Must(t, inner.CloseGate(t.Context(), one, time.Hour))
		b.run(t, tr.flags("break", "one", "--yes", "--holder", one.Token())...).want(t, exitOK, "broken: 1 of 1")
		closed("one", true)

		take("spent", lock.Rate(1, time.Hour, 1))
		b.run(t, tr.flags("break", "spent", "--yes")...).want(t, exitOK, "broken: 1 of 1\n")

		for _, hold := range []bool{true, false} {
			rated := take("rated", lock.Rate(2, 2*time.Hour, 2))
			if !hold {
				redistest.Must(t, rated.Unlock(t.Context()))
				b.run(t, tr.flags("break", "rated", "--yes")...).wantError(t, exitNo, "its rate is used up, which break leaves as it is")
				closed("rated", true)
				break
			}
			b.run(t, tr.flags("break", "rated", "--yes")...).want(t, exitOK, "broken: 1 of 1")
		}
	})
}
