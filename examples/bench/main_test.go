package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// The test binary is its own worker, as the program is.
func TestMain(m *testing.M) {
	if spec := os.Getenv(jobEnv); spec != "" {
		os.Exit(work(spec, os.Stdin, os.Stdout))
	}
	redistest.Main(m)
}

// A run measures in processes of its own, prints, and writes a report that can be
// made again from its figures.
func TestRun(t *testing.T) {
	t.Parallel()
	redistest.Real(t) // skips, or fails, where there is none
	dir := t.TempDir()
	var out, progress bytes.Buffer
	if code := run(t.Context(), []string{"-quick", "-only", "h", "-out", dir}, &out, &progress); code != exitOK {
		t.Fatalf("exit code %d:\n%s", code, progress.String())
	}
	for _, want := range []string{"1,000 waiting", "Redis µs/pair", "reached", "A quick pass"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed without %q:\n%s", want, out.String())
		}
	}
	report := read(t, filepath.Join(dir, reportFile))
	for _, want := range []string{"## H. ", "| 1,000 parked | automutex, default |", "cores (", "redislock v"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report is without %q:\n%s", want, report)
		}
	}
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(report, host) {
		t.Error("the report names this machine")
	}
	again := t.TempDir()
	if code := run(t.Context(), []string{"-from", filepath.Join(dir, recordFile), "-out", again}, io.Discard, &progress); code != exitOK {
		t.Fatalf("-from: exit code %d:\n%s", code, progress.String())
	}
	if got := read(t, filepath.Join(again, reportFile)); got != report {
		t.Errorf("the report made again is another one:\n%s", got)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	redistest.Must(t, err)
	return string(text)
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"there is no scenario \"Z\"; there are A":      {"-only", "A,Z"},
		"-count: -1 repetitions":                       {"-count", "-1"},
		"-count: 0 repetitions":                        {"-count", "0"},
		"-only: no scenario is named":                  {"-only", ""},
		"-only: not with -from":                        {"-from", "results.json", "-only", "A"},
		"there are no arguments":                       {"A"},
		"-out: there is no folder examples/bench here": {}, // not in the root: nothing is written elsewhere
	} {
		var said bytes.Buffer
		if code := run(t.Context(), args, io.Discard, &said); code != exitUsage || !strings.Contains(said.String(), want) {
			t.Errorf("%q: exit code %d, %q; want %d and %q", args, code, said.String(), exitUsage, want)
		}
	}
}

// Figures that this program has not made are no report, and what was there stays.
func TestFromRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}":   "no figures",
		"null": "no figures",
		"[]":   "cannot unmarshal",
		`{"Cells":[{"Scenario":"Z","Point":"p","Entry":"e","Runs":[{}]}]}`:                               "measure again",
		`{"Cells":[{"Scenario":"H","Point":"1 held, once","Entry":"automutex, default","Runs":[{}]}]}`:   "measure again",
		`{"Cells":[{"Scenario":"H","Point":"1 held","Entry":"automutex, of another time","Runs":[{}]}]}`: "measure again",
	} {
		dir := t.TempDir()
		report, from := filepath.Join(dir, reportFile), filepath.Join(dir, "from.json")
		for file, content := range map[string]string{report: "mine", from: text} {
			redistest.Must(t, os.WriteFile(file, []byte(content), 0o600))
		}
		var said bytes.Buffer
		if code := run(t.Context(), []string{"-from", from, "-out", dir}, io.Discard, &said); code != exitFailed || !strings.Contains(said.String(), want) {
			t.Errorf("%s: exit code %d, %q; want %d and %q", text, code, said.String(), exitFailed, want)
		}
		if got := read(t, report); got != "mine" {
			t.Errorf("%s: the report is %q now", text, got)
		}
	}
}

// A worker that fails says why, and the program that hired it is told.
func TestWorkerThatFails(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	redistest.Must(t, err)
	b := &bench{self: self, stderr: io.Discard}
	for _, j := range []job{{Do: "nothing"}, {Do: "pairs", Contender: "nobody"}} {
		err := caught(func() { b.hire(t.Context(), j) })
		if err == nil || !strings.Contains(err.Error(), "there is no") {
			t.Errorf("%+v: %v, want what there is not", j, err)
		}
	}
}
