package automutex

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

func TestPolicy_String(t *testing.T) {
	t.Parallel()
	var zero Policy
	for want, policy := range map[string]Policy{
		"retry":         zero,
		"retry in 5s":   RetryIn(5 * time.Second),
		"skip":          Skip,
		"archive":       Archive,
		"fail":          Fail,
		"park":          Park,
		"replace":       Replace,
		"allow":         Allow,
		"after failure": AfterFailure(func(context.Context, *asynq.Task, *BusyError) error { return nil }),
	} {
		if got := policy.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestPolicy_isComparable(t *testing.T) {
	t.Parallel()
	fn := func(context.Context, *asynq.Task, *BusyError) error { return nil }
	after := AfterFailure(fn)
	policies := []Policy{
		Retry, Skip, Archive, Fail, Park, Replace, Allow,
		RetryIn(time.Second), RetryIn(2 * time.Second), after, AfterFailure(fn),
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
	if RetryIn(time.Second) != RetryIn(time.Second) {
		t.Error("RetryIn with one delay gives two policies")
	}
	if (Policy{}) != Retry {
		t.Error("the zero value is not Retry")
	}
}

func TestPolicy_AfterFailure_keepsItsFunction(t *testing.T) {
	t.Parallel()
	decided := errors.New("decided")
	policy := AfterFailure(func(context.Context, *asynq.Task, *BusyError) error { return decided })
	if got := policy.failureFunc()(t.Context(), nil, nil); !errors.Is(got, decided) {
		t.Errorf("got %v, want what the function returns", got)
	}
	if Skip.failureFunc() != nil {
		t.Error("Skip has a function")
	}
}

func TestPolicy_check(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{
		Retry, Skip, Archive, Fail, Park, Replace, Allow, RetryIn(time.Millisecond),
		AfterFailure(func(context.Context, *asynq.Task, *BusyError) error { return nil }),
	} {
		if err := policy.check(); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
	for want, policy := range map[string]Policy{
		"RetryIn(0s)":         RetryIn(0),
		"RetryIn(-1s)":        RetryIn(-time.Second),
		"AfterFailure has no": AfterFailure(nil),
	} {
		if err := policy.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", policy, err, want)
		}
	}
}
