package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisping"
	"github.com/automutex/automutex/lock"
)

// connection is how to find Redis, as the flags say.
type connection struct {
	uri          string
	username     string
	password     string
	db           int
	cluster      bool
	clusterAddrs string
	tls          bool
	tlsServer    string
	insecure     bool
	prefix       string
	timeout      time.Duration
}

// asynqEnv are the flags that asynq's command reads from the environment, under
// their own names.
var asynqEnv = []string{"uri", "db", "password", "cluster", "cluster_addrs", "tls_server", "insecure"}

// flags adds the connection flags to the root command.
func (c *connection) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVarP(&c.uri, "uri", "u", "127.0.0.1:6379", "Redis: host:port or a URL (redis://, rediss://, redis-socket://, redis-sentinel://host:port?master=name)")
	f.IntVarP(&c.db, "db", "n", 0, "Redis database number")
	f.StringVarP(&c.password, "password", "p", "", "password of Redis (better in AUTOMUTEX_PASSWORD: others see command lines)")
	f.StringVar(&c.username, "username", "", "ACL user of Redis")
	f.BoolVar(&c.cluster, "cluster", false, "Redis is a Cluster")
	f.StringVar(&c.clusterAddrs, "cluster_addrs", "", "some of its nodes, host:port,host:port (default: that of --uri)")
	f.BoolVar(&c.tls, "tls", false, "speak TLS")
	f.StringVar(&c.tlsServer, "tls_server", "", "speak TLS, and expect this name in the certificate")
	f.BoolVar(&c.insecure, "insecure", false, "with TLS: do not check the certificate")
	f.StringVar(&c.prefix, "prefix", inside.DefaultPrefix, "what the keys of the locks begin with")
	f.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long Redis may take to answer")
}

// needed marks a command that needs Redis: before it runs, what the command line
// does not set of the connection is taken from the environment.
func (c *connection) needed(cmd *cobra.Command) {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return c.environment(cmd) }
}

// environment sets the flags that the command line does not.
func (c *connection) environment(cmd *cobra.Command) error {
	lookup := func(flag string) (name, value string) {
		name = "AUTOMUTEX_" + strings.ToUpper(flag)
		if value = os.Getenv(name); value != "" {
			return name, value
		}
		for _, known := range asynqEnv {
			if known == flag {
				name = strings.ToUpper(flag)
				return name, os.Getenv(name)
			}
		}
		return name, ""
	}
	for _, flag := range []string{
		"uri", "db", "password", "username", "cluster", "cluster_addrs", "tls", "tls_server", "insecure", "prefix", "timeout",
	} {
		name, value := lookup(flag)
		if value == "" || cmd.Flags().Changed(flag) {
			continue
		}
		if err := cmd.Flags().Set(flag, value); err != nil {
			return usage("the environment variable %s does not fit --%s; set it right, or give the flag", name, flag)
		}
	}
	switch {
	case c.timeout <= 0:
		return usage("--timeout %s: must be positive", c.timeout)
	case c.db < 0:
		return usage("--db %d: must not be negative", c.db)
	case c.cluster && c.db != 0:
		return usage("--db %d: a Cluster has no database but 0", c.db)
	}
	if err := inner.CheckPrefix(c.prefix); err != nil {
		return usage("--prefix: %w", err)
	}
	return nil
}

// target is where a Redis is; where names it without its password.
type target struct {
	addrs    []string
	network  string
	username string
	password string
	db       int
	tls      bool
	master   string // of sentinels
	where    string
}

// parse reads --uri. Its errors never repeat the URI: there may be a password
// in it.
func parseURI(uri string) (target, error) {
	if !strings.Contains(uri, "://") {
		host, port, err := net.SplitHostPort(uri)
		if err != nil || port == "" || strings.Contains(host, "@") {
			return target{}, usage("--uri: want host:port or a URL such as redis://user:password@localhost:6379/0")
		}
		return target{addrs: []string{uri}, where: uri}, nil
	}
	u, err := url.Parse(uri)
	if err != nil {
		return target{}, usage("--uri: not a valid URL; want for example redis://user:password@localhost:6379/0 (special characters in a password as %%XX)")
	}
	t := target{username: u.User.Username(), where: u.Scheme + "://" + u.Host + u.Path}
	t.password, _ = u.User.Password()
	if path := strings.Trim(u.Path, "/"); path != "" && u.Scheme != "redis-socket" && u.Scheme != "unix" {
		if t.db, err = strconv.Atoi(path); err != nil || t.db < 0 {
			return target{}, usage("--uri: the path of the URL is the database, a number")
		}
	}
	switch u.Scheme {
	case "redis", "rediss":
		t.tls = u.Scheme == "rediss"
		port := u.Port()
		if port == "" {
			port = "6379"
		}
		t.addrs = []string{net.JoinHostPort(u.Hostname(), port)}
	case "redis-socket", "unix":
		t.network, t.addrs = "unix", []string{u.Path}
		if db := u.Query().Get("db"); db != "" {
			if t.db, err = strconv.Atoi(db); err != nil {
				return target{}, usage("--uri: db is a number")
			}
		}
		if u.Path == "" {
			return target{}, usage("--uri: the URL names no socket; want redis-socket:///var/run/redis.sock")
		}
		return t, nil
	case "redis-sentinel":
		t.addrs, t.master = strings.Split(u.Host, ","), u.Query().Get("master")
		if t.master == "" {
			return target{}, usage("--uri: the URL names no master; want redis-sentinel://host:26379?master=name")
		}
	default:
		return target{}, usage("--uri: %s:// is not known; want redis://, rediss://, redis-socket:// or redis-sentinel://", printable.Text(u.Scheme))
	}
	if u.Hostname() == "" {
		return target{}, usage("--uri: the URL names no host")
	}
	return t, nil
}

// client makes a client. It dials nothing yet.
func (c *connection) client() (rdb redis.UniversalClient, where string, err error) {
	t, err := parseURI(c.uri)
	if err != nil {
		return nil, "", err
	}
	if c.password != "" {
		t.password = c.password
	}
	if c.username != "" {
		t.username = c.username
	}
	if c.db != 0 {
		t.db = c.db
	}
	if c.cluster {
		if c.clusterAddrs != "" {
			t.addrs = strings.Split(c.clusterAddrs, ",")
			t.where = c.clusterAddrs
		}
		for _, addr := range t.addrs {
			if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
				return nil, "", usage("--cluster_addrs: want host:port,host:port,...")
			}
		}
		t.where = "the Cluster " + t.where
	}
	options := &redis.UniversalOptions{
		Addrs: t.addrs, MasterName: t.master, IsClusterMode: c.cluster,
		Username: t.username, Password: t.password, DB: t.db,
		// One try within the timeout: an operator who waits wants to be told.
		DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, PoolTimeout: c.timeout,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
	}
	if t.tls || c.tls || c.tlsServer != "" {
		options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.tlsServer, InsecureSkipVerify: c.insecure} //nolint:gosec // when asked to
	} else if c.insecure {
		return nil, "", usage("--insecure: goes with --tls")
	}
	if t.network == "unix" {
		simple := options.Simple()
		simple.Network = t.network
		return redis.NewClient(simple), t.where, nil
	}
	return redis.NewUniversalClient(options), t.where, nil
}

// open connects, and makes sure that Redis answers.
func (c *connection) open(ctx context.Context) (redis.UniversalClient, error) {
	rdb, where, err := c.client()
	if err != nil {
		return nil, err
	}
	if err := redisping.Ping(ctx, rdb, c.timeout); err != nil {
		return nil, errors.Join(c.unreachable(where, err), rdb.Close())
	}
	return rdb, nil
}

// unreachable says what is wrong with a Redis that did not answer a ping.
func (c *connection) unreachable(where string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	where = printable.Text(where)
	var reply redis.Error
	switch text := err.Error(); {
	case strings.Contains(text, "DB index is out of range"):
		return backend(fmt.Errorf("Redis at %s does not have that database (%w); set --db, or the number in --uri, to one that it has", where, err))
	case strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOAUTH"), strings.Contains(text, "invalid password"),
		strings.Contains(text, "without any password configured"), strings.Contains(text, "invalid username-password pair"):
		return backend(fmt.Errorf("Redis at %s refuses user or password (%w); set --username and --password, or AUTOMUTEX_PASSWORD", where, err))
	case errors.As(err, &reply):
		return backend(fmt.Errorf("Redis at %s refuses the connection: %w", where, err))
	default:
		return backend(fmt.Errorf("Redis at %s does not answer: %w; is it running, and are address and TLS right?", where, err))
	}
}

// locks is Redis with a Locker on it.
type locks struct {
	*lock.Locker
	rdb redis.UniversalClient
}

// onLocks runs do on the locks of Redis.
func (c *connection) onLocks(ctx context.Context, do func(locks) error) error {
	rdb, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer rdb.Close() // of a program that ends
	locker := lock.New(rdb, lock.Options{Prefix: c.prefix, Owner: operator(), Logger: slog.New(slog.DiscardHandler)})
	defer locker.Close() // never fails
	return do(locks{locker, rdb})
}

// inspector asks asynq on the same Redis.
func (l locks) inspector() *asynq.Inspector { return asynq.NewInspectorFromRedisClient(l.rdb) }

// operator is who runs the command, as others are shown it: user@host.
func operator() string {
	name := cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"), os.Getenv("USERNAME"), "somebody")
	return name + "@" + inside.Host()
}

// underscored is a flag's name as it is known here.
func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }
