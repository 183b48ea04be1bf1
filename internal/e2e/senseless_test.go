package e2e

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

var updatePolicies = flag.Bool("update-policies", false, "write testdata/policies.txt anew")

// Each policy with each field of a rule: New accepts the pair, warns of a field that has no effect, or refuses it.
func TestPolicies_withEachField(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("What New says of each policy with each field. Written by go test ./internal/e2e -run TestPolicies_ -update-policies.\n\n")
	fields := []struct {
		name string
		set  func(*automutex.Rule)
	}{
		{"Limit", func(r *automutex.Rule) { r.Limit = 2 }},
		{"LimitField", func(r *automutex.Rule) { r.LimitField = &automutex.LimitField{Path: "max", Default: 3} }},
		{"Wait", func(r *automutex.Rule) { r.Wait = time.Second }},
		{"MaxHold", func(r *automutex.Rule) { r.MaxHold = time.Second }},
		{"Cooldown", func(r *automutex.Rule) { r.Cooldown = time.Second }},
		{"Rate", func(r *automutex.Rule) { r.Limit, r.Rate = 1, automutex.Rate{Starts: 1, Per: time.Second} }},
		{"Fence", func(r *automutex.Rule) { r.Fence = true }},
		{"Optional", func(r *automutex.Rule) { r.Optional = true }},
		{"InOrder", func(r *automutex.Rule) { r.InOrder = true }},
		{"OnArchive", func(r *automutex.Rule) { r.OnArchive = automutex.Continue }},
		{"MaxQueued", func(r *automutex.Rule) { r.MaxQueued = 9 }},
	}
	var notes strings.Builder
	for _, policy := range []automutex.Policy{
		automutex.Park, automutex.Retry, automutex.RetryIn(time.Second), automutex.Skip, automutex.Archive, automutex.Fail, automutex.Replace, automutex.Allow,
		automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil }),
	} {
		for _, f := range fields {
			rule := automutex.Rule{Task: "t", On: []string{"id"}, Busy: policy}
			f.set(&rule)
			var log redistest.Log
			_, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{rule}, Logger: log.Logger()})
			name, says, note := policy.String(), "fine", strings.TrimSpace(log.Text(slog.LevelWarn))
			switch {
			case err != nil:
				says, note = "REFUSED", err.Error()
			case note != "":
				says = "WARNED"
			}
			fmt.Fprintf(&b, "%-14s %-10s %s\n", name, f.name, says)
			if note != "" {
				fmt.Fprintf(&notes, "%s with %s: %s\n", name, f.name, note)
			}
		}
	}
	got := b.String() + "\n" + notes.String()
	path := filepath.Join("testdata", "policies.txt")
	if *updatePolicies {
		redistest.Must(t, os.WriteFile(path, []byte(got), 0o600))
		return
	}
	want, err := os.ReadFile(path)
	redistest.Must(t, err)
	if string(want) != got {
		t.Errorf("%s is not what New says; run this test with -update-policies and read the difference", path)
	}
}

// A task that was enqueued with one attempt cannot park. The Guard says so once for its rule.
func TestPark_oneAttemptIsWarnedOf(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Park}, {Task: "again", Busy: automutex.Retry}}})
		for _, task := range []string{"again", "work", "work"} {
			lease := r.take(task)
			id := r.enqueue(task, nil, asynq.MaxRetry(-1))
			r.awaitEvent(automutex.EventWaiting, id)
			r.free(lease)
			r.stage.next(t).returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		}
		if n := strings.Count(r.log.Text(slog.LevelWarn), "MaxRetry 0 or less"); n != 1 {
			t.Errorf("warned %d times, want once: %s", n, r.log.Text(slog.LevelWarn))
		}
	})
}
