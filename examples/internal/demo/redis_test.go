package demo

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

func TestParseRedis(t *testing.T) {
	single := func(o asynq.RedisConnOpt) asynq.RedisClientOpt { return o.(asynq.RedisClientOpt) }
	tests := map[string]func(asynq.RedisConnOpt) bool{
		"redis://localhost:6380/3": func(o asynq.RedisConnOpt) bool {
			return single(o).Addr == "localhost:6380" && single(o).DB == 3 && single(o).TLSConfig == nil
		},
		"localhost:6380":    func(o asynq.RedisConnOpt) bool { return single(o).Addr == "localhost:6380" },
		"redis://localhost": func(o asynq.RedisConnOpt) bool { return single(o).Addr == "localhost:6379" },
		"redis://[::1]":     func(o asynq.RedisConnOpt) bool { return single(o).Addr == "[::1]:6379" },
		"redis://me:s%20ecret@h:1": func(o asynq.RedisConnOpt) bool {
			return single(o).Username == "me" && single(o).Password == "s ecret"
		},
		"rediss://h.example:1": func(o asynq.RedisConnOpt) bool {
			return single(o).TLSConfig != nil && single(o).TLSConfig.ServerName == "h.example"
		},
		"redis-sentinel://a:1,b:2?master=m": func(o asynq.RedisConnOpt) bool {
			s := o.(asynq.RedisFailoverClientOpt)
			return s.MasterName == "m" && slices.Equal(s.SentinelAddrs, []string{"a:1", "b:2"})
		},
		"a:1, b:2,[::1]:3": func(o asynq.RedisConnOpt) bool {
			return slices.Equal(o.(asynq.RedisClusterClientOpt).Addrs, []string{"a:1", "b:2", "[::1]:3"})
		},
	}
	for address, fits := range tests {
		opt, name, err := parseRedis(address)
		switch {
		case err != nil:
			t.Errorf("%s: %v", address, err)
		case !fits(opt):
			t.Errorf("%s: parsed as %+v", address, opt)
		case name == "" || strings.Contains(name, "ecret"):
			t.Errorf("%s: is named %q in messages", address, name)
		}
	}
}

func TestParseRedis_errors(t *testing.T) {
	for _, address := range []string{
		"localhost", "localhost:", ":6379", "me:secret@localhost:6379", "http://secret@x", "redis://me:sec#ret@h:1", "redis://h:1/secret", "redis://", "redis://h:port",
		"redis-sentinel://h:1", "a:1,b", "a:1,", ",", "me:secret@a:1,b:2",
	} {
		_, _, err := parseRedis(address)
		if err == nil {
			t.Errorf("%s: no error", address)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, "-redis: ") || strings.Contains(text, "sec") && strings.Contains(text, "ret") || strings.Contains(text, "\n") {
			t.Errorf("%s: %q; want one line that names -redis and tells no secret", address, text)
		}
	}
}

func TestOpenRedis_unreachable(t *testing.T) {
	for _, address := range []string{"redis://127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := openRedis(t.Context(), address)
			if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
				t.Errorf("error is %v, want one that names the address", err)
			}
			if took := time.Since(began); took > 3*redisPatience {
				t.Errorf("took %s to say so", took)
			}
		})
	}
}

func TestOpenRedis_interrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := openRedis(ctx, "redis://127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
}
