package main

import (
	"context"
	"strings"
	"testing"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
)

// Without a file the commands know the rules that workers say they run.
func testFleet(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait)
		ctx := context.Background()
		say := func(owner string, hashed bool, rules ...automutex.Rule) *fleet.Announcer {
			a := fleet.New(s.Client(t), tr.prefix, fleet.Process{Kind: fleet.Worker, Owner: owner, Hashed: hashed}, inspect.Describe(rules))
			a.Begin()
			t.Cleanup(func() { a.Close(ctx) })
			return a
		}
		verify := automutex.Rule{Task: "itunes:verify", On: []string{"id"}}
		b.run(t, tr.flags("pause", "verfy")...).want(t, exitOK, "verfy is paused") // no worker has said anything
		b.run(t, tr.flags("resume", "verfy")...).want(t, exitOK)
		say("a:1", false, verify)
		redistest.Eventually(t, patience, func() bool {
			f, err := fleet.Read(ctx, s.Client(t), tr.prefix)
			return err == nil && len(f.Sets) == 1
		}, "the worker tells its rules")
		b.run(t, tr.flags("pause", "verfy")...).wantError(t, exitNo, "No rule has the scope of verfy; nor is there such a lock now; did you mean itunes:verify? --force")
		b.run(t, tr.flags("limit", "itunes:verfy|7", "2")...).wantError(t, exitNo, "did you mean itunes:verify|7?")
		b.run(t, tr.flags("limit", "itunes:verify|7|8", "2")...).wantError(t, exitNo, "it has 2 values")
		b.run(t, tr.flags("pause", "itunes:verify|7")...).want(t, exitOK, "is paused")
		b.run(t, tr.flags("pause", "verfy", "--force")...).want(t, exitOK, "verfy is paused")
		b.run(t, tr.flags("resume", "verfy")...).want(t, exitOK)
		if _, err := tr.others.Mutex("verfy").TryLock(ctx); err != nil {
			t.Fatal(err)
		}
		b.run(t, tr.flags("pause", "verfy")...).want(t, exitOK, "verfy is paused") // a lock of a program

		verify.Limit = 5
		say("b:2", true, verify)
		redistest.Eventually(t, patience, func() bool {
			f, err := fleet.Read(ctx, s.Client(t), tr.prefix)
			return err == nil && len(f.Sets) == 2
		}, "the other worker tells its rules")
		r := b.run(t, tr.flags("doctor")...)
		for _, want := range []string{`rule "itunes:verify" is not the same in all workers`, "limit 1", "limit 5", "processes with a secret for HashKeys: 1, without: 1"} {
			if r.exit != exitNo || !strings.Contains(r.stdout, want) {
				t.Errorf("doctor: %d, no %q in\n%s", r.exit, want, r.stdout)
			}
		}
	})
}
