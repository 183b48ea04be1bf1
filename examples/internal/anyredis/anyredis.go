// Package anyredis opens the Redis that the flag -redis of an example names.
package anyredis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Usage describes the flag.
const Usage = "a Redis: host:port, a `URL` such as redis://user:password@localhost:6379/0 (rediss:// for TLS, %XX for " +
	"odd characters), or a Cluster's host:port,host:port (default: one inside this program)"

// Store is a Redis. asynq's client, server and inspector and the guard share its one client.
type Store struct {
	Client redis.UniversalClient
	Name   string // for messages; no password in it
	Close  func()
}

// Open connects to the Redis at address, or starts one in this process. Errors do not repeat a password.
func Open(ctx context.Context, address string) (*Store, error) {
	if address == "" {
		mini := miniredis.NewMiniRedis()
		mini.ClockTTL(true) // as in Redis: a key expires as time goes by
		if err := mini.Start(); err != nil {
			return nil, fmt.Errorf("starting the embedded Redis: %w; -redis URL uses a real one", err)
		}
		client := redis.NewClient(&redis.Options{Addr: mini.Addr()})
		return &Store{Client: client, Name: "the embedded Redis", Close: func() {
			client.Close()
			mini.Close()
		}}, nil
	}
	o := &redis.UniversalOptions{Addrs: strings.Split(address, ",")}
	if strings.ContainsAny(address, "/@") {
		one, err := redis.ParseURL(address)
		if err != nil {
			return nil, errors.New("-redis: want " + Usage)
		}
		o = &redis.UniversalOptions{Addrs: []string{one.Addr}, Username: one.Username, Password: one.Password, DB: one.DB,
			TLSConfig: one.TLSConfig}
	}
	store := &Store{Client: redis.NewUniversalClient(o), Name: strings.Join(o.Addrs, ",")}
	store.Close = func() { store.Client.Close() }
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := store.Client.Ping(ctx).Err(); err != nil {
		store.Close()
		return nil, fmt.Errorf("-redis: no Redis answers at %s: %w", store.Name, err)
	}
	return store, nil
}
