package automutextest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// recorder is a testing.TB whose failures are what is tested.
type recorder struct {
	testing.TB // the real one, for all the rest

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// record runs f as a test of its own, cleanups included, and gives its failures.
func record(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	alone := func(f func()) {
		ended := make(chan struct{})
		go func() { // ends with f, whose Fatal ends it too
			defer close(ended)
			f()
		}()
		<-ended
	}
	alone(func() { f(r) })
	for _, cleanup := range slices.Backward(r.cleanups) {
		alone(cleanup)
	}
	return strings.Join(r.failures, "\n")
}

// fails checks that f fails, with all these texts.
func fails(t *testing.T, f func(t testing.TB), want ...string) {
	t.Helper()
	got := record(t, f)
	if got == "" {
		t.Error("it did not fail")
		return
	}
	for _, text := range append(want, "automutextest: ") {
		if !strings.Contains(got, text) {
			t.Errorf("the failure does not say %q:\n%s", text, got)
		}
	}
}
