package documented

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// The names and exact types of the root package that the code of users is written to. The
// compiler holds them.

var (
	_ func(lock.Client, automutex.Config) (*automutex.Guard, error)        = automutex.New
	_ func(asynq.RedisConnOpt, automutex.Config) (*automutex.Guard, error) = automutex.NewFromConnOpt

	_ lock.Client = (*redis.Client)(nil)
	_ lock.Client = (*redis.ClusterClient)(nil)
	_ lock.Client = redis.UniversalClient(nil)

	_ func(*automutex.Guard, asynq.Handler) asynq.Handler                                   = (*automutex.Guard).Middleware
	_ func(*automutex.Guard, asynq.Config) asynq.Config                                     = (*automutex.Guard).ServerConfig
	_ func(*automutex.Guard, context.Context, *asynq.Task) ([]string, error)                = (*automutex.Guard).Keys
	_ func(*automutex.Guard, context.Context) error                                         = (*automutex.Guard).Close
	_ func(time.Duration) automutex.Policy                                                  = automutex.RetryIn
	_ func(automutex.Policy) string                                                         = automutex.Policy.String
	_ func(...string) automutex.KeyFunc                                                     = automutex.Fields
	_ func(...string) automutex.KeyFunc                                                     = automutex.Headers
	_ func(func(struct{ ID string }) []string) automutex.KeyFunc                            = automutex.KeyOf[struct{ ID string }]
	_ func(func([]byte) (int, error), func(int) []string) automutex.KeyFunc                 = automutex.KeyWith[int]
	_ func(context.Context) (*lock.Lease, bool)                                             = automutex.Lease
	_ func(context.Context, string) (*lock.Lease, bool)                                     = automutex.LeaseOf
	_ func(context.Context) (int64, error)                                                  = automutex.Fence
	_ func(*lock.Lease) (int64, error)                                                      = (*lock.Lease).Fence
	_ func(func(context.Context, *asynq.Task, *automutex.BusyError) error) automutex.Policy = automutex.AfterFailure

	_ automutex.KeyFunc                                    = func(context.Context, *asynq.Task) ([]string, error) { return nil, nil }
	_ func(context.Context, *asynq.Task) ([]string, error) = automutex.KeyFunc(nil)
	_                                                      = []automutex.Policy{
		automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail,
		automutex.Park, automutex.Replace, automutex.Allow, {},
	}
	_ = map[automutex.Policy]bool{automutex.Retry: true} // comparable

	_ error = automutex.ErrReplaced
	_ error = (*automutex.BusyError)(nil)
	_ error = (*automutex.KeyError)(nil)

	// A Guard's Middleware is what asynq's mux takes.
	_ = func(guard *automutex.Guard, mux *asynq.ServeMux) { mux.Use(guard.Middleware) }
)

func TestContract_values(t *testing.T) {
	t.Parallel()
	if automutex.ErrBusy != lock.ErrBusy {
		t.Error("ErrBusy is not lock.ErrBusy")
	}
	if !errors.Is(&automutex.BusyError{}, automutex.ErrBusy) || !errors.Is(&automutex.BusyError{}, lock.ErrBusy) {
		t.Error("a BusyError is not ErrBusy")
	}
	if (automutex.Rule{}).Busy == automutex.Retry || automutex.RetryIn(time.Second) != automutex.RetryIn(time.Second) ||
		automutex.RetryIn(time.Second) == automutex.RetryIn(time.Minute) {
		t.Error("policies do not compare as they should")
	}
}
