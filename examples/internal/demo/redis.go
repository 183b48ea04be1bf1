package demo

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

// redisPatience is how long a Redis may take to answer at the start.
const redisPatience = 3 * time.Second

// store is the Redis of this run. asynq's client, server and inspector and the
// guard all share its one client.
type store struct {
	client   redis.UniversalClient
	name     string // for messages; no password in it
	embedded bool
	close    func()
}

// openRedis connects to the Redis of -redis, or starts one in this process,
// and makes sure that it answers.
func openRedis(ctx context.Context, address string) (*store, error) {
	if address == "" {
		mini := miniredis.NewMiniRedis()
		mini.ClockTTL(true) // as in Redis: a key expires as time goes by
		if err := mini.Start(); err != nil {
			return nil, fmt.Errorf("starting the embedded Redis: %w; -redis URL uses a real one", err)
		}
		client := redis.NewClient(&redis.Options{Addr: mini.Addr()})
		return &store{client: client, name: "the embedded Redis", embedded: true, close: func() {
			client.Close()
			mini.Close()
		}}, nil
	}
	opt, name, err := parseRedis(address)
	if err != nil {
		return nil, err
	}
	client, ok := opt.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("-redis: asynq made a %T where a Redis client was wanted", client)
	}
	if err := redisping.Ping(ctx, client, redisPatience); err != nil {
		client.Close()
		return nil, fmt.Errorf("-redis: %s does not answer: %w; is it running, and are address and password right?", name, err)
	}
	return &store{client: client, name: name, close: func() { client.Close() }}, nil
}

// parseRedis understands what -redis takes. Errors never repeat the address,
// which may hold a password; name doesn't either.
func parseRedis(address string) (opt asynq.RedisConnOpt, name string, err error) {
	if !strings.Contains(address, "://") {
		return parseHosts(address)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", errors.New("-redis: not a valid URL; want for example redis://user:password@localhost:6379/0 (special characters in a password as %XX)")
	}
	if u.Host == "" && u.Scheme != "redis-socket" {
		return nil, "", fmt.Errorf("-redis: the %s:// URL names no host", u.Scheme)
	}
	if opt, err = asynq.ParseRedisURI(address); err != nil {
		return nil, "", fmt.Errorf("-redis: %s", strings.TrimPrefix(err.Error(), "asynq: "))
	}
	switch o := opt.(type) {
	case asynq.RedisClientOpt:
		// asynq passes over the user name, and wants a port.
		o.Username = u.User.Username()
		if o.Network != "unix" && u.Port() == "" {
			o.Addr = net.JoinHostPort(u.Hostname(), "6379")
		}
		opt = o
	case asynq.RedisFailoverClientOpt:
		if o.MasterName == "" {
			return nil, "", errors.New("-redis: the redis-sentinel:// URL names no master; want redis-sentinel://host:26379?master=name")
		}
	}
	return opt, u.Scheme + "://" + u.Host + u.Path, nil
}

// parseHosts takes host:port of one Redis, or host:port,host:port,... of a Cluster.
func parseHosts(list string) (asynq.RedisConnOpt, string, error) {
	hosts := strings.Split(list, ",")
	for i, host := range hosts {
		hosts[i] = strings.TrimSpace(host)
		if h, port, err := net.SplitHostPort(hosts[i]); err != nil || h == "" || port == "" || strings.Contains(h, "@") {
			if len(hosts) == 1 {
				return nil, "", errors.New("-redis: want host:port, a URL such as redis://localhost:6379, or the nodes of a Cluster as host:port,host:port")
			}
			return nil, "", fmt.Errorf("-redis: node %d of the Cluster list is not host:port", i+1)
		}
	}
	if len(hosts) == 1 {
		return asynq.RedisClientOpt{Addr: hosts[0]}, hosts[0], nil
	}
	return asynq.RedisClusterClientOpt{Addrs: hosts}, "the Cluster " + strings.Join(hosts, ","), nil
}
