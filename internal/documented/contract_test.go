package documented

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
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

	_ = automutex.Config{
		Rules: []automutex.Rule(nil), Prefix: "", Owner: "", MinReplicas: int(0), Inspector: (*asynq.Inspector)(nil),
		Logger: (*slog.Logger)(nil), Observe: (func(context.Context, automutex.Event))(nil),
		Decode: (func(*asynq.Task) ([]byte, error))(nil),
	}
	_ = automutex.Rule{
		Name: "", Task: "", On: []string(nil), OnHeaders: []string(nil), Key: automutex.KeyFunc(nil), Payload: any(nil), Scope: "",
		Limit: int(0), TTL: time.Duration(0), Wait: time.Duration(0), MaxHold: time.Duration(0), Cooldown: time.Duration(0),
		Busy: automutex.Policy{},
	}

	_ error = automutex.ErrReplaced
	_ error = (*automutex.BusyError)(nil)
	_ error = (*automutex.KeyError)(nil)
	_       = automutex.BusyError{
		Rule: "", Key: "", Holder: "", HolderTask: "", SameTask: false,
		ExpiresIn: time.Duration(0), Waited: time.Duration(0), Place: int(0),
	}
	_ = automutex.KeyError{Task: "", Field: ""}

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

// The quick start on a server: a Guard, its Middleware, its ServerConfig.
func TestContract_quickStart(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	rdb := s.Client(t)
	redisOpt := asynq.RedisClientOpt{Addr: s.Addr()}
	queue := redistest.Name(t)

	guard, err := automutex.New(rdb, automutex.Config{
		Rules: []automutex.Rule{
			{Task: "itunes:verify", On: []string{"transaction_id"}, Fence: true},    // a mutex per transaction
			{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3}, // three at once per tenant
			{Task: "cache:warm", Busy: automutex.Skip},                              // one at a time, drop the rest
		},
		Prefix: redistest.Name(t),
	})
	redistest.Must(t, err)
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	ran := make(chan string, 10)
	for _, pattern := range []string{"itunes:", "report:", "cache:"} {
		mux.HandleFunc(pattern, func(ctx context.Context, task *asynq.Task) error {
			fence, err := automutex.Fence(ctx)
			if fenced := task.Type() == "itunes:verify"; fenced != (err == nil && fence > 0) || !fenced && !errors.Is(err, lock.ErrNotFenced) {
				t.Errorf("%s: fence %d, %v", task.Type(), fence, err)
			}
			ran <- task.Type()
			return nil
		})
	}
	srv := asynq.NewServer(redisOpt, guard.ServerConfig(asynq.Config{
		Concurrency: 10, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel,
	}))
	redistest.Must(t, srv.Start(mux))
	client := asynq.NewClient(redisOpt)
	for taskType, payload := range map[string]string{
		"itunes:verify": `{"transaction_id":123}`,
		"report:daily":  `{"tenant":{"id":"t1"}}`,
		"cache:warm":    "",
	} {
		if _, err := client.Enqueue(asynq.NewTask(taskType, []byte(payload)), asynq.Queue(queue)); err != nil {
			t.Error(err)
		}
	}
	seen := map[string]bool{}
	for range 3 {
		select {
		case taskType := <-ran:
			seen[taskType] = true
		case <-time.After(30 * time.Second):
			t.Fatalf("only %v ran", seen)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%v ran", seen)
	}

	closed := make(chan error, 1)
	go func() { closed <- guard.Close(t.Context()) }()
	srv.Shutdown()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}
