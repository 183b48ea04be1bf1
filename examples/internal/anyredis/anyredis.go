// Package anyredis opens the Redis that the flag -redis of an example names.
package anyredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redisping"
)

// Patience is how long a Redis may take to answer.
const Patience = 3 * time.Second

// Store is a Redis. asynq's client, server and inspector and the guard share its one client.
type Store struct {
	Client   redis.UniversalClient
	Name     string // for messages; no password in it
	Embedded bool
	Close    func()
}

// Open connects to the Redis at address and makes sure that it answers. Without an address it
// starts one in this process. Errors never repeat the address, which may hold a password.
func Open(ctx context.Context, address string) (*Store, error) {
	if address == "" {
		mini := miniredis.NewMiniRedis()
		mini.ClockTTL(true) // as in Redis: a key expires as time goes by
		if err := mini.Start(); err != nil {
			return nil, fmt.Errorf("starting the embedded Redis: %w; -redis URL uses a real one", err)
		}
		client := redis.NewClient(&redis.Options{Addr: mini.Addr()})
		return &Store{Client: client, Name: "the embedded Redis", Embedded: true, Close: func() {
			client.Close()
			mini.Close()
		}}, nil
	}
	client, name, err := connect(address)
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	if err := redisping.Ping(ctx, client, Patience); err != nil {
		client.Close()
		return nil, fmt.Errorf("-redis: %s does not answer: %w; is it running, and are address and password right?", name, err)
	}
	return &Store{Client: client, Name: name, Close: func() { client.Close() }}, nil
}

// connect takes host:port, the nodes of a Cluster as host:port,host:port, or a URL.
func connect(address string) (client redis.UniversalClient, name string, err error) {
	if !strings.Contains(address, "://") {
		hosts := strings.Split(address, ",")
		for i, host := range hosts {
			hosts[i] = strings.TrimSpace(host)
			if h, port, err := net.SplitHostPort(hosts[i]); err != nil || h == "" || port == "" || strings.Contains(h, "@") {
				return nil, "", errors.New("want host:port, a URL such as redis://localhost:6379, or the nodes of a Cluster as host:port,host:port")
			}
		}
		if len(hosts) > 1 {
			name = "the Cluster "
		}
		return redis.NewUniversalClient(&redis.UniversalOptions{Addrs: hosts}), name + strings.Join(hosts, ","), nil
	}
	bad := errors.New("not a URL of a Redis; want redis://user:password@localhost:6379/0 (special characters in a password as %XX), rediss:// for TLS, " +
		"or redis-sentinel://host:26379?master=name")
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", bad
	}
	if u.Scheme == "redis-sentinel" {
		opt, err := asynq.ParseRedisURI(address)
		sentinel, ok := opt.(asynq.RedisFailoverClientOpt)
		if err != nil || !ok || sentinel.MasterName == "" {
			return nil, "", bad
		}
		client, _ = sentinel.MakeRedisClient().(redis.UniversalClient) // go-redis' own
		return client, u.Redacted(), nil
	}
	opt, err := redis.ParseURL(address)
	if err != nil || u.Host == "" && u.Scheme != "unix" {
		return nil, "", bad
	}
	return redis.NewClient(opt), u.Redacted(), nil
}
