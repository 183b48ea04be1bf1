package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
)

// TestCommands runs the program where a session cannot: beside what happens while it runs.
func TestCommands(t *testing.T) {
	t.Parallel()
	b := binary(os.Args[0])
	for name, test := range map[string]func(*testing.T, binary){
		"list again": testListAgain, "break": testBreak, "arguments": testArguments, "help": testHelp, "readme": testReadme,
		"hanging Redis": testHangingRedis, "full disk": testFullDisk,
		"web": testWeb, "web operator": testWebOperator,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, b)
		})
	}
}

// With -w the list comes again and again, until an interrupt, which is how one leaves.
func testListAgain(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s)
	tr.take("held", nil)
	cmd := b.command(t, nil, append(where(s), "list", "-w=100ms", "--prefix", tr.prefix)...)
	out, err := cmd.StdoutPipe()
	redistest.Must(t, err)
	redistest.Must(t, cmd.Start())
	shown := bufio.NewScanner(out)
	for tables := 0; tables < 3 && shown.Scan(); {
		if strings.HasPrefix(shown.Text(), "KEY") {
			tables++
		}
	}
	redistest.Must(t, cmd.Process.Signal(os.Interrupt))
	_, err = io.Copy(io.Discard, out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}

// A break whose question is open ends with an interrupt, with what has ended by itself, and with a Redis that falls
// silent.
func testBreak(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s)
	for name, c := range map[string]struct {
		then  []string
		while func(*exec.Cmd, *redistest.Proxy) error
		state string
		text  string
	}{
		"hangs": {nil, func(_ *exec.Cmd, p *redistest.Proxy) error { p.Blackhole(true); return nil }, "exit status 3",
			"0 of 1 broken"},
		"stops": {nil, func(cmd *exec.Cmd, _ *redistest.Proxy) error { return cmd.Process.Signal(os.Interrupt) },
			"signal: interrupt", ""},
		"ended": {nil, func(*exec.Cmd, *redistest.Proxy) error { return tr.leases["ended"].Unlock(t.Context()) },
			"exit status 1", "is over; nothing was done"},
		"opens": {[]string{"closes", "leaves"}, func(*exec.Cmd, *redistest.Proxy) error {
			_, err := tr.others.Mutex("opens").BreakAll(t.Context())
			return err
		}, "exit status 1", "is over; nothing was done"},
	} {
		tr.take(name, c.then)
		proxy := redistest.NewProxy(t, s.Addr())
		cmd := b.command(t, nil, "break", name, "--prefix", tr.prefix, "--uri", proxy.Addr(), "--timeout", "5s")
		answer, err := cmd.StdinPipe()
		redistest.Must(t, err)
		stderr, err := cmd.StderrPipe()
		redistest.Must(t, err)
		redistest.Must(t, cmd.Start())
		questions := bufio.NewReader(stderr)
		_, err = questions.ReadString(']') // [y/N]
		redistest.Must(t, errors.Join(err, c.while(cmd, proxy)))
		if name != "stops" {
			_, err = io.WriteString(answer, "y\n")
			redistest.Must(t, err)
		}
		said, _ := io.ReadAll(questions)
		_ = cmd.Wait() // the state says it
		if state := cmd.ProcessState.String(); state != c.state || !strings.Contains(string(said), c.text) {
			t.Errorf("%s: %s, %q; want %s, %q", name, state, said, c.state, c.text)
		}
	}
}

// Whatever the argument, there is one line and nothing is done.
func testArguments(t *testing.T, b binary) {
	s := redistest.Real(t)
	for _, arg := range []string{"\xff\xfe\x01", "a\nb", "\x1b[2J", strings.Repeat("x", 120_000), "{}"} {
		for _, command := range [][]string{{"show", arg}, {"break", arg, "--yes"}, {"check", arg}, {"list", arg}} {
			r := b.run(t, append(where(s), command...)...)
			if r.exit == exitOK || r.exit == exitRedis || r.stdout != "" || len(r.stderr) > 1100 ||
				!utf8.ValidString(r.stderr) ||
				strings.ContainsAny(strings.TrimSuffix(r.stderr, "\n"), "\n\x1b") {
				t.Errorf("%.50q: %d, %.300q", command, r.exit, r.stderr)
			}
		}
	}
}

func testHelp(t *testing.T, b binary) {
	b.run(t, "--help").want(t, exitOK, "Exit codes", "AUTOMUTEX_URI", "doctor")
	b.run(t).want(t, exitOK, "Available Commands")
	b.run(t, "--version").want(t, exitOK, "automutex ")
	b.run(t, "schema").want(t, exitOK, `"$schema"`)
	b.run(t, "completion", "bash").want(t, exitOK, "automutex")
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
	r = b.run(t, "key", name, "--type", "github:push", "--payload", `{"repository": {"full_name": "octo/hello"}}`).want(t,
		exitOK)
	inReadme(r, r.stdout)
	slips := strings.NewReplacer("limit: 3", "limt: 3", "retry_in: 30s", "retry_in: 30").Replace(rules)
	redistest.Must(t, os.WriteFile(name, []byte(slips), 0o600))
	r = b.run(t, "check", name) // a mistake a line
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

// online are commands that need Redis.
var online = [][]string{{"list"}, {"show", "x"}, {"break", "x", "--yes"}, {"sweep"}, {"doctor"}}

// testHangingRedis: one that accepts connections and never answers, from the beginning or from somewhere in the middle,
// is an error at the timeout. A run that hangs is ended by the test.
func testHangingRedis(t *testing.T, b binary) {
	proxy := redistest.NewProxy(t, redistest.Real(t).Addr())
	proxy.Blackhole(true)
	middle := redistest.NewProxy(t, redistest.Real(t).Addr())
	middle.Hold(func(command []string) bool {
		return command[0] != "HELLO" && command[0] != "CLIENT" && command[0] != "PING"
	}, 1<<30)
	for _, command := range online {
		for _, flags := range [][]string{{"--uri", proxy.Addr()}, {"--cluster", "--uri", proxy.Addr()},
			{"--uri", middle.Addr()}} {
			t.Run(strings.Join(append(command[:1:1], flags...), " "), func(t *testing.T) {
				t.Parallel()
				r := b.run(t, append(command[:len(command):len(command)], append(flags, "--timeout", "1s")...)...)
				r.want(t, exitRedis)
			})
		}
	}
}

// What cannot be written is one line, and neither a success nor wrong use.
func testFullDisk(t *testing.T, b binary) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full")
	}
	t.Cleanup(func() { _ = full.Close() })
	s := redistest.Real(t)
	tr := start(t, s)
	tr.take("held", nil)
	redistest.Must(t, tr.others.Controls().SetLimit(t.Context(), "held", 2, ""))
	rules := file(t, "rules: [{task: work, on: [id]}]\nunique: [{task: work, on: [id]}]")
	key := []string{"key", rules, "--type", "work", "--payload", `{"id": 7}`}
	for _, args := range [][]string{
		{"schema"}, {"check", rules}, {"check", file(t, "unique: [{task: work, on: [id]}]")}, key, append(key, "--json"),
		{"list"}, {"show", "held"}, {"break", "held", "--yes"}, {"controls", "--json"},
	} {
		cmd := b.command(t, []string{"AUTOMUTEX_URI=" + s.Addr(), "AUTOMUTEX_PREFIX=" + tr.prefix}, args...)
		cmd.Stdout = full
		finish(t, cmd, "").want(t, exitNo, "no space left on device\n")
	}
	if held, err := tr.others.Mutex("held").Holders(t.Context()); err != nil || len(held) != 1 {
		t.Errorf("a lock that could not be shown was broken: %v, %v", held, err)
	}
}

// The last column of a lock tells what it waits for, and what operators have ordered. Of a long line show has the
// beginning.
func TestRows_line(t *testing.T) {
	t.Parallel()
	s := inspect.Lock{Key: "k", Line: 2, Parked: 1, Queued: 1, Next: &inspect.Next{Task: "q/1", Blocked: true},
		Controls: []inspect.Control{
			{Paused: true, By: "ann"}, {Limit: 3, By: "bob"},
		}}
	if got, want := rows(s)[0][5], "2 (1 parked) (1 in order), blocked by q/1, paused until somebody resumes it (ann), "+
		"limited to 3 (bob)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var out strings.Builder
	s = inspect.Lock{Key: "k", Line: 5, Waiters: []inspect.Waiter{{Owner: "a"}},
		Controls: []inspect.Control{{Limit: 2, Why: "\x1b[2J"}}}
	err := (&app{out: &out}).printLock(s, locks{})
	if shown := out.String(); err != nil || !strings.HasSuffix(shown, "\nand 4 more\n") ||
		strings.Contains(shown, "\x1b") {
		t.Errorf("%v, %q", err, shown)
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
		one.lock.At = now
		if got := (filter{longer: time.Minute}).passes(one.lock); got != one.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

func TestOpen_nodeOfACluster(t *testing.T) {
	t.Parallel()
	c := connection{uri: redistest.Cluster(t).Addr(), timeout: time.Minute}
	if _, err := c.open(t.Context()); err == nil || !strings.Contains(err.Error(), "give --cluster") {
		t.Error(err)
	}
}

// What no session reaches: sentinels, TLS and a socket with a database.
func TestConnection_options(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"redis-sentinel://u:p@a:1,b:2?master=m": "[a:1 b:2] m u p 0 false", "rediss://:p@h:1/2": "[h:1]   p 2 true",
		"redis-socket:///s.sock?db=3": "[/s.sock]    3 false",
	} {
		o, where, err := (&connection{uri: uri, db: -1}).options()
		redistest.Must(t, err)
		got := fmt.Sprintln(o.Addrs, o.MasterName, o.Username, o.Password, o.DB, o.TLSConfig != nil)
		if got != want+"\n" || strings.Contains(where, "p@") {
			t.Errorf("%s at %s: %q, want %q", uri, where, got, want)
		}
	}
}
