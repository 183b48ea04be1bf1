package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
)

// A pause by the command keeps tasks from beginning, is shown by every command, and ends.
func testPause(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait, automutex.Rule{Task: "report", On: []string{"id"}, Busy: automutex.Park})
		tr.enqueue("first", "work", `{"id": 7}`)
		tr.holds("first")
		b.run(t, tr.flags("pause", "work", "--why", "its data\nis repaired")...).want(t, exitOK, "work is paused until somebody resumes it; every process with the prefix "+tr.prefix+" obeys")
		b.run(t, tr.flags("pause", "report|7", "--for", "1h")...).want(t, exitOK, "report|7 is paused for 1h, until ")
		b.run(t, tr.flags("controls")...).want(t, exitOK, "TARGET", "work", "paused until somebody resumes it", "report|7", "paused for ", "@", "its data", " ago")
		b.run(t, tr.flags("controls", "--json")...).want(t, exitOK, `"target":"work"`, `"paused":true`, `"why":"its data\nis repaired"`, `"paused_until":"`)
		b.run(t, tr.flags("list")...).want(t, exitOK, "0, paused by ", "@", "(its data is repaired)")
		b.run(t, tr.flags("show", "work|7")...).want(t, exitOK, "work: paused until somebody resumes it; ordered by ", "its data is repaired", "first")
		b.run(t, tr.flags("show", "work|nobody")...).want(t, exitOK, "held by 0", "work: paused until somebody resumes it")
		b.run(t, tr.flags("doctor")...).want(t, exitOK, "note", "paused", "work is paused until somebody resumes it")

		if r := b.run(t, tr.flags("resume", "work|7")...); r.exit != exitNo || !strings.Contains(r.stderr, "work|7 is not paused; its scope work is") {
			t.Errorf("resume of a key whose scope is paused: %d, %q", r.exit, r.stderr)
		}
		b.run(t, tr.flags("resume", "work")...).want(t, exitOK, "work is resumed")
		b.run(t, tr.flags("resume", "report|7")...).want(t, exitOK, "report|7 is resumed")
		b.run(t, tr.flags("resume", "work")...).want(t, exitNo)
		if r := b.run(t, tr.flags("controls")...); r.exit != exitOK || !strings.Contains(r.stderr, "no controls") {
			t.Errorf("%d, %q", r.exit, r.stderr)
		}
	})
}

func testLimit(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	b.run(t, tr.flags("limit", "work|7", "2", "--why", "a larger plan")...).want(t, exitOK, "work|7 is limited to 2")
	b.run(t, tr.flags("controls")...).want(t, exitOK, "limit 2", "a larger plan")
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.enqueue("second", "work", `{"id": 7}`)
	tr.holds("first")
	tr.holds("second")
	b.run(t, tr.flags("show", "work|7")...).want(t, exitOK, "work|7: limit 2; ordered by ", "first", "second")
	b.run(t, tr.flags("limit", "work|7", "--clear")...).want(t, exitOK, "work|7 has the limit of its program (prefix "+tr.prefix+")")
	b.run(t, tr.flags("limit", "work|7", "--clear")...).wantError(t, exitNo, "work|7 has no limit")
}

// testTargets: an order by the command reaches the type that was typed, and no other, though the one looks as a key writes
// the other.
func testTargets(t *testing.T, b binary) {
	types := []string{"a%20b", "a b", "a%7Cb", "a|b", "100%"}
	rules := make([]automutex.Rule, len(types))
	for i, taskType := range types {
		rules[i] = automutex.Rule{Name: fmt.Sprint(i), Task: taskType, On: []string{"id"}}
	}
	s := redistest.Real(t)
	tr := start(t, s, rules...)
	say(t, s, tr.prefix, "a:1", false, rules...)
	for _, typed := range types {
		b.run(t, tr.flags("pause", typed)...).want(t, exitOK, typed+" (", ") is paused")
		list, err := tr.others.Controls().List(t.Context())
		redistest.Must(t, err)
		for _, taskType := range types {
			if _, _, pause := inner.ControlsFor(list, keys.Key(tr.prefix, taskType, "1")); (pause != nil) != (taskType == typed) {
				t.Errorf("pause %s: %s is paused: %+v", typed, taskType, pause)
			}
		}
		b.run(t, tr.flags("resume", typed)...).want(t, exitOK, typed+" is resumed")
	}
}

// testPauseAndLimit: a pause and a limit of one target are shown with who ordered each, and why.
func testPauseAndLimit(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	as := func(name string, args ...string) {
		t.Helper()
		b.runWith(t, "", []string{"SUDO_USER=" + name}, tr.flags(args...)...).want(t, exitOK)
	}
	as("ann", "pause", "work", "--why", "repair")
	as("bob", "limit", "work", "2", "--why", "a larger plan")
	if r := b.run(t, tr.flags("controls")...).want(t, exitOK); !strings.Contains(squeeze(r.stdout), "work paused until somebody resumes it ann@") || !strings.Contains(squeeze(r.stdout), "work limit 2 bob@") {
		t.Errorf("no line for each order:\n%s", r.stdout)
	}
	all := lines[inspect.Control](t, b.run(t, tr.flags("controls", "--json")...).want(t, exitOK).stdout)
	if len(all) != 2 || !all[0].Paused || all[0].Limit != 0 || all[0].Why != "repair" || all[1].Paused || all[1].Limit != 2 || all[1].Why != "a larger plan" {
		t.Errorf("--json: %+v", all)
	}
	b.run(t, tr.flags("show", "work|7")...).want(t, exitOK, "work: paused until somebody resumes it; ordered by ann@", "work: limit 2; ordered by bob@", ": repair\n", ": a larger plan\n")
	b.run(t, tr.flags("doctor")...).want(t, exitOK, "work is paused until somebody resumes it, ordered by ann@", "(repair); limited to 2, ordered by bob@")
}

// testControlsUnreadable: what is no hash of controls is told with the key and what to do.
func testControlsUnreadable(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	key := tr.prefix + ":{control}"
	redistest.Must(t, s.Client(t).Set(t.Context(), key, "x", time.Hour).Err())
	for _, args := range [][]string{{"controls"}, {"pause", "work"}, {"resume", "work"}, {"limit", "work", "2"}, {"limit", "work", "--clear"}} {
		r := b.run(t, tr.flags(args...)...)
		r.wantError(t, exitRedis, "something else than controls is stored under \""+key+"\"")
		r.wantError(t, exitRedis, "remove it with DEL")
	}
	b.run(t, tr.flags("doctor")...).want(t, exitNo, "bad", "paused", "cannot be read", "something else than controls is stored under", "remove it with DEL")
	if r := b.run(t, tr.flags("list")...); r.exit != exitOK {
		t.Errorf("list: %d, %q", r.exit, r.stderr)
	}
	redistest.Must(t, s.Client(t).Del(t.Context(), key).Err())
	redistest.Must(t, s.Client(t).HSet(t.Context(), key, "work", "garbage").Err())
	if r := b.run(t, tr.flags("controls")...); r.exit != exitOK || !strings.Contains(r.stderr, "the entry of work is not in force: it is no entry of automutex; resume removes it") {
		t.Errorf("%d, %q", r.exit, r.stderr)
	}
	b.run(t, tr.flags("resume", "work")...).want(t, exitOK, "removed")
	// A time that JSON reads and does not write.
	redistest.Must(t, s.Client(t).HSet(t.Context(), key, "work", `{"v":1,"pause":{"by":"x","since":"2026-01-01T00:00:00Z","until":"9999-12-31T23:59:59-14:00"}}`).Err())
	if r := b.run(t, tr.flags("controls", "--json")...); r.exit != exitOK || !strings.Contains(r.stderr, "the entry of work is not in force") {
		t.Errorf("%d, %q", r.exit, r.stderr)
	}
	b.run(t, tr.flags("limit", "work", "2")...).want(t, exitOK, "work is limited to 2")
}

func testControlMistakes(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"pause"}, "TARGET is missing"},
		{[]string{"pause", "work", "--for", "-5m"}, "must be positive"},
		{[]string{"pause", "work", "--for", "1ns"}, "at least 100ms"},
		{[]string{"limit", "work", "-1"}, "limit: N is -1: want a whole number, at least 1"},
		{[]string{"pause", "|7"}, "a target is a scope"},
		{[]string{"pause", tr.prefix + ":{work"}, "a target is a scope"},
		{[]string{"limit", "work"}, "is missing"},
		{[]string{"limit", "work", "many"}, "whole number"},
		{[]string{"limit", "work", "0"}, "limit of 0"},
		{[]string{"limit", "work", "3", "--clear"}, "unexpected argument"},
		{[]string{"resume"}, "TARGET is missing"},
	} {
		if r := b.run(t, tr.flags(test.args...)...); r.exit != exitUsage || !strings.Contains(r.stderr, test.says) {
			t.Errorf("%v: %d, %q; want it to say %q", test.args, r.exit, r.stderr, test.says)
		}
	}
	// With the rules, a scope that none of them has is said.
	file := filepath.Join(t.TempDir(), "automutex.yaml")
	redistest.Must(t, os.WriteFile(file, []byte("prefix: "+tr.prefix+"\nrules:\n  - task: work\n    on: [id]\n"), 0o600))
	b.run(t, tr.flags("pause", "elsewhere", "--rules", file)...).wantError(t, exitNo, "No rule has the scope of elsewhere; nor is there such a lock now; --force")
	b.run(t, tr.flags("pause", "wirk|1", "--rules", file)...).wantError(t, exitNo, "did you mean work|1?")
	b.run(t, tr.flags("pause", "elsewhere", "--force", "--rules", file)...).want(t, exitOK, "elsewhere is paused")
	if r := b.run(t, tr.flags("pause", "work|1", "--rules", file)...); r.exit != exitOK || strings.Contains(r.stderr, "no rule") {
		t.Errorf("%d, %q", r.exit, r.stderr)
	}
	for _, args := range [][]string{{"pause", "work"}, {"controls"}} {
		b.run(t, tr.flags(append(args, "--rules", file+".old")...)...).wantError(t, exitNo, "no such file")
	}

	// What a newer version wrote is told, and removed by resume.
	redistest.Must(t, s.Client(t).HSet(t.Context(), tr.prefix+":{control}", "odd", `{"v":9}`).Err())
	if r := b.run(t, tr.flags("controls")...); r.exit != exitOK || !strings.Contains(r.stderr, "the entry of odd is not in force: it was written by a newer version") {
		t.Errorf("%d, %q", r.exit, r.stderr)
	}
	b.run(t, tr.flags("resume", "odd")...).want(t, exitOK, "removed: the entry of odd, which was not in force")
	b.run(t, tr.flags("resume", "odd")...).wantError(t, exitNo, "odd is not paused")
	b.run(t, tr.flags("doctor")...).want(t, exitOK)
	redistest.Must(t, s.Client(t).HSet(t.Context(), tr.prefix+":{control}", "a{b", "junk").Err())
	b.run(t, tr.flags("resume", "a{b")...).want(t, exitOK, "removed: the entry of a{b, which was not in force")
}

// With the rules, the commands take their prefix, and a target that no task has is said.
func testControlRules(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	write := func(more string) string {
		file := filepath.Join(t.TempDir(), "automutex.yaml")
		text := "prefix: " + tr.prefix + "\n" + more + "rules:\n  - task: \"mail:\"\n    on: [id]\n  - task: report\n    on: [tenant, kind]\n"
		redistest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	plain, hashed := write(""), write("hash_keys: a secret of some length\n")
	for _, test := range []struct{ target, file, note string }{
		{"mail:", plain, ""},
		{"mail:|7", plain, "mail: alone is none of them"},
		{"mail:send", plain, ""},
		{"report", plain, ""},
		{"report|a|b", plain, ""},
		{"report|a|b|c", plain, "it has 3 values, and the keys of rule report have 2"},
		{"report|a|b", hashed, "are hashed, so no task has the key report|a|b"},
		{"report|~" + strings.Repeat("0", 64), hashed, ""},
	} {
		args := append([]string{"pause", test.target, "--rules", test.file}, where(s)...)
		r := b.run(t, args...)
		if test.note != "" {
			r.wantError(t, exitNo, test.note)
			r = b.run(t, append(args, "--force")...)
		}
		r.want(t, exitOK, "with the prefix "+tr.prefix)
	}
	flags := where(s)
	b.run(t, append([]string{"controls", "--rules", plain}, flags...)...).want(t, exitOK, "mail:send")
	b.run(t, append([]string{"resume", "report", "--rules", plain}, flags...)...).want(t, exitOK, "report is resumed")
	b.run(t, append([]string{"limit", "report", "3", "--rules", plain}, flags...)...).want(t, exitOK, "report is limited to 3")
	b.run(t, append([]string{"limit", "report", "--clear", "--rules", plain}, flags...)...).want(t, exitOK, "report has the limit of its program")
}
