package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// TestMain lets this test binary be the command too.
func TestMain(m *testing.M) {
	if os.Getenv("AUTOMUTEX_TEST_COMMAND") != "" {
		main()
	}
	redistest.Main(m)
}

// patience is how long a test waits for what should come at once: long, since it is only used up by tests that fail.
const patience = 30 * time.Second

var update = flag.Bool("update", false, "write the sessions in testdata anew")

// TestSessions plays the sessions of testdata/sessions, each on a Redis of its own. A session is a file of lines:
//
//	# for the reader
//	| a line of the file that "* file" has named
//	* what happens, see session.act
//	$ [VARIABLE=value] a command [< the answer to its question]
//	    what it prints; ! on stderr; its exit code if that is not 0
//
// Tokens, times and the like are masked.
func TestSessions(t *testing.T) {
	t.Parallel()
	b := binary(os.Args[0])
	files, err := filepath.Glob("testdata/sessions/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sessions: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			redistest.Must(t, err)
			play := func(t *testing.T, s *redistest.Server) {
				got := (&session{t: t, bin: b, server: s, dir: t.TempDir()}).play(string(text))
				if *update && s.Kind() != redistest.KindCluster {
					redistest.Must(t, os.WriteFile(file, []byte(got), 0o600))
				} else if got != string(text) {
					t.Errorf("%s\n%s", file, difference(string(text), got))
				}
			}
			if strings.HasPrefix(string(text), "# Also on a Cluster") {
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					if s.Kind() == redistest.KindMini {
						t.SkipNow() // its clock stands
					}
					play(t, s)
				})
				return
			}
			play(t, redistest.StartReal(t))
		})
	}
}

// difference is the first lines that two texts do not have in common.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	i := 0
	for i < min(len(w), len(g)) && w[i] == g[i] {
		i++
	}
	return fmt.Sprintf("line %d\nwant\n%s\ngot\n%s", i+1, strings.Join(w[i:min(i+9, len(w))], "\n"),
		strings.Join(g[i:min(i+9, len(g))], "\n"))
}

// session plays one file.
type session struct {
	t        *testing.T
	bin      binary
	server   *redistest.Server
	dir      string // of the files
	file     string // that lines with a | are written to
	*traffic        // nil: nothing has needed it
}

var (
	argument = regexp.MustCompile(`'[^']*'|[^\s']+`)
	token    = regexp.MustCompile(`\{token:([^}]+)\}`)
	// What differs from run to run.
	masks = []struct {
		what *regexp.Regexp
		is   string
	}{
		{regexp.MustCompile(`(NOPERM|WRONGTYPE|ERR The user)[^;)\n]*`), "$1..."},
		{regexp.MustCompile(`version \d[\d.]+`), "version N"},
		{regexp.MustCompile(`is \S+ from this`), "is T from this"}, {regexp.MustCompile(`[\w-]{16}\.[a-z0-9]{9,}`), "TOKEN"},
		{regexp.MustCompile(`20\d\d-\d\d-\d\dT[\d:.]+Z`), "TIME"}, {regexp.MustCompile(`(\d+(\.\d+)?(ms|us|s|m|h))+`), "T"},
		{regexp.MustCompile(`(ann|bob|me|uid-)\d*@[\w.-]+`), "$1@HOST"}, {regexp.MustCompile(`  +`), "  "},
	}
)

// play returns the file with what the commands print now.
func (s *session) play(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch word {
		case "*":
			s.act(words(s.fill(rest)))
		case "|":
			f, err := os.OpenFile(filepath.Join(s.dir, s.file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			redistest.Must(s.t, err)
			_, err = f.WriteString(s.fill(rest) + "\n")
			redistest.Must(s.t, errors.Join(err, f.Close()))
		case "$":
			line += s.run(rest)
		}
		if !strings.HasPrefix(line, "    ") { // what was printed before
			out.WriteString(line)
		}
	}
	return out.String()
}

func words(line string) (all []string) {
	for _, word := range argument.FindAllString(line, -1) {
		all = append(all, strings.Trim(word, "'"))
	}
	return all
}

// fill puts in what a file cannot know.
func (s *session) fill(text string) string {
	text = strings.ReplaceAll(text, "{addr}", s.server.Addr())
	if strings.Contains(text, "{acl}") { // the documented rights
		page, err := os.ReadFile("../../docs/redis.md")
		redistest.Must(s.t, err)
		_, rights, _ := strings.Cut(string(page), "ACL SETUSER automutex on >password ")
		rights, _, _ = strings.Cut(rights, "\n")
		text = strings.ReplaceAll(text, "{acl}", rights)
	}
	if s.traffic != nil {
		text = strings.NewReplacer("{prefix}", s.prefix, "{queue}", s.queue).Replace(text)
	}
	return token.ReplaceAllStringFunc(text, func(of string) string { return s.tokenOf(token.FindStringSubmatch(of)[1]) })
}

// run runs a command: variables of the environment first, and an answer to its question after <.
func (s *session) run(line string) string {
	line, answer, _ := strings.Cut(line, " < ")
	env := []string{"USER=me", "AUTOMUTEX_TIMEOUT=20s", "AUTOMUTEX_URI=" + s.server.Addr()}
	if s.server.Kind() == redistest.KindCluster {
		env = append(env, "AUTOMUTEX_CLUSTER=true")
	}
	if s.traffic != nil {
		env = append(env, "AUTOMUTEX_PREFIX="+s.prefix)
	}
	args := words(s.fill(line))
	for len(args) > 0 && strings.Contains(args[0], "=") {
		env, args = append(env, args[0]), args[1:]
	}
	cmd := s.bin.command(s.t, env, args...)
	cmd.Dir = s.dir
	r := finish(s.t, cmd, answer+"\n")
	var out strings.Builder
	if args[0] == "list" { // as they are found
		rows := strings.SplitAfter(r.stdout, "\n")
		slices.Sort(rows)
		r.stdout = strings.Join(rows, "")
	}
	out.WriteString(indent("    ", r.stdout) + indent("    ! ", r.stderr))
	if r.exit != exitOK {
		fmt.Fprintf(&out, "    exit %d\n", r.exit)
	}
	return s.mask(out.String())
}

// indent puts a mark before each line that is not empty.
func indent(mark, text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			b.WriteString(mark + line + "\n")
		}
	}
	return b.String()
}

func (s *session) mask(text string) string {
	known := []string{s.server.Addr(), "ADDR"}
	if s.traffic != nil {
		known = append(known, s.prefix, "PREFIX", s.queue, "QUEUE")
	}
	text = strings.NewReplacer(known...).Replace(text)
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		line, printed := strings.CutPrefix(line, "    ")
		for _, m := range masks {
			if s.traffic != nil || m.is != "T" { // what does not touch Redis shows no time of its own
				line = m.what.ReplaceAllString(line, m.is)
			}
		}
		if printed {
			lines[i] = "    " + line
		}
		for j := i; j > 0 && strings.HasPrefix(line, "TOKEN ") && strings.HasPrefix(lines[j-1], "    TOKEN ") &&
			lines[j-1] > lines[j]; j-- {
			lines[j-1], lines[j] = lines[j], lines[j-1] // a renewal changes the order of holders
		}
	}
	return strings.Join(lines, "")
}

// act does what is no command.
func (s *session) act(args []string) {
	ctx := s.t.Context()
	switch args[0] {
	case "file":
		s.file = args[1]
		return
	case "redis":
		all := make([]any, 0, len(args))
		for _, arg := range args[1:] {
			all = append(all, arg)
		}
		redistest.Must(s.t, s.server.Client(s.t).Do(ctx, all...).Err())
		return
	case "traffic":
		s.traffic = start(s.t, s.server)
		return
	}
	name, rdb := args[1], s.server.Client(s.t)
	switch args[0] {
	case "enqueue": // ID TYPE PAYLOAD
		s.enqueue(name, args[2], args[3])
	case "holds", "runs": // ID
		s.holds(name)
	case "lost": // ID
		s.lost(name)
	case "line": // KEY N
		s.line(number(s.t, args[2]), name)
	case "state": // ID STATE
		redistest.Eventually(s.t, patience, func() bool {
			info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo(s.queue, name)
			return err == nil && info.State.String() == args[2]
		}, "asynq has the task %s as %s", name, args[2])
	case "blocked": // KEY
		redistest.Eventually(s.t, patience, func() bool {
			all, err := s.guard.Blocked(ctx)
			return err == nil && len(all) == 1
		}, "a key is blocked")
	case "says": // OWNER TASK LIMIT, the types that it has met, "hashed" if it hashes keys
		rules := inspect.Describe([]automutex.Rule{{Task: args[2], On: []string{"id"}, Limit: number(s.t, args[3])}})
		self := fleet.Process{Owner: name, Hashed: slices.Contains(args, "hashed"), Serves: args[4:], Rules: rules}
		go fleet.Announce(s.t.Context(), rdb, s.prefix, func() fleet.Process { return self }, func(string) {})
		redistest.Eventually(s.t, patience, func() bool {
			f, err := fleet.Read(ctx, rdb, s.prefix)
			return err == nil && slices.ContainsFunc(f, func(p fleet.Process) bool { return p.Owner == name })
		}, "the worker tells its rules")
	case "dead": // NAME: its holder died an hour ago
		key, now := keys.Key(s.prefix, name), time.Now()
		redistest.Must(s.t, rdb.Set(ctx, key, fmt.Sprintf("+1 %d", now.Add(time.Hour).UnixMilli()), time.Hour).Err())
		redistest.Must(s.t, rdb.ZAdd(ctx, key+":holders", redis.Z{Score: float64(now.Add(-time.Hour).UnixMilli()),
			Member: "x.1|dead|"}).Err())
	case "take": // NAME, and what becomes of it
		s.take(name, args[2:])
	default:
		s.t.Fatalf("no such action: %q", args)
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	redistest.Must(t, err)
	return n
}

type binary string // its path

// result is what a run of the program gave.
type result struct {
	args           []string
	exit           int
	stdout, stderr string
}

// coverEnv names a folder for what the runs of the program cover; .ci/coverage sets it.
const coverEnv = "AUTOMUTEX_TEST_COVER"

// command prepares a run that ends with the test. The environment has nothing that the program would read.
func (b binary) command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, string(b), args...)
	cmd.Env = append([]string{"AUTOMUTEX_TEST_COMMAND=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(),
		"GOCOVERDIR=" + cmp.Or(os.Getenv(coverEnv), t.TempDir())}, env...)
	return cmd
}

func (b binary) run(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, b.command(t, nil, args...), "")
}

func finish(t *testing.T, cmd *exec.Cmd, stdin string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &stderr
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	r := result{args: cmd.Args[1:], exit: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	for _, trace := range []string{"goroutine ", "panic:"} {
		if strings.Contains(r.stderr, trace) {
			t.Errorf("%.200q: %s", r.args, r.stderr)
		}
	}
	return r
}

// want holds a run against its exit code and what it prints, each text somewhere. A run that fails says why in one
// line.
func (r result) want(t *testing.T, exit int, texts ...string) result {
	t.Helper()
	if r.exit != exit || exit == exitOK && r.stderr != "" || exit != exitOK &&
		(!strings.HasPrefix(r.stderr, "automutex: ") || strings.Count(r.stderr, "\n") != 1) {
		t.Errorf("%.200q: exit code %d, want %d\nstdout:\n%.3000s\nstderr:\n%.3000s", r.args, r.exit, exit, r.stdout,
			r.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(r.stdout+r.stderr, text) {
			t.Errorf("%.200q: %q is not in the output\n%.3000s%.3000s", r.args, text, r.stdout, r.stderr)
		}
	}
	return r
}

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
	queue  string
	prefix string
	guard  *automutex.Guard
	client *automutex.Client
	others *lock.Locker // for what is no task
	leases map[string]*lock.Lease

	release chan struct{} // closed by stop; handlers return then
	mu      sync.Mutex    // guards running
	running map[string]context.Context
}

// start makes traffic on s that ends with the test.
func start(t *testing.T, s *redistest.Server) *traffic {
	t.Helper()
	tr := &traffic{
		t: t, queue: redistest.Name(t), prefix: redistest.Name(t), leases: map[string]*lock.Lease{},
		release: make(chan struct{}), running: map[string]context.Context{},
	}
	rdb, quiet := s.Client(t), slog.New(slog.DiscardHandler)
	cfg := automutex.Config{Prefix: tr.prefix, Owner: "worker-1:4242", Logger: quiet, Private: true,
		Rules: []automutex.Rule{
			{Task: "work", On: []string{"id"}, Busy: automutex.Retry, Wait: time.Hour},
			{Task: "report", Limit: 3},
			{Task: "pay", On: []string{"id"}, InOrder: true},
		}}
	var err error
	tr.guard, err = automutex.New(rdb, cfg)
	redistest.Must(t, err)
	tr.client, err = automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
	redistest.Must(t, err)
	tr.others = lock.New(rdb, lock.Options{Prefix: tr.prefix, Owner: "somebody", Logger: quiet})
	server := asynq.NewServerFromRedisClient(rdb, tr.guard.ServerConfig(asynq.Config{
		Concurrency: 10, Queues: map[string]int{tr.queue: 1}, TaskCheckInterval: redistest.CheckEvery,
		DelayedTaskCheckInterval: 100 * time.Millisecond, ShutdownTimeout: patience, Logger: redistest.Silent{},
	}))
	redistest.Must(t, server.Start(tr.guard.Middleware(asynq.HandlerFunc(tr.handle))))
	t.Cleanup(func() {
		close(tr.release)
		closed := make(chan error, 1) // Close beside Shutdown, as in the guide
		go func() { closed <- tr.guard.Close(context.Background()) }()
		server.Shutdown()
		if err := errors.Join(<-closed, tr.others.Close()); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// handle stays until the end, or until its lease is lost. Tasks with nothing to pay fail.
func (tr *traffic) handle(ctx context.Context, task *asynq.Task) error {
	if task.Type() == "pay" && !strings.Contains(string(task.Payload()), "sum") {
		return errors.New("card refused")
	}
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

func (tr *traffic) enqueue(id, taskType, payload string) {
	tr.t.Helper()
	_, err := tr.client.Enqueue(asynq.NewTask(taskType, []byte(payload)), asynq.Queue(tr.queue), asynq.TaskID(id),
		asynq.Timeout(time.Hour), asynq.MaxRetry(0))
	redistest.Must(tr.t, err)
}

// holds waits until a task's handler runs.
func (tr *traffic) holds(id string) {
	tr.t.Helper()
	redistest.Eventually(tr.t, patience, func() bool { return tr.context(id) != nil }, "the handler of %s runs", id)
}

// lost waits until a task's handler was told that its lease is lost.
func (tr *traffic) lost(id string) {
	tr.t.Helper()
	redistest.Eventually(tr.t, patience, func() bool { return errors.Is(context.Cause(tr.context(id)), lock.ErrLost) },
		"the handler of %s is told", id)
}

// line waits until so many wait for a key.
func (tr *traffic) line(n int, key string) {
	tr.t.Helper()
	e := *inside.At(tr.others)
	r, err := e.Ref(inspect.TypedKey(tr.prefix, "", key))
	redistest.Must(tr.t, err)
	redistest.Eventually(tr.t, patience, func() bool {
		info, err := e.Inspect(tr.t.Context(), r, 0)
		return err == nil && info.Waiting == n
	}, "%d wait for %s", n, key)
}

// take takes one of two slots of a lock that no task has, and does one thing more.
func (tr *traffic) take(name string, then []string) {
	tr.t.Helper()
	ctx := tr.t.Context()
	options := []lock.Option{lock.Note("by hand\x1b[2J")}
	if len(then) > 0 && then[0] == "rated" {
		options = append(options, lock.Rate(1, 2*time.Hour, 1))
	}
	lease, err := tr.others.Semaphore(name, 2, options...).TryLock(ctx)
	redistest.Must(tr.t, err)
	tr.leases[name] = lease
	for _, what := range then {
		switch what {
		case "closes":
			redistest.Must(tr.t, (*inside.At(lease)).CloseGate(ctx, time.Hour))
		case "cools":
			redistest.Must(tr.t, lease.Cooldown(ctx, time.Hour))
		case "leaves":
			redistest.Must(tr.t, lease.Unlock(ctx))
		}
	}
}

// tokenOf is the token of the lease that a name was taken with, or of a task's.
func (tr *traffic) tokenOf(name string) string {
	if lease := tr.leases[name]; lease != nil {
		return lease.Token()
	}
	holders, err := tr.others.Mutex("report").Holders(tr.t.Context())
	redistest.Must(tr.t, err)
	for _, h := range holders {
		if strings.HasSuffix(h.Note, "/"+name) {
			return h.Token
		}
	}
	tr.t.Fatalf("no token of %s", name)
	return ""
}

// where are the connection flags to s.
func where(s *redistest.Server) []string {
	return []string{"--uri", s.Addr(), "--timeout", "20s"}
}
