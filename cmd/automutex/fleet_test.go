package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
)

// say has a worker say which rules it runs, and waits until it has said so.
func say(t *testing.T, s *redistest.Server, prefix, owner string, hashed bool, rules ...automutex.Rule) {
	t.Helper()
	ctx := context.Background()
	worker := fleet.New(s.Client(t), prefix, fleet.Process{Owner: owner, Hashed: hashed, Rules: inspect.Describe(rules)}, func() []string { return nil }, func([]fleet.Difference) {})
	worker.Begin()
	t.Cleanup(func() { worker.Close(ctx) })
	redistest.Eventually(t, patience, func() bool {
		f, err := fleet.Read(ctx, s.Client(t), prefix)
		return err == nil && slices.ContainsFunc(f, func(p fleet.Process) bool { return p.Owner == owner })
	}, "the worker tells its rules")
}

// Without a file the commands know the rules that workers say they run.
func testFleet(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	verify := automutex.Rule{Task: "itunes:verify", On: []string{"id"}}
	b.run(t, tr.flags("pause", "verfy")...).want(t, exitOK, "verfy is paused") // no worker has said anything
	b.run(t, tr.flags("resume", "verfy")...).want(t, exitOK)
	say(t, s, tr.prefix, "a:1", false, verify)
	b.run(t, tr.flags("pause", "verfy")...).wantError(t, exitNo, "No rule has the scope of verfy; nor is there such a lock now; did you mean itunes:verify? --force")
	b.run(t, tr.flags("limit", "itunes:verfy|7", "2")...).wantError(t, exitNo, "did you mean itunes:verify|7?")
	b.run(t, tr.flags("limit", "itunes:verify|7|8", "2")...).wantError(t, exitNo, "it has 2 values")
	b.run(t, tr.flags("pause", "itunes:verify|7")...).want(t, exitOK, "itunes:verify|7 is paused")
	b.run(t, tr.flags("pause", "verfy", "--force")...).want(t, exitOK, "verfy is paused")
	b.run(t, tr.flags("resume", "verfy")...).want(t, exitOK)
	if _, err := tr.others.Mutex("verfy").TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.run(t, tr.flags("pause", "verfy")...).want(t, exitOK, "verfy is paused") // a lock of a program
	verify.Limit = 5
	say(t, s, tr.prefix, "b:2", true, verify)
	r := b.run(t, tr.flags("doctor")...)
	for _, want := range []string{"rules for scope itunes:verify differ: ", "limit 1", "limit 5", "keys hashed in b:2"} {
		if r.exit != exitNo || !strings.Contains(r.stdout, want) {
			t.Errorf("doctor: %d, no %q in\n%s", r.exit, want, r.stdout)
		}
	}
}
