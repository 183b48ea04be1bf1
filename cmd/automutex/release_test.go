package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// goreleaser has the keys of .goreleaser.yaml that this project uses.
type goreleaser struct {
	Version     int    `yaml:"version"`
	ProjectName string `yaml:"project_name"`
	Builds      []struct {
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
		Files []string `yaml:"files"`
	} `yaml:"archives"`
	Checksum struct {
		NameTemplate string `yaml:"name_template"`
	} `yaml:"checksum"`
	Changelog struct {
		Disable bool `yaml:"disable"`
	} `yaml:"changelog"`
}

// The files for releases are well-formed, and name files and targets that there are.
func TestRelease_files(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var cfg goreleaser
	if err := yaml.Load(text, &cfg, yaml.WithKnownFields()); err != nil {
		t.Fatalf(".goreleaser.yaml: %v", err)
	}
	if cfg.Version != 2 || len(cfg.Builds) != 1 || len(cfg.Archives) != 1 || !slices.Equal(cfg.Archives[0].IDs, []string{cfg.Builds[0].ID}) {
		t.Fatalf(".goreleaser.yaml: %+v", cfg)
	}
	build := cfg.Builds[0]
	if _, err := os.Stat(filepath.Join(root, build.Dir, "main.go")); err != nil || build.Main != "." {
		t.Errorf("builds: %v", err)
	}
	for _, name := range cfg.Archives[0].Files {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("archives: %v", err)
		}
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
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	instruction := regexp.MustCompile(`^(FROM \S+( AS \S+)?|WORKDIR /\S*|COPY (--from=build )?\S+ \S+|RUN .+|USER \d+:\d+|ENTRYPOINT \[".+"\])$`)
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
	ignored, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		t.Fatal(err)
	}
	for _, used := range regexp.MustCompile(`(?m)^\s+\./(\S+)$`).FindAllStringSubmatch(string(work), -1) {
		if slices.Contains(strings.Split(string(ignored), "\n"), used[1]) {
			t.Errorf(".dockerignore leaves out %s, which go.work uses: nothing would build", used[1])
		}
	}
	// -n resolves flags and packages, and prints what would be run: a build without cgo from
	// nothing takes minutes.
	if !strings.Contains(command, "go build ") {
		t.Fatalf("Dockerfile: %q builds nothing", command)
	}
	build := exec.Command("sh", "-c", strings.Replace(command, " -trimpath ", " -n -trimpath ", 1))
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil || !strings.Contains(string(out), "link") {
		t.Fatalf("%s: %v\n%.2000s", command, err, out)
	}
}
