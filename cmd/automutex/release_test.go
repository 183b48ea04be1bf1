package main

import (
	"debug/buildinfo"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// The files for releases are well-formed, and name files that there are. A release is a draft until its files are attested,
// with a bill of materials, and its checksums are signed.
func TestRelease_files(t *testing.T) {
	t.Parallel()
	read := func(path ...string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var cfg struct {
		Version  int
		Builds   []struct{ Dir, Main string }
		Before   struct{ Hooks []string }
		Archives []struct{ Files []any } // a path, or a map with src
		SBOMs    []struct{ Artifacts string }
		Signs    []struct{ Artifacts string }
		Release  struct {
			Draft        bool
			ReplaceDraft bool `yaml:"replace_existing_draft"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(".ci", "release", "goreleaser.yaml")), &cfg); err != nil || cfg.Version != 2 || len(cfg.Builds) != 1 || len(cfg.Archives) != 1 {
		t.Fatalf("goreleaser.yaml: %+v, %v", cfg, err)
	}
	if len(cfg.SBOMs) != 1 || len(cfg.Signs) != 1 || cfg.Signs[0].Artifacts != "checksum" || !cfg.Release.Draft || !cfg.Release.ReplaceDraft {
		t.Errorf("a release has no bill of materials, no signature of its checksums, or is published before its files are attested: %+v", cfg)
	}
	names := []string{filepath.Join(cfg.Builds[0].Dir, cfg.Builds[0].Main, "main.go")}
	made := map[string]bool{} // by a hook that goes before
	for _, hook := range cfg.Before.Hooks {
		program, file, _ := strings.Cut(hook, " ")
		names, made[file] = append(names, program), true
	}
	for _, file := range cfg.Archives[0].Files {
		if from, ok := file.(map[string]any); ok {
			file = from["src"]
		}
		if name, _ := file.(string); !made[name] {
			names = append(names, name)
		} else {
			delete(made, name)
		}
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join("..", "..", name)); err != nil {
			t.Error(err)
		}
	}
	if len(made) > 0 {
		t.Errorf("archives leave out what is made before: %v", made)
	}
	steps, install := read(".github/RELEASING.md"), regexp.MustCompile(`go install github\.com/goreleaser/\S+`)
	for line := range strings.Lines(steps) {
		// Without it goreleaser takes a module's tag, web/v1.2.3, for the version, and makes a folder of it.
		if strings.Contains(line, "goreleaser release ") && !strings.Contains(line, " GORELEASER_CURRENT_TAG=v") {
			t.Errorf("RELEASING.md names no version: %s", line)
		}
		// GitHub starts no workflow for a push of more than three tags.
		if tags := strings.Count(line, "vX.Y.Z"); strings.Contains(line, "git push ") && tags > 3 {
			t.Errorf("RELEASING.md pushes %d tags at once, and no workflow starts: %s", tags, line)
		}
	}
	if tried, used := install.FindString(steps), install.FindString(read(".github", "workflows", "release.yml")); tried == "" || tried != used {
		t.Errorf("RELEASING.md tries %q, the workflow has %q", tried, used)
	}
}

// What the Dockerfile builds is there, for another processor too, and nothing that go.work uses is left out.
func TestRelease_dockerfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("Dockerfile")
	ignored, err2 := os.ReadFile("Dockerfile.dockerignore")
	work, err3 := os.ReadFile(filepath.Join("..", "..", "go.work"))
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, used := range regexp.MustCompile(`(?m)^\s+\./(\S+)$`).FindAllStringSubmatch(string(work), -1) {
		if slices.Contains(strings.Split(string(ignored), "\n"), used[1]) {
			t.Errorf("Dockerfile.dockerignore leaves out %s, which go.work uses: nothing would build", used[1])
		}
	}
	command := regexp.MustCompile(`(?m)^RUN (.*go build .*)$`).FindStringSubmatch(string(text))
	// What runs has to be of the processor that builds, and to cross-compile.
	if command == nil || !strings.Contains(string(text), "\nFROM --platform=$BUILDPLATFORM ") || !strings.Contains(command[1], "GOOS=$TARGETOS GOARCH=$TARGETARCH ") {
		t.Fatalf("Dockerfile builds nothing, or runs programs of another processor: %q", command)
	}
	// -n resolves flags and packages, and prints what would be run: a build without cgo from nothing takes minutes.
	build := exec.Command("sh", "-c", strings.Replace(command[1], " -trimpath ", " -n -trimpath ", 1))
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil || !strings.Contains(string(out), "link") {
		t.Fatalf("%s: %v\n%.2000s", command[1], err, out)
	}
}

// The licences of what is linked go with the command: of each module in the binary on any system, and of Go.
func TestRelease_notices(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("releases are made on Linux")
	}
	file := filepath.Join(t.TempDir(), "new", "notices")
	if out, err := exec.Command(filepath.Join("..", "..", ".ci", "release", "notices"), file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(string(build(t)))
	if err != nil {
		t.Fatal(err)
	}
	wants := []string{"Go " + info.GoVersion, "github.com/inconshreveable/mousetrap v1.", "htmx, in the page", "uPlot, in the page"} // mousetrap: on Windows alone
	for _, module := range info.Deps {
		if !strings.HasPrefix(module.Path, "github.com/automutex/automutex") {
			wants = append(wants, module.Path+" "+module.Version+"\n")
		}
	}
	if len(wants) < 10 {
		t.Errorf("the command contains %q", wants)
	}
	for _, want := range wants {
		_, section, _ := strings.Cut(string(text), "\n== "+want)
		section, _, _ = strings.Cut(section, "\n== ")
		if len(section) < 500 {
			t.Errorf("the licence of %q is %q", want, section)
		}
	}
	if strings.Contains(string(text), "== github.com/automutex/") {
		t.Error("the notices call this project somebody else's")
	}
}

// CHANGELOG.md has the form of Keep a Changelog 1.1.0: Unreleased first, then releases with a
// date, the newest first, and known headings in each.
func TestChangelog_form(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range changelogProblems(string(text)) {
		t.Errorf("CHANGELOG.md: %s", problem)
	}
}

// What is wrong is found.
func TestChangelog_mistakes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"# Changelog\n\n## [1.0.0] - 2026-01-02\n":                                               "Unreleased",
		"# Changelog\n\n## [Unreleased]\n\n## [1.0.0]\n":                                         "no release with a date",
		"# Changelog\n\n## [Unreleased]\n\n### News\n":                                           "no heading of Keep a Changelog",
		"# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-01-02\n\n## [1.1.0] - 2026-01-03\n": "newest first",
		"# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-01-02\n\n## [Unreleased]\n":         "Unreleased",
	} {
		if got := strings.Join(changelogProblems(text), "; "); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func changelogProblems(text string) (problems []string) {
	release := regexp.MustCompile(`^## \[(\d+)\.(\d+)\.(\d+)(?:-[0-9A-Za-z.]+)?\] - \d{4}-\d\d-\d\d$`)
	sections, before := 0, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "### "); ok && !slices.Contains([]string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, name) {
			problems = append(problems, line+" is no heading of Keep a Changelog")
		}
		if !strings.HasPrefix(line, "## ") {
			continue
		}
		sections++
		if (line == "## [Unreleased]") != (sections == 1) {
			problems = append(problems, "the first section, and no other, is Unreleased: "+line)
			continue
		}
		if sections == 1 {
			continue
		}
		m := release.FindStringSubmatch(line)
		if m == nil {
			problems = append(problems, line+" is no release with a date: ## [1.2.3] - 2026-01-02")
			continue
		}
		version := ""
		for _, part := range m[1:] {
			version += strings.Repeat("0", max(0, 9-len(part))) + part
		}
		if before != "" && version >= before {
			problems = append(problems, line+" stands below an older one: the newest first")
		}
		before = version
	}
	if sections == 0 {
		problems = append(problems, "there is no section Unreleased")
	}
	return problems
}

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
