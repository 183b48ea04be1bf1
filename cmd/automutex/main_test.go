package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// patience is how long a test waits for what should come at once: long, since
// it is only used up by tests that fail.
const patience = 30 * time.Second

// TestCommands builds the program and runs it as operators do.
func TestCommands(t *testing.T) {
	b := build(t)
	for name, test := range map[string]func(*testing.T, binary){
		"key unique": testKeyUnique, "check": testCheck, "check mistakes": testCheckMistakes, "key": testKey,
		"list": testList, "list filters": testListFilters, "list many": testListMany, "show": testShow, "show many": testShowMany,
		"list again": testListAgain,
		"break":      testBreak, "break gate": testBreakGate, "break asks": testBreakAsks, "break holder": testBreakHolder, "break hangs": testBreakHangs, "break late": testBreakLate,
		"pause": testPause, "limit": testLimit, "pause and limit": testPauseAndLimit, "targets": testTargets, "controls unreadable": testControlsUnreadable,
		"control mistakes": testControlMistakes,
		"sweep":            testSweep, "blocked": testBlocked,
		"doctor": testDoctor, "doctor rights": testDoctorRights, "doctor replica": testDoctorReplica,
		"doctor rules": testDoctorRules, "doctor cluster": testDoctorCluster,
		"completion": testCompletion, "help": testHelp, "readme": testReadme, "usage": testUsage, "arguments": testArguments,
		"connection": testConnection, "environment": testEnvironment, "no Redis": testNoRedis, "hanging Redis": testHangingRedis,
		"wrong password": testWrongPassword, "refused commands": testRefusedCommands, "full disk": testFullDisk, "web": testWeb, "web login": testWebLogin, "web operator": testWebOperator, "web refuses": testWebRefuses, "fleet": testFleet,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, b)
		})
	}
}

// binary is the built program.
type binary string

// program keeps main in the test binary: go test caches a result by that binary, and the result of a changed
// command would be the one of the command before the change.
var program = main

func build(t *testing.T) binary {
	t.Helper()
	if program == nil {
		t.Fatal("main is not in the test binary")
	}
	file := filepath.Join(t.TempDir(), "automutex")
	args := []string{"build", "-o", file, "."}
	if os.Getenv(coverEnv) != "" {
		args = []string{"build", "-cover", "-coverpkg", "github.com/automutex/automutex/...", "-o", file, "."}
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary(file)
}

// result is what a run of the program gave.
type result struct {
	args           []string
	exit           int
	stdout, stderr string
}

// coverEnv names a folder for what the runs of the program cover; .ci/coverage sets it.
const coverEnv = "AUTOMUTEX_TEST_COVER"

// command prepares a run that ends with the test. The environment has nothing
// that the program would read.
func (b binary) command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, string(b), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GOCOVERDIR=" + os.Getenv(coverEnv)}, env...)
	return cmd
}

// run runs the program to its end.
func (b binary) run(t *testing.T, args ...string) result {
	t.Helper()
	return b.runWith(t, "", nil, args...)
}

func (b binary) runWith(t *testing.T, stdin string, env []string, args ...string) result {
	t.Helper()
	cmd := b.command(t, env, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatalf("%q: %v", args, err)
	}
	r := result{args: args, exit: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	for _, trace := range []string{"goroutine ", "panic:"} {
		if strings.Contains(r.stderr, trace) {
			t.Errorf("%.200q: %s", args, r.stderr)
		}
	}
	return r
}

// want holds a run against its exit code and what is to be on stdout, each text
// somewhere.
func (r result) want(t *testing.T, exit int, stdout ...string) result {
	t.Helper()
	if r.exit != exit {
		t.Errorf("%.200q: exit code %d, want %d", r.args, r.exit, exit)
	}
	if exit == exitOK && r.stderr != "" {
		t.Errorf("%.200q: on stderr of a run that went well: %s", r.args, r.stderr)
	}
	for _, text := range stdout {
		if !strings.Contains(r.stdout, text) {
			t.Errorf("%.200q: %q is not in the output", r.args, text)
		}
	}
	if t.Failed() {
		t.Logf("%.200q: exit code %d\nstdout:\n%.3000s\nstderr:\n%.3000s", r.args, r.exit, r.stdout, r.stderr)
	}
	return r
}

// wantError is want for a run that fails: with one line on stderr, and nothing
// on stdout.
func (r result) wantError(t *testing.T, exit int, text string) {
	t.Helper()
	if r.stdout != "" {
		t.Errorf("%.200q: stdout of a run that failed: %.500s", r.args, r.stdout)
	}
	r.wantErrorLine(t, exit, text)
}

// wantErrorLine is wantError for commands that have shown something before.
func (r result) wantErrorLine(t *testing.T, exit int, text string) {
	t.Helper()
	line := strings.TrimPrefix(r.stderr, "\n")
	if i := strings.LastIndex(line, "[y/N] "); i >= 0 {
		line = strings.TrimPrefix(line[i+len("[y/N] "):], "\n")
	}
	if r.exit != exit || !strings.HasPrefix(line, "automutex: ") || strings.Count(line, "\n") != 1 || len(line) > 1100 || !strings.Contains(line, text) {
		t.Errorf("%.200q: exit code %d, want %d and one line with %q on stderr:\n%.2000s", r.args, r.exit, exit, text, r.stderr)
	}
}

// lines reads JSON, an object a line.
func lines[T any](t *testing.T, text string) (all []T) {
	t.Helper()
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, v)
	}
	return all
}

// file writes a file of rules.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rules.yaml")
	redistest.Must(t, os.WriteFile(name, []byte(content), 0o600))
	return name
}

// traffic is an asynq server whose guarded handlers stay in until they are let
// go: real tasks that hold real locks, and real ones that wait for them.
type traffic struct {
	t      *testing.T
	server *redistest.Server
	queue  string
	prefix string
	client *asynq.Client
	others *lock.Locker // for what is no task

	release chan struct{} // closed by stop; handlers return then
	mu      sync.Mutex    // guards running
	running map[string]context.Context
}

// start makes traffic on s that ends with the test.
func start(t *testing.T, s *redistest.Server, rules ...automutex.Rule) *traffic {
	t.Helper()
	tr := &traffic{
		t: t, server: s, queue: redistest.Name(t), prefix: redistest.Name(t),
		release: make(chan struct{}), running: map[string]context.Context{},
	}
	rdb := s.Client(t)
	quiet := slog.New(slog.DiscardHandler)
	guard, err := automutex.New(rdb, automutex.Config{Rules: rules, Prefix: tr.prefix, Owner: "worker-1:4242", Logger: quiet, Private: true})
	redistest.Must(t, err)
	tr.client = asynq.NewClientFromRedisClient(rdb)
	tr.others = lock.New(rdb, lock.Options{Prefix: tr.prefix, Owner: "somebody", Logger: quiet})
	server := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 10, Queues: map[string]int{tr.queue: 1}, TaskCheckInterval: redistest.CheckEvery,
		ShutdownTimeout: patience, Logger: redistest.Silent{},
	}))
	redistest.Must(t, server.Start(guard.Middleware(asynq.HandlerFunc(tr.handle))))
	t.Cleanup(func() {
		close(tr.release)
		closed := make(chan error, 1) // Close beside Shutdown, as in the guide
		go func() { closed <- guard.Close(context.Background()) }()
		server.Shutdown()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := tr.others.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// handle stays until the end, or until its lease is lost.
func (tr *traffic) handle(ctx context.Context, _ *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	tr.mu.Lock()
	tr.running[id] = ctx
	tr.mu.Unlock()
	select {
	case <-tr.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// context is that of a task's handler, nil until it has begun.
func (tr *traffic) context(id string) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.running[id]
}

// enqueue enqueues a task; its ID is the caller's.
func (tr *traffic) enqueue(id, taskType, payload string, options ...asynq.Option) {
	tr.t.Helper()
	options = append([]asynq.Option{asynq.Queue(tr.queue), asynq.TaskID(id), asynq.Timeout(time.Hour)}, options...)
	if _, err := tr.client.Enqueue(asynq.NewTask(taskType, []byte(payload)), options...); err != nil {
		tr.t.Fatal(err)
	}
}

// holds waits until a task's handler runs.
func (tr *traffic) holds(id string) {
	tr.t.Helper()
	redistest.Eventually(tr.t, patience, func() bool { return tr.context(id) != nil }, "the handler of %s runs", id)
}

// line waits until so many wait for a key.
func (tr *traffic) line(n int, scope string, parts ...string) {
	tr.t.Helper()
	m := tr.others.Mutex(scope, lock.Parts(parts...))
	redistest.Eventually(tr.t, patience, func() bool {
		waiting, err := m.Waiting(tr.t.Context())
		return err == nil && waiting == n
	}, "%d wait for %s", n, m.Key())
}

// flags are those that lead the program here.
func (tr *traffic) flags(args ...string) []string {
	return append(args, append(where(tr.server), "--prefix", tr.prefix)...)
}

// where are the connection flags to s.
func where(s *redistest.Server) []string {
	if s.Kind() == redistest.KindCluster {
		return []string{"--cluster", "--cluster_addrs", s.Addr(), "--timeout", "20s"}
	}
	return []string{"--uri", s.Addr(), "--timeout", "20s"}
}

// eachReal runs f on a single Redis and on a Cluster.
func eachReal(t *testing.T, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindMini {
			t.SkipNow()
		}
		f(t, s)
	})
}

// wait is the rule that most tests hold tasks by.
var wait = automutex.Rule{Task: "work", On: []string{"id"}, Busy: automutex.Retry, Wait: time.Hour}

// A table's columns are in line, what a terminal would obey is shown, and nothing follows the last cell.
func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	list := [][]string{{"顧客|株式会社", "vm:1", "3"}, {"a\tb|\x1b[31m\n", "vm:22", ""}}
	redistest.Must(t, printAll(&out, list, false, []string{"KEY", "HOLDER", "LINE"}, func(row []string) [][]string { return [][]string{row} }))
	if got, want := out.String(), "KEY                        HOLDER  LINE\n顧客|株式会社                    vm:1    3\n"+`a\u0009b|\u001b[31m\u000a  vm:22   `+"\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The last column of a lock tells what it waits for, and what operators have ordered.
func TestRows_line(t *testing.T) {
	t.Parallel()
	s := inspect.Lock{Key: "k", Line: 2, Parked: 1, Queued: 1, Next: &inspect.Next{Task: "q/1", Blocked: true}, Controls: []inspect.Control{
		{Paused: true, By: "ann"}, {Limit: 3, By: "bob", Why: "a\nlarger plan"},
	}}
	if got, want := rows(s, time.Now())[0][5], "2 (1 parked) (in order), blocked by q/1, paused by ann, limit 3 by bob (a larger plan)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Of a lock with several holders the age of the newest is known alone: it is shown, since another may hang.
func TestFilter_longer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	recent, old := now.Add(-time.Second), now.Add(-time.Hour)
	for what, one := range map[string]struct {
		lock inspect.Lock
		want bool
	}{
		"taken lately":     {inspect.Lock{Held: 1, Since: &recent}, false},
		"taken long ago":   {inspect.Lock{Held: 1, Since: &old}, true},
		"held by nobody":   {inspect.Lock{}, false},
		"held by two":      {inspect.Lock{Held: 2, Since: &recent}, true},
		"held, since when": {inspect.Lock{Held: 1}, false},
	} {
		if got := (filter{longer: time.Minute}).passes(one.lock, now); got != one.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// An error becomes one line and the exit code of its kind.
func TestExplain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		exit int
		text string
	}{
		{nil, exitOK, ""},
		{fmt.Errorf("list: %w", context.Canceled), exitNo, "automutex: interrupted\n"},
		{unreachable("x", context.Canceled), exitNo, "automutex: interrupted\n"},
		{unreachable("x", redistest.ReplyError("LOADING the dataset")), exitRedis, "automutex: Redis at x refuses the connection: LOADING the dataset\n"},
		{fmt.Errorf("automutex: %w", lock.ErrBackend), exitRedis, "automutex: lock: backend error\n"},
		{errors.New("unknown flag"), exitUsage, "automutex: unknown flag\n"},
		{&failure{exit: exitNo, error: errors.New("a\nb"), lines: true}, exitNo, "a\nb\n"},
	} {
		var out strings.Builder
		if exit := explain(&out, c.err); exit != c.exit || out.String() != c.text {
			t.Errorf("%v: %d, %q; want %d, %q", c.err, exit, out.String(), c.exit, c.text)
		}
	}
}
