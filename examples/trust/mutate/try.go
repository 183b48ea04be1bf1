package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// result is what became of a mutant.
type result int

const (
	killed    result = iota // a test failed, or hung
	survived                // every suite passed
	noProgram               // it does not compile
)

// A suite is a package's tests, and flags for them. hang bounds a mutant that never ends: it counts as
// found.
type suite struct {
	pkg   string
	flags []string
}

const hang = 4 * time.Minute

// suites returns what is run against the mutant, what finds most first.
func (m mutant) suites() []suite {
	short := func(pkg string) suite { return suite{pkg, []string{"-test.short"}} }
	lock, unique, e2e := short("lock"), short("unique"), short("internal/e2e")
	scenarios := suite{"examples/trust/simulate", []string{"-test.run=^TestScenarios$"}}
	switch {
	case strings.HasPrefix(m.file, "internal/decide/"):
		return []suite{short("internal/decide"), e2e, unique, scenarios}
	case strings.HasPrefix(m.file, "internal/wire/lua/claim"), m.file == "internal/claims/claims.go":
		return []suite{lock, unique, e2e, scenarios}
	case strings.HasPrefix(m.file, "internal/turn/"), strings.HasPrefix(m.file, "internal/parking/"):
		return []suite{short(path.Dir(m.file)), lock, e2e, scenarios}
	case strings.HasPrefix(m.file, "lock/"), strings.HasPrefix(m.file, "internal/"):
		return []suite{lock, e2e, scenarios}
	}
	return []suite{e2e, unique, scenarios}
}

// try runs the suites against the mutant until one fails.
func (m mutant) try(ctx context.Context, built *binaries) (result, error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	edited, err := m.edited()
	if err != nil {
		return 0, err
	}
	env := []string{"TMPDIR=" + dir, scriptsEnv + "=" + dir} // tests wait for others with the same TMPDIR
	script := path.Ext(m.file) == ".lua"
	if script {
		if err := writeScripts(dir, m.file, edited); err != nil {
			return 0, err
		}
	}
	for _, s := range m.suites() {
		var failed *exec.ExitError
		var program string
		if script {
			program, err = built.of(ctx, s.pkg)
		} else {
			program = filepath.Join(dir, path.Base(s.pkg)+".test")
			if err = compile(ctx, s.pkg, program, dir, m.file, edited); errors.As(err, &failed) && ctx.Err() == nil {
				return noProgram, nil
			}
		}
		if err != nil {
			return 0, err
		}
		output, err := s.run(ctx, program, env)
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case err == nil:
		case !errors.As(err, &failed) && !errors.Is(err, context.DeadlineExceeded):
			return 0, fmt.Errorf("%s: %w\n%s", program, err, output)
		default:
			return killed, nil
		}
	}
	return survived, nil
}

// writeScripts writes all scripts to dir, that in file with another text.
func writeScripts(dir, file string, text []byte) error {
	scripts := filepath.Join(dir, "lua")
	if err := os.CopyFS(scripts, os.DirFS(path.Dir(file))); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(scripts, path.Base(file)), text, 0o600)
}

// binaries are tests that read the scripts from the folder that scriptsEnv names. Each is built once: a mutant
// of a script costs no compiling and no linking.
type binaries struct {
	dir string

	mu   sync.Mutex // guards done, and builds one at a time
	done map[string]bool
}

const scriptsEnv = "AUTOMUTEX_MUTATE_SCRIPTS"

func (b *binaries) of(ctx context.Context, pkg string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	program := filepath.Join(b.dir, path.Base(pkg)+".test")
	if b.done[pkg] {
		return program, nil
	}
	const file = "internal/wire/scripts.go"
	src, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	reads := strings.NewReplacer("\t\"embed\"\n", "\t\"os\"\n", "//go:embed lua/*.lua\nvar luaFiles embed.FS\n",
		"var luaFiles = os.DirFS(os.Getenv(\""+scriptsEnv+"\")).(interface{ ReadFile(string) ([]byte, error) })\n").Replace(string(src))
	if err := compile(ctx, pkg, program, b.dir, file, []byte(reads)); err != nil {
		return "", fmt.Errorf("the tests of %s, with scripts from a folder: %w", pkg, err)
	}
	b.done[pkg] = true
	return program, nil
}

// run runs the tests with miniredis alone: a real server for each mutant takes too long.
func (s suite) run(ctx context.Context, program string, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, hang)
	defer cancel()
	command := exec.CommandContext(ctx, program, append([]string{"-test.failfast"}, s.flags...)...)
	command.Dir = filepath.FromSlash(s.pkg)
	command.Env = append(append(os.Environ(), "AUTOMUTEX_TEST_REDIS=none"), env...)
	command.WaitDelay = 10 * time.Second
	output, err := command.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return output, err
}

// edited returns the changed file.
func (m mutant) edited() ([]byte, error) {
	src, err := os.ReadFile(filepath.FromSlash(m.file))
	if err != nil {
		return nil, err
	}
	return []byte(string(src[:m.start]) + m.after + string(src[m.end:])), nil
}

// compile builds the tests of a package with the text of one file changed, in an overlay that it leaves in dir.
func compile(ctx context.Context, pkg, program, dir, file string, text []byte) error {
	source, err := filepath.Abs(filepath.FromSlash(file))
	if err != nil {
		return err
	}
	edited := filepath.Join(dir, "edited.go")
	if err := os.WriteFile(edited, text, 0o600); err != nil {
		return err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: edited}})
	if err != nil {
		return err
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return err
	}
	output, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, "./"+pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test -c: %w\n%s", err, output)
	}
	return nil
}
