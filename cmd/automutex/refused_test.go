package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// testRefusedCommands: a right that the user in Redis lacks ends a command with Redis' reason.
func testRefusedCommands(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	tr := start(t, s, wait, automutex.Rule{Task: "report", On: []string{"id"}})
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	closes, err := tr.others.Mutex("closed").TryLock(t.Context())
	redistest.Must(t, errors.Join(err, inner.CloseGate(t.Context(), closes, time.Hour), closes.Unlock(t.Context())))
	rules := file(t, "prefix: "+tr.prefix+"\nrules: [{task: work, on: [id]}]")
	for _, c := range []struct {
		rights string
		args   []string
		says   string
	}{
		{"-time", []string{"blocked"}, ""},
		{"-time", []string{"controls"}, ""},
		{"-time", []string{"list"}, ""},
		{"-scan", []string{"blocked"}, ""},
		{"-scan", []string{"list"}, ""},
		{"-scan", []string{"pause", "nobody", "--rules", rules}, ""},
		{"-@scripting", []string{"skip", "work|7", "default/first"}, ""},
		{"-hdel", []string{"break", "closed", "--yes"}, "0 of 0 broken, and the closed gate not ended: "},
	} {
		redistest.Must(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", c.rights).Err())
		r := b.run(t, tr.flags(append(c.args, "--username", "limited", "--password", "secret")...)...)
		r.wantErrorLine(t, exitRedis, c.says)
		if !strings.Contains(r.stderr, "NOPERM") && !strings.Contains(r.stderr, "the user has no right to it") {
			t.Errorf("%q without %s: %s", c.args, c.rights, r.stderr)
		}
	}
	b.run(t, tr.flags("show", "closed")...).want(t, exitOK, "nobody starts for")
}

// testFullDisk: what cannot be written is one line, and neither a success nor wrong use.
func testFullDisk(t *testing.T, b binary) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full")
	}
	t.Cleanup(func() { _ = full.Close() })
	s := redistest.Real(t)
	tr := start(t, s, wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	tr.enqueue("second", "work", `{"id": 7}`)
	tr.line(1, "work", "7")
	b.run(t, tr.flags("pause", "other", "--force")...).want(t, exitOK)
	rules := file(t, "rules: [{task: work, on: [id]}]\nunique: [{task: work, on: [id]}]")
	key := []string{"key", rules, "--type", "work", "--payload", `{"id": 7}`}
	for _, args := range [][]string{
		{"schema"}, {"check", rules}, {"check", file(t, "unique: [{task: work, on: [id]}]")}, key, append(key, "--json"),
		tr.flags("list"), tr.flags("list", "--json"), tr.flags("show", "work|7"), tr.flags("break", "work|7", "--yes"),
		tr.flags("controls"), tr.flags("controls", "--json"),
	} {
		cmd := b.command(t, nil, args...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		_ = cmd.Run() // the exit code says it
		if exit := cmd.ProcessState.ExitCode(); exit != exitNo || !strings.HasSuffix(stderr.String(), "no space left on device\n") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%q: exit code %d, %s", args, exit, stderr.String())
		}
	}
	if err := tr.context("first").Err(); err != nil {
		t.Errorf("a lock that could not be shown was broken: %v", err)
	}
}
