package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/redistest"
)

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
