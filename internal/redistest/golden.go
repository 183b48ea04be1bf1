package redistest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Golden compares got with the file at path, or writes it if update is true.
func Golden(t testing.TB, update bool, path, got string) {
	t.Helper()
	if update {
		Must(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	Must(t, err)
	if got == string(want) {
		return
	}
	is, was := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("gone: %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("new: %s", line)
		}
	}
	t.Errorf("%s is not what happens: write it anew with the test's -update flag, and read the difference", path)
}
