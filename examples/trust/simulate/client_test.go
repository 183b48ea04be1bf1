package simulate

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// client makes a go-redis client. No pool of connections is ever used up: a goroutine
// that waits for one would take a timer that belongs to another world.
func (e *endpoint) client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Dialer:          func(context.Context, string, string) (net.Conn, error) { return e.dial() },
		Password:        password,
		PoolSize:        3000,
		DialerRetries:   1, // each further one would sleep, see dial
		DisableIdentity: true,
		ReadBufferSize:  2048, WriteBufferSize: 2048, PipelineReadBufferSize: 2048, PipelineWriteBufferSize: 2048,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	c.AddHook(slowFailure{e})
	return c
}

// slowFailure has a command take time whose connection could not be made, which the dial
// itself cannot, and any of asynq's that is refused: asynq asks again at once.
type slowFailure struct{ end *endpoint }

// DialHook is part of redis.Hook and changes nothing.
func (s slowFailure) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is part of redis.Hook.
func (s slowFailure) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil && !isSetup(strings.ToUpper(cmd.Name())) {
			s.waitOut(err)
		}
		return err
	}
}

// ProcessPipelineHook is part of redis.Hook.
func (s slowFailure) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		s.waitOut(err)
		return err
	}
}

func (s slowFailure) waitOut(err error) {
	if err == nil || err == redis.Nil {
		return
	}
	var said redis.Error
	if s.end.kind == "asynq" && errors.As(err, &said) && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") || errors.Is(err, errAway) || strings.Contains(err.Error(), "WRONGPASS") {
		time.Sleep(100 * time.Millisecond)
	}
}
