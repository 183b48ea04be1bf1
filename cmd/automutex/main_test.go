package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
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
		"control mistakes": testControlMistakes, "control rules": testControlRules,
		"sweep": testSweep, "blocked": testBlocked,
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
