package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// connection is how to find Redis, as the flags say.
type connection struct {
	uri, username, password string
	db                      int
	cluster                 bool
	clusterAddrs            string
	tls, insecure           bool
	tlsServer               string
	prefix                  string
	timeout                 time.Duration
	known                   []fleet.Rule // what tells a scope with a | from a key
}

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

// asynqEnv are the flags that asynq's command reads from the environment, under their own names.
var asynqEnv = []string{"uri", "db", "password", "cluster", "cluster_addrs", "tls_server", "insecure"}

// environment sets the connection flags that the command line does not.
func (c *connection) environment(cmd *cobra.Command) (err error) {
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		name := "AUTOMUTEX_" + strings.ToUpper(f.Name)
		value := os.Getenv(name)
		if value == "" && slices.Contains(asynqEnv, f.Name) {
			name = strings.ToUpper(f.Name)
			value = os.Getenv(name)
		}
		if value == "" || f.Changed || err != nil {
			return
		}
		if cmd.Flags().Set(f.Name, value) != nil {
			err = usage("the environment variable %s does not fit --%s; set it right, or give the flag", name, f.Name)
		}
	})
	switch {
	case err != nil:
		return err
	case c.timeout <= 0:
		return usage("--timeout %s: must be positive", c.timeout)
	case c.cluster && c.db != 0:
		return usage("--db %d: a Cluster has no database but 0", c.db)
	}
	if err := inner.CheckPrefix(c.prefix); err != nil {
		return usage("--prefix: %w", err)
	}
	return nil
}

// parseURI reads --uri; where names it without its password. The errors never repeat the URI: there may be a password in it.
func parseURI(uri string) (o *redis.Options, addrs []string, master, where string, err error) {
	refuse := func(text string) (*redis.Options, []string, string, string, error) {
		return nil, nil, "", "", usage("--uri: %s", text)
	}
	if !strings.Contains(uri, "://") {
		if _, port, err := net.SplitHostPort(uri); err != nil || port == "" || strings.Contains(uri, "@") {
			return refuse("want host:port or a URL such as redis://user:password@localhost:6379/0")
		}
		return &redis.Options{}, []string{uri}, "", uri, nil
	}
	u, err := url.Parse(uri)
	if err != nil {
		return refuse("not a valid URL; want for example redis://user:password@localhost:6379/0 (special characters in a password as %XX)")
	}
	where, query := u.Scheme+"://"+u.Host+u.Path, u.Query()
	u.RawQuery = ""
	switch u.Scheme {
	case "redis", "rediss":
	case "redis-socket", "unix":
		if u.Path == "" {
			return refuse("the URL names no socket; want redis-socket:///var/run/redis.sock")
		}
		u.Scheme, u.RawQuery = "unix", url.Values{"db": {cmp.Or(query.Get("db"), "0")}}.Encode()
	case "redis-sentinel":
		if master = query.Get("master"); master == "" {
			return refuse("the URL names no master; want redis-sentinel://host:26379?master=name")
		}
		addrs = strings.Split(u.Host, ",")
		u.Scheme, u.Host = "redis", addrs[0]
	default:
		return refuse(printable.Text(u.Scheme) + ":// is not known; want redis://, rediss://, redis-socket:// or redis-sentinel://")
	}
	if u.Scheme != "unix" && u.Hostname() == "" {
		return refuse("the URL names no host")
	}
	if o, err = redis.ParseURL(u.String()); err != nil {
		return refuse("the database is a number: redis://localhost:6379/0, redis-socket:///var/run/redis.sock?db=0")
	}
	if addrs == nil {
		addrs = []string{o.Addr}
	}
	return o, addrs, master, where, nil
}

// client makes a client. It dials nothing yet.
func (c *connection) client() (rdb redis.UniversalClient, where string, err error) {
	o, addrs, master, where, err := parseURI(c.uri)
	if err != nil {
		return nil, "", err
	}
	if c.cluster {
		if c.clusterAddrs != "" {
			addrs, where = strings.Split(c.clusterAddrs, ","), c.clusterAddrs
		}
		where = "the Cluster " + where
	}
	options := &redis.UniversalOptions{
		Addrs: addrs, MasterName: master, IsClusterMode: c.cluster,
		Username: cmp.Or(c.username, o.Username), Password: cmp.Or(c.password, o.Password), DB: cmp.Or(c.db, o.DB),
		// One try within the timeout: an operator who waits wants to be told.
		DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, PoolTimeout: c.timeout,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
	}
	if o.TLSConfig != nil || c.tls || c.tlsServer != "" {
		options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.tlsServer, InsecureSkipVerify: c.insecure} //nolint:gosec // when asked to
	} else if c.insecure {
		return nil, "", usage("--insecure: goes with --tls")
	}
	if o.Network == "unix" {
		simple := options.Simple()
		simple.Network = o.Network
		return redis.NewClient(simple), where, nil
	}
	return redis.NewUniversalClient(options), where, nil
}

// open connects, and makes sure that Redis answers.
func (c *connection) open(ctx context.Context) (redis.UniversalClient, error) {
	rdb, where, err := c.client()
	if err != nil {
		return nil, err
	}
	bound, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := rdb.Ping(bound).Err(); err != nil {
		return nil, errors.Join(unreachable(printable.Text(where), cmp.Or(ctx.Err(), err)), rdb.Close())
	}
	return rdb, nil
}

// unreachable says what is wrong with a Redis that did not answer a ping.
func unreachable(where string, err error) error {
	var reply redis.Error
	switch text := err.Error(); {
	case errors.Is(err, context.Canceled):
		return err
	case strings.Contains(text, "DB index is out of range"):
		return backend("Redis at %s does not have that database (%w); set --db, or the number in --uri, to one that it has", where, err)
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"), strings.Contains(text, "password"):
		return backend("Redis at %s refuses user or password (%w); set --username and --password, or AUTOMUTEX_PASSWORD", where, err)
	case errors.As(err, &reply):
		return backend("Redis at %s refuses the connection: %w", where, err)
	}
	return backend("Redis at %s does not answer: %w; is it running, and are address and TLS right?", where, err)
}

// locks is Redis with a Locker on it, and with asynq.
type locks struct {
	*lock.Locker
	rdb       redis.UniversalClient
	inspector *asynq.Inspector
}

// onLocks runs do on the locks of Redis.
func (c *connection) onLocks(ctx context.Context, do func(locks) error) error {
	rdb, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer rdb.Close() // of a program that ends
	// Others are shown who runs the command, as user@host.
	owner := cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"), os.Getenv("USERNAME"), "somebody") + "@" + inside.Host()
	isScope := func(text string) bool { return inspect.IsScope(c.known, text) }
	locker := inner.New(rdb, lock.Options{Prefix: c.prefix, Owner: owner, Logger: slog.New(slog.DiscardHandler)}, nil, nil, isScope)
	defer locker.Close() // never fails
	return do(locks{locker, rdb, asynq.NewInspectorFromRedisClient(rdb)})
}
