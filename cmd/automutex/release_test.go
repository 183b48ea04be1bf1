package main

import (
	"debug/buildinfo"
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

// goreleaser has the keys of .ci/release/goreleaser.yaml that this project uses.
type goreleaser struct {
	Version     int    `yaml:"version"`
	ProjectName string `yaml:"project_name"`
	Before      struct {
		Hooks []string `yaml:"hooks"`
	} `yaml:"before"`
	Builds []struct {
		ID           string   `yaml:"id"`
		Dir          string   `yaml:"dir"`
		Main         string   `yaml:"main"`
		Binary       string   `yaml:"binary"`
		Env          []string `yaml:"env"`
		Flags        []string `yaml:"flags"`
		Ldflags      []string `yaml:"ldflags"`
		ModTimestamp string   `yaml:"mod_timestamp"`
		Goos         []string `yaml:"goos"`
		Goarch       []string `yaml:"goarch"`
	} `yaml:"builds"`
	Archives []struct {
		IDs             []string `yaml:"ids"`
		Formats         []string `yaml:"formats"`
		FormatOverrides []struct {
			Goos    string   `yaml:"goos"`
			Formats []string `yaml:"formats"`
		} `yaml:"format_overrides"`
		Files []any `yaml:"files"` // a path, or a map with src
	} `yaml:"archives"`
	Checksum struct {
		NameTemplate string `yaml:"name_template"`
	} `yaml:"checksum"`
	Changelog struct {
		Disable bool `yaml:"disable"`
	} `yaml:"changelog"`
	SBOMs []struct {
		Artifacts string `yaml:"artifacts"`
	} `yaml:"sboms"`
	Signs []struct {
		Cmd       string   `yaml:"cmd"`
		Artifacts string   `yaml:"artifacts"`
		Signature string   `yaml:"signature"`
		Args      []string `yaml:"args"`
	} `yaml:"signs"`
	Release struct {
		Draft        bool   `yaml:"draft"`
		ReplaceDraft bool   `yaml:"replace_existing_draft"`
		Prerelease   string `yaml:"prerelease"`
	} `yaml:"release"`
}

// The files for releases are well-formed, and name files and targets that there are.
func TestRelease_files(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, ".ci", "release", "goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var cfg goreleaser
	if err := yaml.Load(text, &cfg, yaml.WithKnownFields()); err != nil {
		t.Fatalf("goreleaser.yaml: %v", err)
	}
	if cfg.Version != 2 || len(cfg.Builds) != 1 || len(cfg.Archives) != 1 || !slices.Equal(cfg.Archives[0].IDs, []string{cfg.Builds[0].ID}) {
		t.Fatalf("goreleaser.yaml: %+v", cfg)
	}
	build := cfg.Builds[0]
	if _, err := os.Stat(filepath.Join(root, build.Dir, "main.go")); err != nil || build.Main != "." {
		t.Errorf("builds: %v", err)
	}
	made := map[string]bool{} // by a hook that goes before
	for _, hook := range cfg.Before.Hooks {
		program, file, _ := strings.Cut(hook, " ")
		if _, err := os.Stat(filepath.Join(root, program)); err != nil {
			t.Errorf("before: %v", err)
		}
		made[file] = true
	}
	for _, file := range cfg.Archives[0].Files {
		if from, ok := file.(map[string]any); ok {
			file = from["src"]
		}
		name, _ := file.(string)
		if made[name] {
			delete(made, name)
			continue
		}
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("archives: %v", err)
		}
	}
	if len(made) > 0 {
		t.Errorf("archives leave out what is made before: %v", made)
	}
	if len(cfg.SBOMs) != 1 || len(cfg.Signs) != 1 || cfg.Signs[0].Artifacts != "checksum" {
		t.Errorf("a release has no bill of materials, or no signature of its checksums: %+v, %+v", cfg.SBOMs, cfg.Signs)
	}
	if !cfg.Release.Draft || !cfg.Release.ReplaceDraft {
		t.Errorf("a release is published before its files are attested, or leaves a second draft: %+v", cfg.Release)
	}
	// Without it goreleaser takes a module's tag, web/v1.2.3, for the version, and makes a folder of it.
	steps, err := os.ReadFile(filepath.Join(root, "RELEASING.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(steps)) {
		if strings.Contains(line, "goreleaser release ") && !strings.Contains(line, " GORELEASER_CURRENT_TAG=v") {
			t.Errorf("RELEASING.md names no version: %s", line)
		}
		// GitHub starts no workflow for a push of more than three tags.
		if tags := strings.Count(line, "vX.Y.Z"); strings.Contains(line, "git push ") && tags > 3 {
			t.Errorf("RELEASING.md pushes %d tags at once, and no workflow starts: %s", tags, line)
		}
	}
	workflow, err := os.ReadFile(filepath.Join(root, ".github", "workflows", "release.yml"))
	if err != nil {
		t.Fatal(err)
	}
	install := regexp.MustCompile(`go install github\.com/goreleaser/\S+`)
	if tried, used := install.FindString(string(steps)), install.FindString(string(workflow)); tried == "" || tried != used {
		t.Errorf("RELEASING.md tries %q, the workflow has %q", tried, used)
	}
	targets, err := exec.Command("go", "tool", "dist", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range build.Goos {
		for _, arch := range build.Goarch {
			if !slices.Contains(strings.Fields(string(targets)), system+"/"+arch) {
				t.Errorf("Go does not build for %s/%s", system, arch)
			}
		}
	}
}

// The Dockerfile has instructions that there are, and what it builds is there.
func TestRelease_dockerfile(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	instruction := regexp.MustCompile(`^(FROM (--platform=\$BUILDPLATFORM )?\S+( AS \S+)?|ARG [A-Z]+( [A-Z]+)*|WORKDIR /\S*|COPY (--from=build )?\S+ \S+|RUN .+|USER \d+:\d+|ENTRYPOINT \[".+"\])$`)
	command := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if !instruction.MatchString(line) {
			t.Errorf("Dockerfile: %q is no instruction that this test knows", line)
		}
		if run, ok := strings.CutPrefix(line, "RUN "); ok {
			command = run
		}
	}
	ignored, err := os.ReadFile("Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		t.Fatal(err)
	}
	for _, used := range regexp.MustCompile(`(?m)^\s+\./(\S+)$`).FindAllStringSubmatch(string(work), -1) {
		if slices.Contains(strings.Split(string(ignored), "\n"), used[1]) {
			t.Errorf("Dockerfile.dockerignore leaves out %s, which go.work uses: nothing would build", used[1])
		}
	}
	// -n resolves flags and packages, and prints what would be run: a build without cgo from
	// nothing takes minutes.
	if !strings.Contains(command, "go build ") {
		t.Fatalf("Dockerfile: %q builds nothing", command)
	}
	// release.yml makes the image for two processors on one: what runs has to be of that one, and to cross-compile.
	if !strings.Contains(string(text), "\nFROM --platform=$BUILDPLATFORM ") || !strings.Contains(command, "GOOS=$TARGETOS GOARCH=$TARGETARCH ") {
		t.Errorf("Dockerfile: the image for another processor runs its programs: %q", command)
	}
	build := exec.Command("sh", "-c", strings.Replace(command, " -trimpath ", " -n -trimpath ", 1))
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil || !strings.Contains(string(out), "link") {
		t.Fatalf("%s: %v\n%.2000s", command, err, out)
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
