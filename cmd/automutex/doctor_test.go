package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
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

// hasNot tells whether nothing was found about what.
func hasNot(t *testing.T, all []doctor.Finding, what string) {
	t.Helper()
	if slices.ContainsFunc(all, func(f doctor.Finding) bool { return f.What == what }) {
		t.Errorf("a finding about %s in %+v", what, all)
	}
}

func testDoctor(t *testing.T, b binary) {
	s := redistest.StartReal(t, "--appendonly", "yes")
	all := findings(t, b, exitOK, where(s)...)
	has(t, all, doctor.Fine, "Redis", "version ")
	has(t, all, doctor.Fine, "eviction", "noeviction")
	has(t, all, doctor.Fine, "persistence", "append-only")
	has(t, all, doctor.Fine, "replicas", "none")
	has(t, all, doctor.Fine, "rights", "automutex:*")
	has(t, all, doctor.Fine, "Pub/Sub", "arrived")
	has(t, all, doctor.Note, "rules", "FILE")
	has(t, all, doctor.Fine, "order", "blocked")
	if len(all) != 10 {
		t.Errorf("%d findings: %+v", len(all), all)
	}
	b.run(t, append([]string{"doctor"}, where(s)...)...).want(t, exitOK, "ok    eviction     maxmemory-policy is noeviction\n")
	keys := s.Client(t).Keys(t.Context(), "*").Val() // a server of this test's own
	if keys = slices.DeleteFunc(keys, func(key string) bool { return key == "automutex:{control}:format" }); len(keys) > 0 {
		t.Errorf("left behind: %q", keys)
	}
}

func testDoctorSettings(t *testing.T, b binary) {
	s := redistest.StartReal(t, "--maxmemory-policy", "allkeys-lru", "--save", "60 1000")
	all := findings(t, b, exitOK, where(s)...)
	has(t, all, doctor.Note, "eviction", "were there a maxmemory")
	has(t, all, doctor.Note, "persistence", "snapshots only (save \"60 1000\"): a crash forgets the locks, pauses and limits of the last minutes")
	rdb := s.Client(t)
	for _, setting := range [][2]string{{"maxmemory", "100mb"}, {"maxmemory-policy", "volatile-ttl"}, {"save", ""}} {
		redistest.Must(t, rdb.ConfigSet(t.Context(), setting[0], setting[1]).Err())
	}
	r := b.run(t, append([]string{"doctor", "--json"}, where(s)...)...)
	r.want(t, exitNo)
	if !strings.HasPrefix(r.stderr, "automutex: 1 of ") {
		t.Errorf("got %q", r.stderr)
	}
	all = lines[doctor.Finding](t, r.stdout)
	has(t, all, doctor.Bad, "eviction", "volatile-ttl")
	has(t, all, doctor.Note, "persistence", "ends every pause and limit of an operator")
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
	has(t, all, doctor.Bad, "rights", "not permitted: evalsha (command), zrank (command);")
	has(t, all, doctor.Note, "Redis", "may not INFO")
	has(t, all, doctor.Fine, "Pub/Sub", "arrived")

	all = findings(t, b, exitNo, as("~other:* &automutex:* +@all")...)
	has(t, all, doctor.Bad, "rights", "zadd (key)")
	has(t, findings(t, b, exitOK, append(as("~other:* &other:* +@all"), "--prefix", "other")...), doctor.Fine, "rights", "other:*")

	all = findings(t, b, exitNo, as("~automutex:* resetchannels +@all")...)
	has(t, all, doctor.Bad, "rights", "publish (channel)")
	has(t, all, doctor.Bad, "Pub/Sub", "may not subscribe to automutex:*")
	all = findings(t, b, exitNo, as("~automutex:* &automutex:* +@all -publish")...)
	has(t, all, doctor.Bad, "Pub/Sub", "may not publish")

	all = findings(t, b, exitNo, as("~automutex:* &automutex:* +@all -del")...)
	has(t, all, doctor.Note, "rights", "left behind for a minute")

	// The documented rights suffice for the commands, too.
	page, err := os.ReadFile("../../docs/redis.md")
	redistest.Must(t, err)
	_, line, _ := strings.Cut(string(page), "ACL SETUSER automutex on >password ")
	line, _, _ = strings.Cut(line, "\n")
	documented := as(line + " +info +config|get")
	all = findings(t, b, exitOK, documented...)
	has(t, all, doctor.Fine, "rights", "each of")
	has(t, all, doctor.Fine, "Pub/Sub", "arrived")
	has(t, all, doctor.Note, "persistence", "none")
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
	// With asynq's own rights besides, tasks are looked at too.
	both := redistest.DocumentedRights(t, "../../docs/redis.md", "asynq")
	all = findings(t, b, exitOK, append(as(line+" +info +config|get "+strings.Join(both[2:], " ")), file(t, rules))...)
	has(t, all, doctor.Note, "tasks", "there are none")

	// asynq's keys are another matter.
	all = findings(t, b, exitOK, append(as("~automutex:* &automutex:* +@all"), file(t, rules))...)
	has(t, all, doctor.Note, "tasks", "may not read asynq's queues")
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
	master := redistest.StartReal(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica := redistest.StartReal(t, "--replicaof", host+" "+port)
	rdb := master.Client(t)
	redistest.Eventually(t, patience, func() bool {
		info := doctor.ParseInfo(rdb.Info(t.Context(), "replication").Val())
		return strings.Contains(info["slave0"], "state=online")
	}, "a replica")
	has(t, findings(t, b, exitOK, where(master)...), doctor.Fine, "replicas", "1, none behind")
	has(t, findings(t, b, exitNo, where(replica)...), doctor.Bad, "replicas", "this is a replica")

	replica.Pause(t)
	defer replica.Resume(t)
	redistest.Eventually(t, patience, func() bool {
		info := doctor.ParseInfo(rdb.Info(t.Context(), "replication").Val())
		return strings.Contains(info["slave0"], "lag=3")
	}, "a lag of 3 seconds")
	has(t, findings(t, b, exitNo, where(master)...), doctor.Bad, "replicas", "behind: were it promoted now")
}

func testDoctorRules(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	client := asynq.NewClientFromRedisClient(rdb)
	enqueue := func(taskType string, options ...asynq.Option) {
		t.Helper()
		if _, err := client.Enqueue(asynq.NewTask(taskType, nil), append([]asynq.Option{asynq.Queue("q1")}, options...)...); err != nil {
			t.Fatal(err)
		}
	}
	args := append(where(s), file(t, `
rules:
  - {task: "mail:", busy: retry}
  - {task: report, busy: {retry_in: 5s}, ttl: 2m}
  - {task: cache, busy: skip}
  - {task: cron, busy: retry}
  - {task: misspelt, busy: retry}
`))
	empty := findings(t, b, exitOK, args...)
	has(t, empty, doctor.Note, "tasks", "there are none in 0 queues")
	hasNot(t, empty, "Inspector") // no rule parks
	parks := append(where(s), file(t, `rules: [{task: "mail:", busy: skip}, {task: cron, busy: park}]`))
	has(t, findings(t, b, exitOK, parks...), doctor.Note, "Inspector", `rule "cron" parks tasks, but asynq has no queue on this Redis`)
	for range 150 { // more than a page
		enqueue("mail:welcome")
	}
	enqueue("mail:bye", asynq.MaxRetry(0), asynq.ProcessIn(time.Hour))
	enqueue("report", asynq.MaxRetry(0))
	enqueue("cache", asynq.MaxRetry(0))
	enqueue("cron", asynq.MaxRetry(3))
	hasNot(t, findings(t, b, exitOK, parks...), "Inspector") // there is a queue
	all := findings(t, b, exitNo, args...)
	has(t, all, doctor.Bad, "attempts", `rule "mail:" is to retry, but 1 of 1 task of type "mail:bye" with MaxRetry 0`)
	has(t, all, doctor.Bad, "attempts", `rule "report" is to retry in 5s, but 1 of 1 task of`)
	has(t, all, doctor.Note, "tasks", `rule "misspelt" matches no task seen in 1 queue;`)
	has(t, all, doctor.Note, "TTL", `rule "report": 2m is longer than asynq's lease of 30s`)
	for _, f := range all {
		for _, not := range []string{`"cache"`, `"cron"`, "welcome"} {
			if strings.Contains(f.Text, not) {
				t.Errorf("a finding about %s: %s", not, f.Text)
			}
		}
	}
	b.run(t, "doctor", "--tasks", "0").wantError(t, exitUsage, "--tasks")
	b.run(t, "doctor", "--task-check-interval", "0s").wantError(t, exitUsage, "--task_check_interval")
	b.run(t, "doctor", "--uri", s.Addr(), file(t, "rules: [{task: a, limit: -1}]")).want(t, exitNo)
}

// testDoctorKeys: tasks that no key can be made from are found before a worker archives
// them, each with the field, and with what it may be called.
func testDoctorKeys(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	client := asynq.NewClientFromRedisClient(s.Client(t))
	enqueue := func(n int, taskType, payload string) {
		t.Helper()
		for range n {
			task := asynq.NewTaskWithHeaders(taskType, []byte(payload), map[string]string{"Region": "eu"})
			if _, err := client.Enqueue(task); err != nil {
				t.Fatal(err)
			}
		}
	}
	enqueue(4, "misspelt", `{"id": 1}`)
	enqueue(3, "case", `{"user": {"Id": 1}}`)
	enqueue(2, "header", `{}`)
	enqueue(2, "fine", `{"id": 1}`)
	enqueue(1, "fine", `{"id": null}`)
	enqueue(1, "text", `no JSON`)
	enqueue(1, "list", `{"items": [{"skus": 1}]}`)
	all := findings(t, b, exitNo, append(where(s), file(t, `
rules:
  - {task: misspelt, on: [idd]}
  - {task: case, on: [user.id]}
  - {task: header, on_headers: [region]}
  - {task: fine, on: [id]}
  - {task: text, on: [id]}
  - {task: list, on: [items.0.sku]}
`))...)
	has(t, all, doctor.Bad, "keys", `rule "misspelt": no key for 4 of 4 tasks seen of type "misspelt": field "idd" is missing: the payload has no "idd" (did you mean "id"?); a worker archives`)
	has(t, all, doctor.Bad, "keys", `rule "case": no key for 3 of 3 tasks seen of type "case": field "user.id" is missing: "user" has no "id", but "Id": letter case counts; a worker`)
	has(t, all, doctor.Bad, "keys", `header "region" is missing (there is a "Region": letter case counts)`)
	has(t, all, doctor.Bad, "keys", `rule "fine": no key for 1 of 3 tasks seen of type "fine": field "id" is null`)
	has(t, all, doctor.Bad, "keys", `rule "text": no key for 1 of 1 task seen of type "text": field "id": the payload is not JSON (byte 2); set Rule.Key or Rule.OnHeaders for other encodings, or Config.Decode for JSON in an envelope; a worker archives such a task unrun, unless its program sets one of these`)
	has(t, all, doctor.Bad, "keys", `(did you mean "items.0.skus"?)`)

	all = findings(t, b, exitOK, append(where(s), file(t, `rules: [{task: fine}, {task: misspelt, on: [id]}]`))...)
	has(t, all, doctor.Fine, "keys", "every rule makes a key for each task seen")

	// What has ended already may have had another form; it does no harm any more.
	inspector := asynq.NewInspectorFromRedisClient(s.Client(t))
	if _, err := inspector.ArchiveAllPendingTasks("default"); err != nil {
		t.Fatal(err)
	}
	all = findings(t, b, exitOK, append(where(s), file(t, `rules: [{task: misspelt, on: [idd]}]`))...)
	has(t, all, doctor.Note, "keys", "all of these have ended already")
}

// testDoctorWait: time in line is part of a task's Timeout.
func testDoctorWait(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	client := asynq.NewClientFromRedisClient(s.Client(t))
	for _, timeout := range []time.Duration{time.Minute, 20 * time.Second, time.Hour} {
		if _, err := client.Enqueue(asynq.NewTask("report", nil), asynq.Timeout(timeout)); err != nil {
			t.Fatal(err)
		}
	}
	all := findings(t, b, exitOK, append(where(s), file(t, `rules: [{task: report, wait: 1m}, {task: other, wait: 30m}]`))...)
	has(t, all, doctor.Note, "Wait", `rule "report": a Wait of 1m is no shorter than the Timeout of 2 tasks of type "report" (20s)`)
	has(t, findings(t, b, exitOK, append(where(s), file(t, `rules: [{task: cron, busy: park}]`))...), doctor.Note, "Park", "1s (assumed, as asynq's default")
	all = findings(t, b, exitOK, append(where(s), "--task-check-interval", "1s", file(t, `rules: [{task: report, busy: park, wait: 10s}]`))...)
	for _, f := range all {
		if f.What == "Wait" || strings.Contains(f.Text, "assumed") {
			t.Errorf("a finding too many: %+v", f)
		}
	}
}

// testDoctorPark looks at real locks; the rule is not read from a file.
func testDoctorPark(t *testing.T, _ binary) {
	tr := start(t, redistest.Real(t), automutex.Rule{Task: "report:", Scope: "report", On: []string{"id"}}, wait)
	cfg := automutex.Config{Rules: []automutex.Rule{
		{Task: "report:", Scope: "report", On: []string{"id"}, Busy: automutex.Park},
		{Task: "work", On: []string{"id"}, Busy: automutex.Park},
		{Task: "other", Busy: automutex.Retry},
	}}
	tr.enqueue("r", "report:x", `{"id": 1}`)
	tr.holds("r")
	examine := func(checkEvery time.Duration) []doctor.Finding {
		t.Helper()
		all, err := doctor.Examine(t.Context(), tr.server.Client(t), doctor.Options{
			Prefix: tr.prefix, Timeout: patience, Config: &cfg, Tasks: 1, TaskCheckInterval: checkEvery,
		})
		redistest.Must(t, err)
		return slices.DeleteFunc(all, func(f doctor.Finding) bool { return f.What != "Park" })
	}
	has(t, examine(24*365*time.Hour), doctor.Note, "Park", `rule "report:": only 1 of its keys are held now`)
	for i := range 4 {
		id := fmt.Sprint("another", i)
		tr.enqueue(id, "report:x", fmt.Sprintf(`{"id": %q}`, id))
		tr.holds(id)
	}
	all := examine(24 * 365 * time.Hour)
	has(t, all, doctor.Bad, "Park", `rule "report:": its keys are held for about `)
	has(t, all, doctor.Note, "Park", `rule "work": nothing of it is held now`)
	if len(all) != 2 {
		t.Errorf("got %+v", all)
	}
	has(t, examine(time.Microsecond), doctor.Fine, "Park", `rule "report:"`)
}

func testDoctorCluster(t *testing.T, b binary) {
	s := redistest.Cluster(t)
	all := findings(t, b, exitOK, where(s)...)
	for _, addr := range s.Addrs() {
		has(t, all, doctor.Fine, "Redis of "+addr, "version ")
		has(t, all, doctor.Fine, "eviction of "+addr, "noeviction")
	}
	has(t, all, doctor.Fine, "rights", "each of")
	has(t, all, doctor.Fine, "Pub/Sub", "arrived")
}
