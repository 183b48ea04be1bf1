package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// result is what became of a mutant.
type result int

const (
	killed    result = iota // a test failed, or hung
	survived                // every suite passed
	noProgram               // it does not compile
)

// A suite is the arguments of one go test. hang bounds a mutant that never ends: it counts as
// found.
type suite []string

const hang = 4 * time.Minute

// suites returns what is run against the mutant, what finds most first.
func (m mutant) suites() []suite {
	lock, root := suite{"-short", "./lock"}, suite{"-short", "."}
	unique := suite{"-short", "./unique"}
	scenarios := suite{"-run", "^TestScenarios$", "./examples/trust/simulate"}
	switch {
	case strings.HasPrefix(m.file, "internal/decide/"):
		return []suite{{"./internal/decide"}, root, unique, scenarios}
	case strings.HasPrefix(m.file, "internal/wire/lua/claim"), m.file == "internal/claims/claims.go":
		return []suite{lock, unique, root, scenarios}
	case strings.HasPrefix(m.file, "internal/turn/"), strings.HasPrefix(m.file, "internal/parking/"):
		return []suite{{"./" + path.Dir(m.file)}, lock, root, scenarios}
	case strings.HasPrefix(m.file, "lock/"), strings.HasPrefix(m.file, "internal/wire/"), strings.HasPrefix(m.file, "internal/operate/"), strings.HasPrefix(m.file, "internal/controls/"):
		return []suite{lock, root, scenarios}
	}
	return []suite{root, unique, scenarios}
}

// try runs the suites against the mutant until one fails.
func (m mutant) try(ctx context.Context) (result, error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return 0, err
	}
	for _, s := range m.suites() {
		output, err := runSuite(ctx, overlay, s)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		var failed *exec.ExitError
		switch {
		case err == nil:
		case !errors.As(err, &failed) && !errors.Is(err, context.DeadlineExceeded):
			return 0, fmt.Errorf("go test: %w\n%s", err, output)
		case bytes.Contains(output, []byte("[build failed]")):
			return noProgram, nil
		default:
			return killed, nil
		}
	}
	return survived, nil
}

// runSuite runs go test with miniredis alone: a real server for each mutant takes too long.
func runSuite(ctx context.Context, overlay string, s suite) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, hang)
	defer cancel()
	args := append([]string{"test", "-overlay", overlay, "-failfast", "-vet=off", "-count=1"}, s...)
	command := exec.CommandContext(ctx, "go", args...)
	command.Env = append(os.Environ(), "AUTOMUTEX_TEST_REDIS=none")
	command.WaitDelay = 10 * time.Second
	output, err := command.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return output, err
}

// overlay writes the changed file to dir, and returns the file for go's -overlay.
func (m mutant) overlay(dir string) (string, error) {
	source, err := filepath.Abs(filepath.FromSlash(m.file))
	if err != nil {
		return "", err
	}
	src, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	edited := filepath.Join(dir, "edited"+filepath.Ext(m.file))
	if err := os.WriteFile(edited, []byte(string(src[:m.start])+m.after+string(src[m.end:])), 0o600); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{source: edited}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, b, 0o600)
}
