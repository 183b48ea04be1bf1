package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/unique"
)

// The tests of the table "What happens when" in docs/guide.md: TestPolicy_*, and in files of their own TestPark_*,
// TestReplace_*, TestPaused_* and TestBackend_*. Its column "key busy" is tested here, "held by the task's own earlier
// attempt" in attempts_test.go, "no attempts left" in both.

// busyRig is a rig with one rule for tasks of type "work", keyed on id, and with the key of id 1 taken.
func busyRig(t *testing.T, s *redistest.Server, rule automutex.Rule, o setup) (*rig, func()) {
	t.Helper()
	rule.Task, rule.On = "work", onID
	o.rules = []automutex.Rule{rule}
	r := start(t, s, o)
	lease := r.take("work", "1")
	return r, func() { t.Helper(); r.free(lease) }
}

var one = map[string]int{"id": 1}

func TestPolicy_retry(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := busyRig(t, s, automutex.Rule{Busy: automutex.Retry}, setup{served: untouched(t)})
		began := time.Now()
		id := r.enqueueOne()
		info := r.awaitRetried(id, 0)
		r.none()
		says(t, info.LastErr, `rule "work"`, r.lockOf("work", "1").Key(), "busy", "somebody-else")
		event := r.awaitEvent(automutex.EventRetried, id)
		if event.Delay < time.Second || event.Delay > 5*time.Second || event.Err != nil { // EventBusy says why
			t.Errorf("it comes back after %s, not after 1 to 5 s; %v", event.Delay, event.Err)
		}
		// asynq keeps whole seconds.
		early, late := began.Add(event.Delay-time.Second), time.Now().Add(event.Delay)
		if info.NextProcessAt.Before(early) || info.NextProcessAt.After(late) {
			t.Errorf("asynq has it at %s, not within %s and %s", info.NextProcessAt, early, late)
		}
		free()
		r.rerun(id)
		r.finish(id)
		r.wantLocked(false, "work", "1")
	})
}

func TestPolicy_retryIn(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, _ := busyRig(t, s, automutex.Rule{Busy: automutex.RetryIn(90 * time.Second)}, setup{})
		began := time.Now()
		id := r.enqueueOne()
		info := r.awaitRetried(id, 0)
		r.none()
		if event := r.awaitEvent(automutex.EventRetried, id); event.Delay != 90*time.Second ||
			event.Policy != automutex.RetryIn(90*time.Second) {
			t.Errorf("got %+v", event)
		}
		early, late := began.Add(89*time.Second), time.Now().Add(90*time.Second)
		if info.NextProcessAt.Before(early) || info.NextProcessAt.After(late) {
			t.Errorf("asynq has it at %s, not within %s and %s", info.NextProcessAt, early, late)
		}
	})
}

func TestPolicy_skip(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := busyRig(t, s, automutex.Rule{Busy: automutex.Skip}, setup{})
		for _, attempts := range []int{3, 0} {
			id := r.enqueueOne(asynq.MaxRetry(attempts))
			r.awaitDone(id)
			r.none()
			if event := r.awaitEvent(automutex.EventSkipped, id); event.Policy != automutex.Skip ||
				event.Key != r.lockOf("work", "1").Key() {
				t.Errorf("got %+v", event)
			}
		}
		for range 2 {
			claimed, err := r.once(unique.Rule{Task: "work", On: onID, Until: unique.UntilStart}).
				Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Retention(time.Hour))
			redistest.Must(t, err)
			r.awaitDone(claimed.ID)
		}
		if log := r.log.Text(slog.LevelWarn); strings.Count(log, "no run may have seen the change") != 1 {
			t.Errorf("the log says %q", log)
		}
		free()
		r.finish(r.enqueueOne())
	})
}

func TestPolicy_archive(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		told, served := telling()
		r, _ := busyRig(t, s, automutex.Rule{Busy: automutex.Archive}, setup{served: served})
		for _, attempts := range []int{3, 0} {
			id := r.enqueueOne(asynq.MaxRetry(attempts))
			info := r.awaitArchived(id)
			r.none()
			if !strings.Contains(info.LastErr, r.lockOf("work", "1").Key()) || info.Retried != 0 {
				t.Errorf("archived after %d attempts with %q", info.Retried, info.LastErr)
			}
			if err := <-told; !errors.Is(err, asynq.SkipRetry) || !errors.Is(err, automutex.ErrBusy) {
				t.Errorf("the ErrorHandler was told %v", err)
			}
		}
	})
}

func TestPolicy_fail(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		told, served := telling()
		r, _ := busyRig(t, s, automutex.Rule{Busy: automutex.Fail}, setup{served: served})
		check := func(info *asynq.TaskInfo) {
			t.Helper()
			says(t, info.LastErr, r.lockOf("work", "1").Key())
			var busy *automutex.BusyError
			if err := <-told; !errors.As(err, &busy) || busy.Rule != "work" {
				t.Errorf("the ErrorHandler was told %v", err)
			}
		}
		info := r.awaitRetried(r.enqueueOne(), 1)
		check(info)
		if until := time.Until(info.NextProcessAt); until < 30*time.Minute {
			t.Errorf("it comes back in %s, not when the server's own RetryDelayFunc says", until)
		}
		check(r.awaitArchived(r.enqueueOne(asynq.MaxRetry(0))))
		r.none()
	})
}

// answers are what fn of AfterFailure may return, by the payload's "say".
func answers(_ context.Context, t *asynq.Task, busy *automutex.BusyError) error {
	switch string(t.Payload()) {
	case `{"id":1,"say":"done"}`:
		return nil
	case `{"id":1,"say":"failed"}`:
		return errors.New("no luck")
	case `{"id":1,"say":"busy"}`:
		return busy
	case `{"id":1,"say":"wrapped"}`:
		return fmt.Errorf("later, please: %w", busy)
	case `{"id":1,"say":"copy"}`:
		again := *busy
		return &again
	case `{"id":1,"say":"archive"}`:
		return fmt.Errorf("never mind: %w", asynq.SkipRetry)
	case `{"id":1,"say":"drop"}`:
		return fmt.Errorf("never mind: %w", asynq.RevokeTask)
	case `{"id":1,"say":"hour"}`:
		return automutex.RetryAfter(time.Hour, busy)
	}
	return errors.New("unexpected payload")
}

func TestPolicy_afterFailure(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		given := make(chan *automutex.BusyError, 10)
		r, free := busyRig(t, s, automutex.Rule{Busy: automutex.AfterFailure(func(ctx context.Context, t *asynq.Task,
			busy *automutex.BusyError) error {
			given <- busy
			return answers(ctx, t, busy)
		})}, setup{})
		enqueue := func(say string, options ...asynq.Option) string {
			t.Helper()
			id := r.enqueue("work", `{"id":1,"say":"`+say+`"}`, options...)
			select {
			case busy := <-given:
				if busy.Rule != "work" || busy.Key != r.lockOf("work", "1").Key() || busy.Holder != "somebody-else" ||
					busy.SameTask || busy.ExpiresIn <= 0 {
					t.Errorf("AfterFailure was given %+v", busy)
				}
			case <-time.After(patience):
				t.Fatal("AfterFailure is not asked")
			}
			return id
		}
		r.awaitDone(enqueue("done"))
		if info := r.awaitRetried(enqueue("failed"), 1); info.LastErr != "no luck" {
			t.Errorf("the last error is %q", info.LastErr)
		}
		if info := r.awaitArchived(enqueue("archive")); !strings.HasPrefix(info.LastErr, "never mind") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.awaitDropped(enqueue("drop"))
		if until := time.Until(r.awaitRetried(enqueue("hour"), 0).NextProcessAt); until < 59*time.Minute {
			t.Errorf("it comes back in %s", until)
		}
		again := []string{enqueue("busy"), enqueue("wrapped"), enqueue("copy")}
		for i, id := range again {
			info := r.awaitRetried(id, 0)
			if until := time.Until(info.NextProcessAt); until > 5*time.Second || i == 1 &&
				!strings.Contains(info.LastErr, "later, please") {
				t.Errorf("it comes back in %s, last error %q", until, info.LastErr)
			}
		}
		r.awaitArchived(r.enqueue("work", `{"id":1,"say":"failed"}`, asynq.MaxRetry(0)))
		<-given
		short := enqueue("busy", asynq.MaxRetry(0), asynq.Timeout(3*time.Second))
		select {
		case <-given: // it is asked again when the wait is over
		case <-time.After(patience):
			t.Fatal("AfterFailure is not asked again")
		}
		r.awaitArchived(short)
		if !slices.ContainsFunc(r.seen.list(automutex.EventBusy), func(e automutex.Event) bool {
			return e.TaskID == short && e.Policy == automutex.Archive
		}) {
			t.Error("no event says that it is archived")
		}
		last := r.enqueue("work", `{"id":1,"say":"busy"}`, asynq.MaxRetry(0)) // waits in its worker
		<-given
		r.awaitLine(1, "work", "1")
		r.none()
		free()
		r.finish(last)
		for _, id := range again {
			r.rerun(id)
			r.finish(id)
		}
	})
}

func TestPolicy_allow(t *testing.T) {
	rules := []automutex.Rule{{Task: "work", On: onID, Busy: automutex.Allow}}
	eachRig(t, setup{rules: rules}, func(t *testing.T, r *rig) {
		first := r.enqueueOne()
		alone := r.next()
		second := r.enqueueOne(asynq.MaxRetry(0))
		beside := r.next()
		if _, ok := automutex.Lease(alone.ctx); !ok {
			t.Error("the first has no lease")
		}
		if _, ok := automutex.Lease(beside.ctx); ok {
			t.Error("the second has a lease")
		}
		if event := r.awaitEvent(automutex.EventBusy, second); event.Policy != automutex.Allow ||
			!strings.HasSuffix(event.Busy.HolderTask, first) {
			t.Errorf("got %+v", event)
		}
		r.ends(beside)
		r.wantLocked(true, "work", "1")
		r.ends(alone)
	})
}

// dueSoon ends at no time, but has a deadline.
type dueSoon struct {
	context.Context
	at time.Time
}

func (d dueSoon) Deadline() (time.Time, bool) { return d.at, true }

// A task that has no time left to wait goes on without the lock at once: a second look at what it met would find it
// again and again.
func TestPolicy_allowWithoutTime(t *testing.T) {
	rules := []automutex.Rule{{Task: "work", On: onID, Busy: automutex.Allow}}
	eachRig(t, setup{rules: rules}, func(t *testing.T, r *rig) {
		r.take("work", "1")
		ctx := dueSoon{t.Context(), time.Now().Add(margin / 2)}
		runs := 0
		h := r.guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { runs++; return nil }))
		if err := h.ProcessTask(ctx, asynq.NewTask("work", []byte(`{"id":1}`))); err != nil || runs != 1 {
			t.Errorf("%d runs, %v", runs, err)
		}
	})
}

var updatePolicies = flag.Bool("update-policies", false, "write testdata/policies.txt anew")

// Each policy with each field of a rule: New accepts the pair, warns of a field that has no effect, or refuses it.
func TestPolicies_withEachField(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("What New says of each policy with each field. Written by go test ./internal/e2e -run TestPolicies_ " +
		"-update-policies.\n\n")
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
		automutex.Park, automutex.Retry, automutex.RetryIn(time.Second), automutex.Skip, automutex.Archive, automutex.Fail,
		automutex.Replace, automutex.Allow,
		automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil }),
	} {
		for _, f := range fields {
			rule := automutex.Rule{Task: "t", On: onID, Busy: policy}
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
	redistest.Golden(t, *updatePolicies, filepath.Join("testdata", "policies.txt"), b.String()+"\n"+notes.String())
}

// A task on its last attempt cannot go back. The Guard says so once, if it has one attempt, or many wait so.
func TestPark_lastAttemptsAreWarnedOf(t *testing.T) {
	for most, workers := range map[int]int{-1: 100, 1: 2} {
		rules := []automutex.Rule{{Busy: automutex.Park}, {Task: "again", Busy: automutex.Retry}}
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			eachRig(t, setup{workers: workers, rules: rules}, func(t *testing.T, r *rig) {
				for _, task := range []string{"again", "work", "work"} {
					id := ""
					if most > 0 {
						id = r.enqueue(task, nil, asynq.MaxRetry(most))
						r.nextIs(id).returns(errors.New("failed"))
						r.await(id, asynq.TaskStateRetry)
					}
					lease := r.take(task)
					if most > 0 {
						redistest.Must(t, r.inspector.RunTask(r.queue, id))
					} else {
						id = r.enqueue(task, nil, asynq.MaxRetry(most))
					}
					if !r.awaitEvent(automutex.EventWaiting, id).Last {
						t.Error("the event does not say that it is the last attempt")
					}
					r.free(lease)
					r.nextIs(id).returns(nil)
					r.awaitDone(id)
				}
				if log := r.log.Text(slog.LevelWarn); strings.Count(log, "waits in its worker") != 1 {
					t.Errorf("the log says %q", log)
				}
			})
		})
	}
}
