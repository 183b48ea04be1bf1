package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

func TestPolicy_String(t *testing.T) {
	t.Parallel()
	var zero automutex.Policy
	for want, policy := range map[string]automutex.Policy{
		"retry":         automutex.Retry,
		"retry in 5s":   automutex.RetryIn(5 * time.Second),
		"skip":          automutex.Skip,
		"archive":       automutex.Archive,
		"fail":          automutex.Fail,
		"park":          zero,
		"replace":       automutex.Replace,
		"allow":         automutex.Allow,
		"after failure": automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil }),
	} {
		if got := policy.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestPolicy_isComparable(t *testing.T) {
	t.Parallel()
	fn := func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil }
	after := automutex.AfterFailure(fn)
	policies := []automutex.Policy{
		automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail, automutex.Park, automutex.Replace, automutex.Allow,
		automutex.RetryIn(time.Second), automutex.RetryIn(2 * time.Second), after, automutex.AfterFailure(fn),
	}
	for i, a := range policies {
		for j, b := range policies {
			if (a == b) != (i == j) {
				t.Errorf("%s (%d) == %s (%d) is %t", a, i, b, j, a == b)
			}
		}
	}
	if copied := after; copied != after {
		t.Error("a copy of a policy differs from it")
	}
	if automutex.RetryIn(time.Second) != automutex.RetryIn(time.Second) {
		t.Error("RetryIn with one delay gives two policies")
	}
	if (automutex.Policy{}) != automutex.Park {
		t.Error("the zero value is not Park")
	}
}
