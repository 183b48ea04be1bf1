package anyredis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestConnect(t *testing.T) {
	single := func(c redis.UniversalClient) *redis.Options { return c.(*redis.Client).Options() }
	tests := map[string]func(redis.UniversalClient) bool{
		"redis://localhost:6380/3": func(c redis.UniversalClient) bool {
			return single(c).Addr == "localhost:6380" && single(c).DB == 3 && single(c).TLSConfig == nil
		},
		"localhost:6380":    func(c redis.UniversalClient) bool { return single(c).Addr == "localhost:6380" },
		"redis://localhost": func(c redis.UniversalClient) bool { return single(c).Addr == "localhost:6379" },
		"redis://[::1]":     func(c redis.UniversalClient) bool { return single(c).Addr == "[::1]:6379" },
		"redis://me:s%20ecret@h:1": func(c redis.UniversalClient) bool {
			return single(c).Username == "me" && single(c).Password == "s ecret"
		},
		"rediss://h.example:1": func(c redis.UniversalClient) bool {
			return single(c).TLSConfig != nil && single(c).TLSConfig.ServerName == "h.example"
		},
		"redis-sentinel://a:1,b:2?master=m": func(c redis.UniversalClient) bool { return single(c).Addr == "FailoverClient" },
		"a:1, b:2,[::1]:3": func(c redis.UniversalClient) bool {
			return slices.Equal(c.(*redis.ClusterClient).Options().Addrs, []string{"a:1", "b:2", "[::1]:3"})
		},
	}
	for address, fits := range tests {
		client, name, err := connect(address)
		switch {
		case err != nil:
			t.Errorf("%s: %v", address, err)
			continue
		case !fits(client):
			t.Errorf("%s: another client than it says", address)
		case name == "" || strings.Contains(name, "ecret"):
			t.Errorf("%s: is named %q in messages", address, name)
		}
		client.Close()
	}
}

func TestConnect_errors(t *testing.T) {
	for _, address := range []string{
		"localhost", "localhost:", ":6379", "me:secret@localhost:6379", "http://secret@x", "redis://me:sec#ret@h:1", "redis://h:1/secret", "redis://", "redis://h:port",
		"redis-sentinel://h:1", "a:1,b", "a:1,", ",", "me:secret@a:1,b:2",
	} {
		_, _, err := connect(address)
		if err == nil {
			t.Errorf("%s: no error", address)
			continue
		}
		if text := err.Error(); strings.Contains(text, "secret") || strings.Contains(text, "sec#ret") || strings.Contains(text, "\n") {
			t.Errorf("%s: %q; want one line that tells no secret", address, text)
		}
	}
}

func TestOpen_unreachable(t *testing.T) {
	for _, address := range []string{"redis://127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := Open(t.Context(), address)
			if err == nil || !strings.HasPrefix(err.Error(), "-redis: ") || !strings.Contains(err.Error(), "127.0.0.1:1") {
				t.Errorf("error is %v, want one that names flag and address", err)
			}
			if took := time.Since(began); took > 3*Patience {
				t.Errorf("took %s to say so", took)
			}
		})
	}
}

func TestOpen_interrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, "redis://127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
}
