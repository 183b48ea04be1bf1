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

	"github.com/automutex/automutex/internal/redistest"
)

// A release is a draft until its files are attested, with a bill of materials, and its checksums are signed. Its steps
// are those that work.
func TestRelease_files(t *testing.T) {
	t.Parallel()
	for _, want := range []string{"\nsboms:\n", "    artifacts: checksum\n", "  draft: true "} {
		if !strings.Contains(fromTop(t, ".ci/release/goreleaser.yaml"), want) {
			t.Errorf("goreleaser.yaml has no %q", want)
		}
	}
	steps, install := fromTop(t, ".github/RELEASING.md"), regexp.MustCompile(`go install github\.com/goreleaser/\S+`)
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
	if tried, used := install.FindString(steps), install.FindString(fromTop(t, ".github", "workflows",
		"release.yml")); tried == "" || tried != used {
		t.Errorf("RELEASING.md tries %q, the workflow has %q", tried, used)
	}
}

// What the Dockerfile builds is there, for another processor too, and nothing that go.work uses is left out.
func TestRelease_dockerfile(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	const here = "cmd/automutex/Dockerfile"
	text, ignored, work := fromTop(t, here), fromTop(t, here+".dockerignore"), fromTop(t, "go.work")
	for _, used := range regexp.MustCompile(`(?m)^\s+\./(\S+)$`).FindAllStringSubmatch(work, -1) {
		if slices.Contains(strings.Split(ignored, "\n"), used[1]) {
			t.Errorf("Dockerfile.dockerignore leaves out %s, which go.work uses: nothing would build", used[1])
		}
	}
	command := regexp.MustCompile(`(?m)^RUN (.*go build .*)$`).FindStringSubmatch(text)
	// What runs has to be of the processor that builds, and to cross-compile.
	if command == nil || !strings.Contains(text, "\nFROM --platform=$BUILDPLATFORM ") ||
		!strings.Contains(command[1], "GOOS=$TARGETOS GOARCH=$TARGETARCH ") {
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
	redistest.Long(t)
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("releases are made on Linux")
	}
	file, command := filepath.Join(t.TempDir(), "new", "notices"), filepath.Join(t.TempDir(), "automutex")
	for _, run := range [][]string{{filepath.Join("..", "..", ".ci", "release", "notices"), file},
		{"go", "build", "-o", command, "."}} {
		if out, err := exec.Command(run[0], run[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", run, err, out)
		}
	}
	text, err := os.ReadFile(file)
	redistest.Must(t, err)
	info, err := buildinfo.ReadFile(command)
	redistest.Must(t, err)
	// mousetrap: on Windows alone
	wants := []string{"Go " + info.GoVersion, "github.com/inconshreveable/mousetrap v1.", "htmx, in the page",
		"uPlot, in the page"}
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

// CHANGELOG.md has the form of Keep a Changelog 1.1.0: Unreleased first, then releases with a date, the newest first,
// and known headings in each.
func TestChangelog_form(t *testing.T) {
	t.Parallel()
	text := fromTop(t, "CHANGELOG.md")
	release := regexp.MustCompile(`^## \[\d+\.\d+\.\d+(?:-[0-9A-Za-z.]+)?\] - (\d{4}-\d\d-\d\d)$`)
	before := "9"
	for i, section := range regexp.MustCompile(`(?m)^## .*$`).FindAllString("## \n"+text, -1)[1:] {
		m := release.FindStringSubmatch(section)
		switch {
		case (i == 0) != (section == "## [Unreleased]"):
			t.Errorf("CHANGELOG.md: the first section, and no other, is Unreleased: %s", section)
		case i > 0 && (m == nil || m[1] > before):
			t.Errorf("CHANGELOG.md: %s is no release with a date, or stands below an older one", section)
		case i > 0:
			before = m[1]
		}
	}
	for _, heading := range regexp.MustCompile(`(?m)^### (.*)$`).FindAllStringSubmatch(text, -1) {
		if !slices.Contains([]string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, heading[1]) {
			t.Errorf("CHANGELOG.md: %s is no heading of Keep a Changelog", heading[1])
		}
	}
}

// A release that a pushed tag would spoil is refused before the tags, and so is a change of what was released:
// .ci/release/ready and .ci/changelog, in a repository that is ready for v0.2.0.
func TestRelease_scripts(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("releases are made on Linux")
	}
	const ready, changelog = ".ci/release/ready v0.2.0", "PATH=$PWD/bin:$PATH .ci/changelog" // a go that tests nothing
	for name, c := range map[string]struct {
		run, change, want string
		exit              int
	}{
		"ready":         {ready, "", "v0.2.0 can be tagged", 0},
		"no version":    {".ci/release/ready 0.2.0", "", "usage:", 2},
		"zero in front": {".ci/release/ready v0.02.0", "", "usage:", 2},
		"dirty":         {ready, "echo >>go.mod", "not committed:  M go.mod", 1},
		"other version": {".ci/release/ready v0.3.0", "", "metrics/go.mod requires github.com/automutex/automutex " +
			"v0.2.0, want v0.3.0", 1},
		"one module behind": {ready, "sed -i s/v0.2.0/v0.1.0/ metrics/go.mod; git commit -qam x",
			"metrics/go.mod requires github.com/automutex/automutex v0.1.0", 1},
		"web behind": {ready, "sed -i /web/s/v0.2.0/v0.1.0/ cmd/automutex/go.mod; git commit -qam x",
			"cmd/automutex/go.mod requires github.com/automutex/automutex/web v0.1.0", 1},
		"no section": {ready, "sed -i '/0.2.0/,/new/d' CHANGELOG.md; git commit -qam x",
			`is "## [0.1.0] - 2026-01-01"`, 1},
		"empty section": {ready, "sed -i /new/d CHANGELOG.md; git commit -qam x", "says nothing of 0.2.0", 1},
		"left in Unreleased": {ready, "sed -i '/Unreleased/a Left.' CHANGELOG.md; git commit -qam x",
			"move what is under Unreleased", 1},
		"tag elsewhere":   {ready, "git tag web/v0.2.0 HEAD^", "the tag web/v0.2.0 is on another commit", 1},
		"older than last": {ready, "git tag v0.10.0 HEAD^", "the last release is v0.10.0: v0.2.0 is older", 1},
		"after its trial": {ready, "git tag v0.2.0-rc.1 HEAD^", "can be tagged", 0},
		"trial after it": {".ci/release/ready v0.2.0-rc.1", "git tag v0.2.0 HEAD^",
			"the last release is v0.2.0: v0.2.0-rc.1 is older", 1},

		"same": {changelog, "git tag v0.2.0", "", 0},
		"next": {changelog, "git tag v0.2.0; sed -i '/Unreleased/a ## [0.3.0] - 2026-01-03' CHANGELOG.md", "", 0},
		"changed": {changelog, "git tag v0.2.0; sed -i s/Old/Older/ CHANGELOG.md",
			"was released with v0.2.0 has changed", 1},
		"gone":           {changelog, "git tag v0.2.0; sed -i '/0.2.0/,/new/d' CHANGELOG.md", "has changed", 1},
		"one more below": {changelog, "git tag v0.2.0; echo '## [0.0.9] - 2025-01-01' >>CHANGELOG.md", "has changed", 1},
		"no release":     {changelog, "sed -i s/Old/Older/ CHANGELOG.md", "", 0},
		"cut short":      {changelog, "git rev-parse HEAD >.git/shallow", "git fetch --unshallow", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range map[string]string{
				".ci/release/ready": fromTop(t, ".ci/release/ready"), ".ci/changelog": fromTop(t, ".ci/changelog"),
				"bin/go":         "#!/bin/sh\n",
				"go.mod":         "module github.com/automutex/automutex\n",
				"metrics/go.mod": "require (\n\tgithub.com/automutex/automutex v0.2.0 // a comment\n)\n",
				"web/go.mod":     "require (\n\tgithub.com/automutex/automutex v0.2.0\n)\n",
				"cmd/automutex/go.mod": "require (\n\tgithub.com/automutex/automutex " +
					"v0.2.0\n\tgithub.com/automutex/automutex/web v0.2.0\n)\n",
				"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-02\n\nWhat is new.\n\n## " +
					"[0.1.0] - 2026-01-01\n\nOld.\n",
			} {
				file = filepath.Join(root, filepath.FromSlash(file))
				redistest.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o700)))
			}
			cmd := exec.Command("bash", "-c",
				"git init -q; git add -A; git commit -qm one; git commit -q --allow-empty -m two; "+c.change+"\n"+c.run)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
				"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
			out, _ := cmd.CombinedOutput() // the exit code says it
			if exit := cmd.ProcessState.ExitCode(); exit != c.exit || !strings.Contains(string(out), c.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", exit, c.exit, c.want, out)
			}
		})
	}
}

func fromTop(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
	redistest.Must(t, err)
	return string(text)
}
