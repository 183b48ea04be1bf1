package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/doctor"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

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
