package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/doctor"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

const rules = `
defaults: {wait: 10s}
rules:
  - task: work
    on: [id]
  - {task: "report:", scope: report, on: [tenant.id], on_headers: [region], limit: 3, busy: {retry_in: 5s}}
  - {task: "report:daily", scope: report, on: [tenant.id], limit: 3}
  - {task: transfer, name: to, scope: account, on: [to]}
  - {task: transfer, name: from, scope: account, on: [from]}
`

func testCheck(t *testing.T, b binary) {
	r := b.run(t, "check", file(t, rules)).want(t, exitOK, "no mistakes; 5 rules, 0 unique rules", "note: ", "hides", "Wait: has no effect")
	for _, row := range []string{
		"work <type>|<id> 1 30s - park",
		"report: report|<tenant.id>|<header region> 3 30s 10s retry in 5s",
		"from transfer account|<from> 1 30s - park",
	} {
		if !strings.Contains(squeeze(r.stdout), row) {
			t.Errorf("no row %q in\n%s", row, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "ALSO") {
		t.Errorf("a column for nothing:\n%s", r.stdout)
	}
	r = b.run(t, "check", file(t, `
rules:
  - {task: mail, on: [to], limit: {field: tenant.max, default: 3, most: 50}, rate: {starts: 10, per: 1s}}
  - {task: bill, limit: {field: max}, rate: {starts: 100, per: 1m, burst: 5}, cooldown: 10m, max_hold: 1h}
  - {task: work}
`)).want(t, exitOK)
	for _, row := range []string{
		"RULE TASK KEY LIMIT TTL WAIT BUSY ALSO\n",
		" mail <type>|<to> <tenant.max> (default 3, most 50) 30s - park rate 10 per 1s, burst 1\n",
		" bill <type> <max> 30s - park rate 100 per 1m, burst 5; cooldown 10m; held for at most 1h\n",
		" work <type> 1 30s - park -\n",
	} {
		if !strings.Contains(squeeze(r.stdout), row) {
			t.Errorf("no row %q in\n%s", row, r.stdout)
		}
	}
	b.run(t, "check", file(t, "rules: []")).want(t, exitOK, "no mistakes; 0 rules")

	r = b.run(t, "check", file(t, `
rules: [{task: reindex, on: [id]}, {task: import, busy: skip}]
unique:
  - {task: reindex, on: [id], until: start, duplicate: join}
  - {task: digest, on: [user], until: start, queue: low}
  - {task: mail, until: {for: 10m}, duplicate: {postpone: 5s}}
  - {task: import, until: start}
`)).want(t, exitOK, "2 rules, 4 unique rules", `note: unique rule "import": a worker skips the task that other producers rely on`, `note: unique rule "digest": until start, replace and postpone need a rule of the workers`,
		`note: unique rule "mail": until start, replace and postpone need a rule of the workers`)
	if !strings.Contains(squeeze(r.stdout), "mail default <type> for 10m postpone by 5s") || strings.Count(r.stdout, "note: ") != 3 {
		t.Errorf("got\n%s", r.stdout)
	}
}

// squeeze makes one space of many.
func squeeze(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

func testCheckMistakes(t *testing.T, b binary) {
	name := file(t, "prefx: a\nrules:\n  - {task: a, ttl: 1ms, limt: 3}\n  - {task: b, busy: skp}\n")
	r := b.run(t, "check", name).want(t, exitNo)
	want := []string{"1:1: unknown key", "3:25: unknown key", "4:21: busy:"}
	got := strings.Split(strings.TrimSpace(r.stderr), "\n")
	if len(got) != len(want) || r.stdout != "" {
		t.Fatalf("got %q", r.stderr)
	}
	for i := range got {
		if !strings.HasPrefix(got[i], name+":"+want[i]) {
			t.Errorf("got %s, want %s", got[i], want[i])
		}
	}

	binary := filepath.Join(t.TempDir(), "binary\x1b[31m")
	for content, want := range map[string]string{
		"":                              ":1:1: the file is empty",
		"\x00\x01\xff":                  ":1:1: the byte 0x00 is no text",
		"rules: [{task: '\x1b[31mred'}": ":1:17: the byte 0x1b is no text",
		"rules: [{task: \"\\e[31m\", \"\\e[31m\": 1}]": `unknown key "\x1b[31m"`,
	} {
		if err := os.WriteFile(binary, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r := b.run(t, "check", binary).want(t, exitNo)
		if !strings.Contains(r.stderr, want) || strings.Contains(r.stderr, "\x1b") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: got %q, want %q", content, r.stderr, want)
		}
	}
	b.run(t, "check", t.TempDir()).wantError(t, exitNo, "is a directory")
	b.run(t, "check", filepath.Join(t.TempDir(), "missing")).wantError(t, exitNo, "no such file")
	b.run(t, "check", "/dev/zero").wantError(t, exitNo, "more than 4 MiB")
}

func testKey(t *testing.T, b binary) {
	name := file(t, rules)
	b.run(t, "key", name, "--type", "work", "--payload", `{"id": 1.0}`).want(t, exitOK, "work|1 ", "automutex:{work|1}")
	// In the order in which the locks are taken, which is that of the keys.
	r := b.run(t, "key", name, "-t", "transfer", "--payload", `{"from": 2, "to": "b c"}`).want(t, exitOK)
	if got := squeeze(r.stdout); got != "RULE KEY REDIS\nfrom account|2 automutex:{account|2}\nto account|b%20c automutex:{account|b%20c}\n" {
		t.Errorf("got\n%s", r.stdout)
	}
	// The longest Task alone, by its name; a header that its rule does not name; JSON.
	r = b.run(t, "key", name, "--type", "report:daily:x", "--payload", `{"tenant": {"id": "é"}}`, "--header", "region=eu", "--json").want(t, exitOK)
	if got := lines[match](t, r.stdout); len(got) != 1 || got[0] != (match{Rule: "report:daily", Key: "report|é", Name: "automutex:{report|é}"}) {
		t.Errorf("got %+v", got)
	}
	// With a secret: of the file, else of the environment.
	const secret, payload = "0123456789abcdef", `{"id": 1}`
	hashed := keys.HashedKey(secret, "automutex", "work", "1")
	with := file(t, "hash_keys: "+secret+"\n"+rules)
	b.run(t, "key", with, "--type", "work", "--payload", payload).want(t, exitOK, hashed)
	b.runWith(t, "", []string{"AUTOMUTEX_HASH_KEYS=" + secret}, "key", name, "--type", "work", "--payload", payload).want(t, exitOK, hashed)
	b.runWith(t, "", []string{"AUTOMUTEX_HASH_KEYS=another one that counts not"}, "key", with, "--type", "work", "--payload", payload).want(t, exitOK, hashed)
	b.runWith(t, "", []string{"AUTOMUTEX_HASH_KEYS=short"}, "key", name, "--type", "work", "--payload", payload).wantError(t, exitNo, "has 5 bytes")
	long := strings.Repeat("x", 100_000)
	b.run(t, "key", name, "--type", "work", "--payload", `{"id": "`+long+`"}`).want(t, exitOK, "automutex:{work|~")

	optional := file(t, "rules: [{task: work, scope: one, on: [id], optional: true}, {task: work, scope: all}]")
	b.run(t, "key", optional, "--type", "work", "--payload", `{"id": null}`).want(t, exitOK, "automutex:{all}")
	optional = file(t, "rules: [{task: work, on: [id], optional: true}]")
	b.run(t, "key", optional, "--type", "work", "--payload", `{}`).wantError(t, exitNo, "lacks a field")

	b.run(t, "key", name, "--type", "play").wantError(t, exitNo, "no rule matches")
	b.run(t, "key", name, "--type", "work").wantError(t, exitNo, "payload")
	b.run(t, "key", name, "--type", "work", "--payload", `{"ID": 1}`).wantError(t, exitNo, `field "id" is missing`)
	b.run(t, "key", name, "--type", "work", "--payload", "\xff\xfe").wantError(t, exitNo, "payload is not JSON")
	b.run(t, "key", name, "--type", "report:x", "--payload", `{"tenant": {"id": 1}}`).wantError(t, exitNo, `header "region" is missing`)
	b.run(t, "key", name, "--type", " ", "--payload", `{}`).wantError(t, exitUsage, "--type")
	b.run(t, "key", name, "--payload", `{}`).wantError(t, exitUsage, "--type")
	b.run(t, "key", name, "--type", long).wantError(t, exitNo, "no rule matches")
	b.run(t, "key", name, "--type", "work", "--header", "region").wantError(t, exitUsage, "header")
	if r := b.run(t, "key", file(t, "rules: 1"), "--type", "work"); r.exit != exitNo || !strings.Contains(r.stderr, ":1:8: ") {
		t.Errorf("%d, %s", r.exit, r.stderr)
	}
}

// testKeyUnique: what a producer does with a task is shown with what a worker does.
func testKeyUnique(t *testing.T, b binary) {
	name := file(t, `
prefix: shop
rules:
  - {task: report, on: [tenant]}
unique:
  - {task: report, on: [tenant], queue: low}
  - {task: mail, on: [to], until: start}
`)
	r := b.run(t, "key", name, "--type", "report", "--payload", `{"tenant": 7}`).want(t, exitOK)
	if got, want := squeeze(r.stdout), "RULE KEY REDIS\nreport report|7 shop:{report|7}\n\n"+
		"UNIQUE KEY QUEUE UNTIL REDIS\nreport report|7 low done shop:{report|7}\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.run(t, "key", name, "--type", "mail", "--payload", `{"to": "a"}`).want(t, exitOK, "no rule guards it", "start", "shop:{mail|a}:claim")
	r = b.run(t, "key", name, "--type", "mail", "--payload", `{"to": "a"}`, "--json").want(t, exitOK)
	if got := lines[match](t, r.stdout); len(got) != 1 || got[0] != (match{"", "mail", "mail|a", "default", "start", "shop:{mail|a}:claim"}) {
		t.Errorf("got %+v", got)
	}
	b.run(t, "key", name, "--type", "mail", "--payload", `{}`).wantError(t, exitNo, `field "to" is missing`)
	b.run(t, "key", name, "--type", "other").wantError(t, exitNo, "no rule matches")
}

// findings runs doctor and gives what it found.
func findings(t *testing.T, b binary, exit int, args ...string) []doctor.Finding {
	t.Helper()
	return lines[doctor.Finding](t, b.run(t, append([]string{"doctor", "--json"}, args...)...).want(t, exit).stdout)
}

// has tells whether there is such a finding.
func has(t *testing.T, all []doctor.Finding, level, what, text string) {
	t.Helper()
	if !slices.ContainsFunc(all, func(f doctor.Finding) bool {
		return f.Level == level && f.What == what && strings.Contains(f.Text, text)
	}) {
		t.Errorf("no finding %s %s %q in %+v", level, what, text, all)
	}
}

func testDoctor(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	all := findings(t, b, exitOK, where(s)...)
	has(t, all, doctor.Fine, "Redis", "version ")
	has(t, all, doctor.Fine, "eviction", "noeviction")
	has(t, all, doctor.Fine, "clock", "from this machine's")
	has(t, all, doctor.Fine, "rights", "automutex:*")
	has(t, all, doctor.Note, "rules", "FILE")
	if len(all) != 5 {
		t.Errorf("%d findings: %+v", len(all), all)
	}
	b.run(t, append([]string{"doctor"}, where(s)...)...).want(t, exitOK, "ok    eviction  maxmemory-policy is noeviction\n")
	if keys := s.Client(t).Keys(t.Context(), "*").Val(); len(keys) > 0 { // a server of this test's own
		t.Errorf("left behind: %q", keys)
	}
	rdb := s.Client(t)
	for _, setting := range [][2]string{{"maxmemory", "100mb"}, {"maxmemory-policy", "volatile-ttl"}} {
		redistest.Must(t, rdb.ConfigSet(t.Context(), setting[0], setting[1]).Err())
	}
	r := b.run(t, append([]string{"doctor", "--json"}, where(s)...)...)
	r.want(t, exitNo)
	if !strings.HasPrefix(r.stderr, "automutex: 1 of ") {
		t.Errorf("got %q", r.stderr)
	}
	has(t, lines[doctor.Finding](t, r.stdout), doctor.Bad, "eviction", "volatile-ttl")
	b.run(t, "doctor", "--tasks", "0").wantError(t, exitUsage, "--tasks")
	b.run(t, "doctor", "--uri", s.Addr(), file(t, "rules: [{task: a, limit: -1}]")).want(t, exitNo)
}

func testDoctorRights(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	as := func(rules string) []string {
		t.Helper()
		redistest.Must(t, rdb.Do(t.Context(), append([]any{"ACL", "SETUSER", "limited", "reset", "on", ">secret"}, toAny(strings.Fields(rules))...)...).Err())
		return append(where(s), "--username", "limited", "--password", "secret")
	}
	all := findings(t, b, exitNo, as("~automutex:* &automutex:* +@all -zrank -evalsha -info -config")...)
	has(t, all, doctor.Bad, "rights", "not permitted: evalsha, zrank (NOPERM this user has no permissions to run the 'evalsha' command)")
	has(t, all, doctor.Note, "Redis", "could not be looked at: NOPERM this user has no permissions to run the 'info' command")

	all = findings(t, b, exitNo, as("~other:* &automutex:* +@all")...)
	has(t, all, doctor.Bad, "rights", "access one of the keys")
	has(t, findings(t, b, exitOK, append(as("~other:* &other:* +@all"), "--prefix", "other")...), doctor.Fine, "rights", "other:*")

	all = findings(t, b, exitNo, as("~automutex:* resetchannels +@all")...)
	has(t, all, doctor.Bad, "rights", "not permitted: publish, subscribe (NOPERM this user has no permissions to access one of the channels")

	// The documented rights suffice for the commands, too.
	page, err := os.ReadFile("../../docs/redis.md")
	redistest.Must(t, err)
	_, line, _ := strings.Cut(string(page), "ACL SETUSER automutex on >password ")
	line, _, _ = strings.Cut(line, "\n")
	documented := as(line + " +info +type")
	all = findings(t, b, exitOK, documented...)
	has(t, all, doctor.Fine, "rights", "each of")
	locker := lock.New(rdb, lock.Options{})
	t.Cleanup(func() { _ = locker.Close() })
	held := locker.Mutex("held", lock.Note("default/task"))
	if _, err := held.TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"list", "--json"}, {"sweep"}, {"show", held.Key()}, {"break", held.Key(), "--yes"},
	} {
		b.run(t, append(command, documented...)...).want(t, exitOK)
	}
	if is, err := held.Locked(t.Context()); err != nil || is {
		t.Errorf("after break it is held: %v, %v", is, err)
	}
	// asynq's keys are another matter.
	all = findings(t, b, exitOK, append(as("~automutex:* &automutex:* +@all"), file(t, rules))...)
	has(t, all, doctor.Note, "tasks", "could not be looked at: NOPERM")
}

func toAny(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}

// Every command that a script or the engine sends is tried.
func TestDoctor_triesWhatTheScriptsCall(t *testing.T) {
	t.Parallel()
	tried := []string{"multi", "exec"} // of go-redis, not of ours
	tried = append(tried, doctor.Commands()...)
	for _, command := range scriptCommands(t) {
		if !slices.Contains(tried, command) {
			t.Errorf("%s is called by a script, and not tried", command)
		}
	}
}

func testDoctorReplica(t *testing.T, b binary) {
	host, port, _ := strings.Cut(redistest.StartReal(t).Addr(), ":")
	has(t, findings(t, b, exitNo, where(redistest.StartReal(t, "--replicaof", host+" "+port))...), doctor.Bad, "Redis", "is a replica")
}

// testDoctorRules holds a file against tasks: a task that no rule is for as it is spelt, one that no key can be made of, and
// one that may spend its Timeout in line.
func testDoctorRules(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	client := asynq.NewClientFromRedisClient(s.Client(t))
	enqueue := func(n int, taskType, payload string, options ...asynq.Option) {
		t.Helper()
		for range n {
			if _, err := client.Enqueue(asynq.NewTask(taskType, []byte(payload)), options...); err != nil {
				t.Fatal(err)
			}
		}
	}
	rules := append(where(s), file(t, `
rules:
  - {task: "cron:nigtly"}
  - {task: "mial:"}
  - {task: other-program}
  - {task: report, busy: retry, wait: 1m}
  - {task: parked, wait: 1m}
  - {task: user, on: [user.id]}
`))
	has(t, findings(t, b, exitOK, rules...), doctor.Note, "Inspector", "asynq has no queue in this database")
	enqueue(150, "report", "", asynq.Timeout(20*time.Second)) // more than a page
	enqueue(1, "report", "", asynq.Timeout(time.Hour))
	enqueue(1, "parked", "", asynq.Timeout(20*time.Second))
	enqueue(1, "user", `{"user": {"id": 1}}`)
	enqueue(1, "without", "")
	all := findings(t, b, exitOK, rules...)
	has(t, all, doctor.Note, "Wait", `rule "report": its Wait of 1m is no shorter than the Timeout of 150 tasks`)
	if n := len(all); n != 5 {
		t.Errorf("%d findings: %+v", n, all)
	}
	enqueue(1, "cron:nightly", "")
	enqueue(1, "mail:welcome", "")
	enqueue(3, "user", `{"user": {"Id": 1}}`)
	all = findings(t, b, exitNo, rules...)
	has(t, all, doctor.Bad, "tasks", `nothing serves "cron:nigtly", which a rule is for, and no rule is for "cron:nightly": did you mean that?`)
	has(t, all, doctor.Bad, "tasks", `nothing serves "mial:", which a rule is for, and no rule is for "mail:"`)
	has(t, all, doctor.Bad, "keys", `no key for task "user": field "user.id" is missing: "user" has no "id", but "Id": letter case counts (3 tasks)`)

	// What has ended already may have had another form; it does no harm any more.
	inspector := asynq.NewInspectorFromRedisClient(s.Client(t))
	_, err := inspector.ArchiveAllPendingTasks("default")
	redistest.Must(t, err)
	redistest.Must(t, inspector.PauseQueue("default"))
	all = findings(t, b, exitOK, append(where(s), file(t, `rules: [{task: user, on: [user.id]}]`))...)
	has(t, all, doctor.Note, "paused", "asynq's queue default is")
}

func testDoctorCluster(t *testing.T, b binary) {
	s := redistest.Cluster(t)
	all := findings(t, b, exitOK, where(s)...)
	for _, addr := range s.Addrs() {
		has(t, all, doctor.Fine, "Redis of "+addr, "version ")
		has(t, all, doctor.Fine, "eviction of "+addr, "noeviction")
	}
	has(t, all, doctor.Fine, "rights", "each of")
}

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

// scriptCommands are the commands that the engine's scripts call.
func scriptCommands(t *testing.T) (commands []string) {
	t.Helper()
	files, err := filepath.Glob("../../internal/*/lua/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`call\('(\w+)'`)
	for _, f := range files {
		source, err := os.ReadFile(f)
		redistest.Must(t, err)
		for _, m := range call.FindAllStringSubmatch(string(source), -1) {
			commands = append(commands, strings.ToLower(m[1]))
		}
	}
	slices.Sort(commands)
	return slices.Compact(commands)
}

func testCompletion(t *testing.T, b binary) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := b.run(t, "completion", shell).want(t, exitOK, "automutex")
		if shell != "bash" {
			continue
		}
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(r.stdout)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("bash does not take it: %v\n%s", err, out)
		}
	}
}

func testHelp(t *testing.T, b binary) {
	b.run(t, "--help").want(t, exitOK, "Exit codes", "AUTOMUTEX_URI", "doctor")
	b.run(t, "--version").want(t, exitOK, "automutex ")
	b.run(t, "schema").want(t, exitOK, `"$schema"`)
	for _, command := range []string{"check", "schema", "key", "list", "show", "break", "blocked", "skip", "sweep", "doctor"} {
		b.run(t, command, "--help").want(t, exitOK, "Usage:\n  automutex "+command)
		b.run(t, "help", command).want(t, exitOK, "Usage:\n  automutex "+command)
	}
}

// testReadme compares what docs/operations.md shows with the program: its file, its
// commands and their flags, the columns, and the slips that it makes.
func testReadme(t *testing.T, b binary) {
	data, err := os.ReadFile("../../docs/operations.md")
	redistest.Must(t, err)
	readme := string(data)
	_, rules, _ := strings.Cut(readme, "```yaml\n")
	rules, _, _ = strings.Cut(rules, "```")
	dir := t.TempDir()
	name := dir + "/automutex.yaml"
	inReadme := func(r result, output string) {
		t.Helper()
		for line := range strings.Lines(strings.ReplaceAll(output, dir+"/", "")) {
			if !strings.Contains(readme, "    "+line) && line != "\n" {
				t.Errorf("%q: docs/operations.md does not show\n%s", r.args, line)
			}
		}
	}
	redistest.Must(t, os.WriteFile(name, []byte(rules), 0o600))
	r := b.run(t, "check", name).want(t, exitOK)
	inReadme(r, r.stdout)
	r = b.run(t, "key", name, "--type", "github:push", "--payload", `{"repository": {"full_name": "octo/hello"}}`).want(t, exitOK)
	inReadme(r, r.stdout)
	slips := strings.NewReplacer("limit: 3", "limt: 3", "retry_in: 30s", "retry_in: 30").Replace(rules)
	redistest.Must(t, os.WriteFile(name, []byte(slips), 0o600))
	r = b.run(t, "check", name).want(t, exitNo)
	inReadme(r, r.stderr)

	commands := regexp.MustCompile("(?m)(?:^    \\$ |`)automutex ([a-z][^`\n]*)").FindAllStringSubmatch(readme, -1)
	if len(commands) < 10 {
		t.Errorf("found %d commands in docs/operations.md", len(commands))
	}
	for _, m := range commands {
		args := strings.ReplaceAll(m[1], "'", "") // no shell here: what is quoted falls apart, but for its flags
		b.run(t, append(strings.Fields(args), "--help")...).want(t, exitOK, "Usage:\n  automutex "+strings.Fields(args)[0])
	}
}

func testUsage(t *testing.T, b binary) {
	for args, want := range map[string]string{
		"lsit":                              `there is no command "lsit"; did you mean list?`,
		"list --nosuch":                     "there is no flag --nosuch",
		"list extra":                        `unexpected argument "extra"`,
		"check":                             "FILE is missing",
		"check a b":                         `unexpected argument "b"`,
		"key":                               "FILE is missing",
		"show":                              "KEY is missing",
		"break":                             "KEY is missing",
		"sweep now":                         "unexpected argument",
		"doctor a b":                        "unexpected argument",
		"list --db x":                       "--db",
		"list -w=1ms":                       "at least 100ms",
		"list --timeout 0s":                 "--timeout",
		"list --match [":                    "--match",
		"limit a --clear=maybe":             "--clear",
		"list --jsn":                        "list: there is no flag --jsn; did you mean --json?",
		"list --timeout forever":            "--timeout",
		"list --prefix a{b":                 "--prefix",
		"list --cluster --db 1":             "--db",
		"list --insecure":                   "--insecure",
		"list --uri localhost":              "--uri",
		"list --uri http://x":               "http:// is not known",
		"list --uri redis://":               "names no host",
		"list --uri redis://x/y":            "a number",
		"list --uri redis-sentinel://x:1":   "names no master",
		"list --uri redis-socket://":        "names no socket",
		"list --uri redis-socket:///s?db=x": "is a number",
		"list --uri redis://u:secret@x:1x/": "not a valid URL",
		"list --uri secret@x":               "--uri",
	} {
		r := b.run(t, strings.Fields(args)...)
		r.wantError(t, exitUsage, want)
		if strings.Contains(r.stderr, "secret") {
			t.Errorf("%s: tells the password: %s", args, r.stderr)
		}
	}
	if r := b.run(t); r.exit != exitUsage || !strings.Contains(r.stdout, "Available Commands") {
		t.Errorf("without arguments: %d\n%s", r.exit, r.stdout)
	}
}

// testArguments: whatever the argument, there is one line and nothing is done.
func testArguments(t *testing.T, b binary) {
	s := redistest.Real(t)
	huge := strings.Repeat("x", 120_000)
	for _, arg := range []string{"", "\xff\xfe\x01", "a\nb", "\x1b[2J", huge, "automutex:{x}:pool", "other:{x}", "{}"} {
		for _, command := range [][]string{{"show", arg}, {"break", arg, "--yes"}, {"check", arg}, {"list", arg}} {
			exit := exitUsage
			if arg != "" && command[0] == "check" || arg == huge && command[0] != "list" {
				exit = exitNo // no such file, no such lock
			}
			r := b.run(t, append(command, where(s)...)...)
			r.wantError(t, exit, "")
			if strings.ContainsAny(strings.TrimSuffix(r.stderr, "\n"), "\n\x1b") || !utf8.ValidString(r.stderr) {
				t.Errorf("%.50q: control characters in %.300q", command, r.stderr)
			}
		}
	}
	// A text that is no lock's is none.
	key := "automutex:{" + redistest.Name(t) + "}"
	redistest.Must(t, s.Client(t).Set(t.Context(), key, "text", time.Minute).Err())
	b.run(t, append([]string{"show", key}, where(s)...)...).wantError(t, exitRedis, "the key has none of this library's locks")
	b.run(t, append([]string{"break", key, "--yes"}, where(s)...)...).wantError(t, exitRedis, "the key has none of this library's locks")
}

// online are commands that need Redis.
var online = [][]string{{"list"}, {"show", "x"}, {"break", "x", "--yes"}, {"sweep"}, {"doctor"}}

func testNoRedis(t *testing.T, b binary) {
	for i, flags := range [][]string{{"--uri", "127.0.0.1:1"}, {"--uri", "redis://127.0.0.1:1"}, {"--cluster", "--cluster_addrs", "127.0.0.1:1"}, {"--uri", "redis-socket:///nowhere"}} {
		b.run(t, slices.Concat(online[i], flags)...).wantError(t, exitRedis, "does not answer")
	}
}

// testHangingRedis: one that accepts connections and never answers, from the beginning or from somewhere in the middle, is
// an error at the timeout. A run that hangs is ended by the test.
func testHangingRedis(t *testing.T, b binary) {
	proxy := redistest.NewProxy(t, redistest.Real(t).Addr())
	proxy.Blackhole(true)
	middle := redistest.NewProxy(t, redistest.Real(t).Addr())
	middle.Hold(func(command []string) bool {
		return command[0] != "HELLO" && command[0] != "CLIENT" && command[0] != "PING"
	}, 1<<30)
	for _, command := range online {
		for _, flags := range [][]string{{"--uri", proxy.Addr()}, {"--cluster", "--uri", proxy.Addr()}, {"--uri", middle.Addr()}} {
			t.Run(strings.Join(append(command[:1:1], flags...), " "), func(t *testing.T) {
				t.Parallel()
				r := b.run(t, append(command[:len(command):len(command)], append(flags, "--timeout", "1s")...)...)
				if command[0] == "doctor" {
					r.stdout = "" // what was found so far may be shown
				}
				r.wantError(t, exitRedis, "")
			})
		}
	}
}

func testWrongPassword(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	redistest.Must(t, s.Client(t).ConfigSet(t.Context(), "requirepass", "right").Err())
	for _, command := range online[:2] {
		for _, flags := range [][]string{nil, {"--password", "wrong"}} {
			b.run(t, slices.Concat(command, []string{"--uri", s.Addr()}, flags)...).wantError(t, exitRedis, "refuses user or password")
		}
	}
	b.run(t, "sweep", "--uri", s.Addr(), "-p", "right").want(t, exitOK)
	b.run(t, "sweep", "--uri", "redis://:right@"+s.Addr()).want(t, exitOK)
	b.run(t, "sweep", "--uri", "redis://default:right@"+s.Addr()+"/3").want(t, exitOK)
	b.runWith(t, "", []string{"AUTOMUTEX_PASSWORD=right"}, "sweep", "--uri", s.Addr()).want(t, exitOK)
	r := b.run(t, "sweep", "--uri", "redis://:hidden@"+s.Addr())
	r.wantError(t, exitRedis, "refuses")
	if strings.Contains(r.stderr, "hidden") {
		t.Errorf("tells the password: %s", r.stderr)
	}
}

// testConnection: databases apart, a Cluster by any of its nodes, a socket.
func testConnection(t *testing.T, b binary) {
	socket := t.TempDir() + "/redis.sock"
	s := redistest.StartReal(t, "--unixsocket", socket)
	rdb := s.Client(t)
	redistest.Must(t, rdb.Do(t.Context(), "SELECT", 3).Err())
	tr := start(t, redistest.Cluster(t), wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	for _, flags := range [][]string{
		{"--cluster", "--uri", tr.server.Addrs()[1]}, {"--cluster", "--cluster-addrs", strings.Join(tr.server.Addrs(), ",")},
	} {
		b.run(t, append([]string{"list", "--timeout", "20s", "--prefix", tr.prefix}, flags...)...).want(t, exitOK, "/first")
		// asynq's command takes its flags before the command as well.
		b.run(t, append(flags, "list", "--timeout", "20s", "--prefix", tr.prefix)...).want(t, exitOK, "/first")
	}
	// A node of a Cluster, taken for a single Redis.
	b.run(t, "doctor", "--uri", socketURL(socket)).want(t, exitOK)
	b.run(t, "sweep", "--uri", "redis-socket://"+socket+"?db=5").want(t, exitOK)
	b.run(t, "sweep", "--uri", s.Addr(), "--db", "15").want(t, exitOK)
	b.run(t, "sweep", "--uri", s.Addr(), "--db", "16").wantError(t, exitRedis, "does not have that database (ERR DB index is out of range); set --db")
	b.run(t, "sweep", "--uri", s.Addr(), "--tls", "--timeout", "2s").wantError(t, exitRedis, "")
}

func socketURL(path string) string { return "unix://" + path }

// testEnvironment: flags first, then our variables, then asynq's.
func testEnvironment(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	at := tr.server.Addr()
	for _, c := range []struct {
		env  []string
		args []string
		exit int
	}{
		{[]string{"URI=" + at}, nil, exitOK},
		{[]string{"URI=127.0.0.1:1", "AUTOMUTEX_URI=" + at}, nil, exitOK},
		{[]string{"AUTOMUTEX_URI=127.0.0.1:1"}, []string{"--uri", at}, exitOK},
		{[]string{"URI=127.0.0.1:1"}, nil, exitRedis},
		{[]string{"URI=" + at, "DB=1"}, nil, exitNo},
		{[]string{"URI=" + at, "DB=1", "AUTOMUTEX_DB=0"}, nil, exitOK},
		{[]string{"URI=" + at, "DB=customers"}, nil, exitUsage},
		{[]string{"URI=" + at, "DB=customers"}, []string{"--db", "0"}, exitOK},
		{[]string{"URI=" + at, "PREFIX=other", "USERNAME=me", "TIMEOUT=x"}, nil, exitOK}, // not asynq's
		{[]string{"AUTOMUTEX_URI=" + at, "AUTOMUTEX_PREFIX=" + tr.prefix, "AUTOMUTEX_TIMEOUT=x"}, nil, exitUsage},
	} {
		args := append([]string{"show", "work|7"}, c.args...)
		env := c.env
		if !slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "AUTOMUTEX_PREFIX") }) {
			env = append(slices.Clone(env), "AUTOMUTEX_PREFIX="+tr.prefix)
		}
		if r := b.runWith(t, "", env, args...); r.exit != c.exit {
			t.Errorf("%q %q: exit code %d, want %d; %s", c.env, c.args, r.exit, c.exit, r.stderr)
		}
	}
	// check needs no Redis, and does not mind.
	b.runWith(t, "", []string{"DB=customers"}, "check", file(t, rules)).want(t, exitOK)
}
