package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A release that a pushed tag would spoil is refused before the tags: .ci/release/ready in a repository of its own.
func TestRelease_ready(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  string // run in a repository that is ready for v0.2.0
		version string // v0.2.0 where empty
		want    string
		exit    int
	}{
		"ready":              {want: "v0.2.0 can be tagged"},
		"tagged here":        {change: "git tag v0.2.0; git tag web/v0.2.0", want: "can be tagged"},
		"no version":         {version: "0.2.0", want: "usage:", exit: 2},
		"zero in front":      {version: "v0.02.0", want: "usage:", exit: 2},
		"dirty":              {change: "echo >>go.mod", want: "not committed:  M go.mod", exit: 1},
		"new file":           {change: "echo >new.go", want: "not committed: ?? new.go", exit: 1},
		"other version":      {version: "v0.3.0", want: "metrics/go.mod requires github.com/automutex/automutex v0.2.0, want v0.3.0", exit: 1},
		"one module behind":  {change: "sed -i.was s/v0.2.0/v0.1.0/ metrics/go.mod; rm metrics/*.was; git commit -qam x", want: "metrics/go.mod requires github.com/automutex/automutex v0.1.0", exit: 1},
		"web behind":         {change: "sed -i.was '/web/s/v0.2.0/v0.1.0/' cmd/automutex/go.mod; rm cmd/automutex/*.was; git commit -qam x", want: "cmd/automutex/go.mod requires github.com/automutex/automutex/web v0.1.0", exit: 1},
		"no section":         {change: "printf '## [Unreleased]\n\nNew.\n\n## [0.1.0] - 2026-01-01\n\nOld.\n' >CHANGELOG.md; git commit -qam x", want: `is "## [0.1.0] - 2026-01-01"`, exit: 1},
		"empty section":      {change: "printf '## [Unreleased]\n\n## [0.2.0] - 2026-01-02\n\n## [0.1.0] - 2026-01-01\n\nOld.\n' >CHANGELOG.md; git commit -qam x", want: "says nothing of 0.2.0", exit: 1},
		"left in Unreleased": {change: "printf '## [Unreleased]\n\nNew.\n\n## [0.2.0] - 2026-01-02\n\nNew.\n' >CHANGELOG.md; git commit -qam x", want: "move what is under Unreleased", exit: 1},
		"tag elsewhere":      {change: "git tag web/v0.2.0 HEAD^", want: "the tag web/v0.2.0 is on another commit", exit: 1},
		"older than last":    {change: "git tag v0.10.0 HEAD^", want: "the last release is v0.10.0: v0.2.0 is older", exit: 1},
		"after its trial":    {change: "git tag v0.2.0-rc.1 HEAD^", want: "can be tagged"},
		"trial after it":     {change: "git tag v0.2.0 HEAD^", version: "v0.2.0-rc.1", want: "the last release is v0.2.0: v0.2.0-rc.1 is older", exit: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t, map[string]string{
				"go.mod":               "module github.com/automutex/automutex\n",
				"metrics/go.mod":       "require (\n\tgithub.com/automutex/automutex v0.2.0 // a comment\n)\n",
				"web/go.mod":           "require (\n\tgithub.com/automutex/automutex v0.2.0\n)\n",
				"cmd/automutex/go.mod": "require (\n\tgithub.com/automutex/automutex v0.2.0\n\tgithub.com/automutex/automutex/web v0.2.0\n)\n",
				"CHANGELOG.md":         "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-02\n\nWhat is new.\n\n## [0.1.0] - 2026-01-01\n\nOld.\n",
			}, ".ci/release/ready")
			r.must("git commit -q --allow-empty -m two; " + c.change)
			version := c.version
			if version == "" {
				version = "v0.2.0"
			}
			if out, exit := r.run(".ci/release/ready " + version); exit != c.exit || !strings.Contains(out, c.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", exit, c.exit, c.want, out)
			}
		})
	}
}

// What was released stays in CHANGELOG.md as it was: .ci/changelog, but for the form, which TestChangelog_form holds.
func TestRelease_changelog(t *testing.T) {
	t.Parallel()
	const first, second = "## [0.1.0] - 2026-01-01\n\nOld.\n", "## [0.2.0] - 2026-01-02\n\nNew.\n\n"
	for name, c := range map[string]struct {
		text   string // CHANGELOG.md of the commit after v0.1.0
		change string
		exit   int
	}{
		"same":           {text: "## [Unreleased]\n\nNew.\n\n" + first},
		"next":           {text: "## [Unreleased]\n\n" + second + first},
		"changed":        {text: "## [Unreleased]\n\n" + strings.Replace(first, "Old", "Older", 1), exit: 1},
		"another date":   {text: "## [Unreleased]\n\n" + strings.Replace(first, "01-01", "01-02", 1), exit: 1},
		"gone":           {text: "## [Unreleased]\n\n" + second, exit: 1},
		"one more below": {text: "## [Unreleased]\n\n" + first + "\n## [0.0.9] - 2025-01-01\n", exit: 1},
		"no release":     {text: "## [Unreleased]\n\n" + second, change: "git tag -d v0.1.0 >/dev/null"},
		"cut short":      {text: "## [Unreleased]\n\n" + second, change: "git tag -d v0.1.0 >/dev/null; git rev-parse HEAD >.git/shallow", exit: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t, map[string]string{"CHANGELOG.md": first, "next": c.text, "bin/go": "#!/bin/sh\n"}, ".ci/changelog")
			r.must("git tag v0.1.0; mv next CHANGELOG.md; git commit -qam two; " + c.change)
			if out, exit := r.run("PATH=$PWD/bin:$PATH .ci/changelog"); exit != c.exit {
				t.Errorf("exit code %d, want %d:\n%s", exit, c.exit, out)
			}
		})
	}
}

// repository is a git repository of a test, with one commit.
type repository struct {
	t    *testing.T
	root string
}

// newRepository makes a repository of these files and of scripts of this project.
func newRepository(t *testing.T, files map[string]string, scripts ...string) repository {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("releases are made on Linux")
	}
	r := repository{t, t.TempDir()}
	for _, script := range scripts {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(script)))
		if err != nil {
			t.Fatal(err)
		}
		files[script] = string(text)
	}
	for name, text := range files {
		file := filepath.Join(r.root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.must("git init -q; git add -A; git commit -qm one")
	return r
}

// run runs a command of bash's, and returns what it printed and its exit code.
func (r repository) run(command string) (out string, exit int) {
	r.t.Helper()
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func (r repository) must(commands string) {
	r.t.Helper()
	if out, exit := r.run("set -e; " + commands); exit != 0 {
		r.t.Fatalf("%s: %d: %s", commands, exit, out)
	}
}
