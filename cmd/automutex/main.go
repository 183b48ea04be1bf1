// Command automutex shows operators what the locks of automutex are doing, and lets them step in. Everything it knows
// of a lock it has from package lock; everything it knows of a task, from asynq's Inspector.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
	"github.com/automutex/automutex/lock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logging.Disable()            // go-redis' own; the errors reach us anyway
	cmd, err := newRoot(&app{in: os.Stdin, out: os.Stdout, errs: os.Stderr}).ExecuteContextC(ctx)
	os.Exit(explain(os.Stderr, cmd, err))
}

// app is what all commands share.
type app struct {
	in        io.Reader
	out, errs io.Writer
	conn      connection
	json      bool         // print JSON
	known     []fleet.Rule // what tells a scope with a | from a key
}

const rootHelp = `Locks of asynq tasks, for operators

See what the locks of automutex are doing, and step in.

Exit codes: 0 done; 1 no (mistakes in a file, no such holder, no program here,
findings of doctor, interrupted); 2 wrong use; 3 Redis is out of reach, or refuses.

Each connection flag can be set by an environment variable: AUTOMUTEX_URI,
AUTOMUTEX_PASSWORD, AUTOMUTEX_PREFIX and so on.`

func newRoot(a *app) *cobra.Command {
	root := command("automutex", rootHelp, nil, nil)
	root.Example = `  automutex check automutex.yaml
  automutex list --uri redis://localhost:6379
  automutex break 'automutex:{itunes:verify|7}'`
	root.Version, root.SilenceUsage, root.SilenceErrors = "(unknown)", true, true
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		root.Version = info.Main.Version
	}
	root.SetVersionTemplate("automutex {{.Version}}\n")
	// --cluster-addrs and --cluster_addrs are one flag: asynq's command has the latter.
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
	})
	a.conn.flags(root)
	root.AddCommand(newCheck(a), newSchema(a), newKey(a), newList(a), newShow(a), newBreak(a), newControls(a),
		newBlocked(a), newSkip(a), newSweep(a), newDoctor(a), newWeb(a))
	root.AddCommand(newOrders(a)...)
	return root
}

// command makes a command. The first line of help is what the list of commands says.
func command(
	use, help string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error,
) *cobra.Command {
	short, _, _ := strings.Cut(help, "\n")
	return &cobra.Command{Use: use, Short: short, Long: help, Args: args, RunE: run}
}

// online makes a command that needs Redis, or the prefix alone.
func (a *app) online(
	use, help string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error,
) *cobra.Command {
	cmd := command(use, help, args, run)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return a.conn.environment(cmd) }
	return cmd
}

// locks is Redis with an Engine on it, and with asynq.
type locks struct {
	*engine.Engine
	rdb       redis.UniversalClient
	inspector *asynq.Inspector
}

// onLocks makes a command that runs on the locks of Redis.
func (a *app) onLocks(
	use, help string, args cobra.PositionalArgs, run func(ctx context.Context, l locks, args []string) error,
) *cobra.Command {
	return a.online(use, help, args, func(cmd *cobra.Command, args []string) error {
		rdb, err := a.conn.open(cmd.Context())
		if err != nil {
			return err
		}
		defer rdb.Close() // of a program that ends
		user := cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"), os.Getenv("USERNAME"), fmt.Sprint("uid-", os.Getuid()))
		owner := cmp.Or(a.conn.by, user+"@"+engine.Host())
		isScope := func(text string) bool { return inspect.IsScope(a.known, text) }
		e := engine.New(engine.Options{Client: rdb, Prefix: a.conn.prefix, Owner: owner, Log: slog.New(slog.DiscardHandler),
			Obeys: true, HasScope: isScope, HashKeys: os.Getenv(hashKeysEnv)})
		defer e.Close()
		return run(cmd.Context(), locks{e, rdb, asynq.NewInspectorFromRedisClient(rdb)}, args)
	})
}

// place is an error where no program seems to use the prefix: no process says that it does, and there is no lock.
// Nil with --force, and for who may not look.
func (a *app) place(ctx context.Context, rdb redis.UniversalClient) error {
	guards, err := fleet.Read(ctx, rdb, a.conn.prefix)
	nodes, failed := redisx.Masters(ctx, rdb)
	if a.conn.force || len(guards) > 0 || err != nil || failed != nil {
		return nil //nolint:nilerr // what needs Redis says so itself
	}
	var others []string
	for _, node := range nodes {
		found := node.Scan(ctx, 0, "*:{*}*", 1000).Iterator()
		for found.Next(ctx) {
			inside, ours := strings.CutPrefix(found.Val(), a.conn.prefix+":{")
			if prefix, is := strings.CutSuffix(found.Val(), fleet.Key("")); is {
				others = append(others, prefix)
			} else if ours && inside != keys.Controls+"}" {
				return nil
			}
		}
		if found.Err() != nil {
			return nil //nolint:nilerr // said above
		}
	}
	run := "none has another one: give the right database (--uri, --db)"
	if slices.Sort(others); len(others) > 0 {
		run = "processes run with " + printable.Short(strings.Join(others, ", ")) + ": give that with --prefix"
	}
	return no("no process and no lock has the prefix %s in this database; %s, or --force", a.conn.prefix, run)
}

func (a *app) withJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON, an object a line")
	return cmd
}

// What the program answers to the shell; the help of the root command lists these.
const (
	exitOK    = 0
	exitNo    = 1
	exitUsage = 2
	exitRedis = 3
)

// failure is an error with its answer to the shell.
type failure struct {
	exit int
	error
}

func (f *failure) Unwrap() error { return f.error }

func no(format string, args ...any) error {
	return &failure{exit: exitNo, error: fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error {
	return &failure{exit: exitUsage, error: fmt.Errorf(format, args...)}
}

// explain prints an error of a command and gives the exit code. An error of cobra's is about the command line.
func explain(stderr io.Writer, cmd *cobra.Command, err error) int {
	var f *failure
	var file *fs.PathError
	var mistake *config.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &mistake): // a line each, as compilers print them
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintln(stderr, printable.Text(line))
		}
		return exitNo
	case errors.As(err, &f):
	case errors.Is(err, lock.ErrBackend):
		f = &failure{exitRedis, err}
	case errors.Is(err, context.Canceled):
		f = &failure{exitNo, errors.New("interrupted")}
	case errors.As(err, &file): // stdout is full or closed
		f = &failure{exitNo, err}
	default:
		f = &failure{exitUsage, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	}
	fmt.Fprintf(stderr, "automutex: %s\n", printable.OneLine(strings.TrimPrefix(f.Error(), "automutex: ")))
	return f.exit
}

// printAll prints a list: with --json an object a line, else as a table with rows for each. Nothing is printed of an
// empty table.
func printAll[T any](a *app, list []T, header []string, rows func(T) [][]string) error {
	t := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	if len(header) > 0 && len(list) > 0 && !a.json {
		fmt.Fprintln(t, strings.Join(header, "\t")) // Flush gives the error
	}
	encoder := json.NewEncoder(a.out)
	encoder.SetEscapeHTML(false)
	for _, v := range list {
		if a.json {
			if err := encoder.Encode(v); err != nil {
				return err
			}
			continue
		}
		for _, cells := range rows(v) {
			for i, cell := range cells {
				cells[i] = printable.Text(cell) // has no tab and no end of a line
			}
			fmt.Fprintln(t, strings.Join(cells, "\t"))
		}
	}
	return t.Flush()
}

func (a *app) say(format string, args ...any) error {
	_, err := fmt.Fprintf(a.out, format, args...)
	return err
}

// connection is how to find Redis, as the flags say.
type connection struct {
	uri, username, password string
	db                      int
	cluster                 bool
	clusterAddrs            string
	tls, insecure           bool
	tlsServer               string
	prefix, by              string
	timeout                 time.Duration
	force                   bool
}

func (c *connection) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVarP(&c.uri, "uri", "u", "127.0.0.1:6379", "Redis: host:port or a URL (redis://, rediss://, "+
		"redis-socket://, redis-sentinel://host:port?master=name)")
	f.IntVarP(&c.db, "db", "n", -1, "Redis database number (default: that of --uri)")
	f.StringVarP(&c.password, "password", "p", "", "password of Redis (better in AUTOMUTEX_PASSWORD: others see "+
		"command lines)")
	f.StringVar(&c.username, "username", "", "ACL user of Redis")
	f.BoolVar(&c.cluster, "cluster", false, "Redis is a Cluster")
	f.StringVar(&c.clusterAddrs, "cluster_addrs", "", "some of its nodes, host:port,host:port (default: that of --uri)")
	f.BoolVar(&c.tls, "tls", false, "speak TLS")
	f.StringVar(&c.tlsServer, "tls_server", "", "speak TLS, and expect this name in the certificate")
	f.BoolVar(&c.insecure, "insecure", false, "with TLS: do not check the certificate")
	f.StringVar(&c.prefix, "prefix", inside.DefaultPrefix, "what the keys of the locks begin with")
	f.StringVar(&c.by, "by", "", "who gives an order, as others are shown it (default: user@host)")
	f.BoolVar(&c.force, "force", false, "go on where no program seems to use the prefix, or to have the TARGET")
	f.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long Redis may take to answer")
}

// environment sets the connection flags that the command line does not.
func (c *connection) environment(cmd *cobra.Command) (err error) {
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		name := "AUTOMUTEX_" + strings.ToUpper(f.Name)
		value := os.Getenv(name)
		if value != "" && !f.Changed && err == nil && cmd.Flags().Set(f.Name, value) != nil {
			err = usage("the environment variable %s does not fit --%s; set it right, or give the flag", name, f.Name)
		}
	})
	if err != nil {
		return err
	}
	if err := engine.CheckPrefix(c.prefix); err != nil {
		return usage("--prefix: %w", err)
	}
	if c.timeout <= 0 {
		return usage("--timeout: must be above zero")
	}
	return nil
}

// options is what the flags say of Redis. where names it without a password; no error repeats --uri, which may have
// one.
func (c *connection) options() (o *redis.UniversalOptions, where string, err error) {
	wrong := usage("--uri: want host:port or a URL: redis://user:password@host:6379/0 (special characters in a " +
		"password as %%XX), rediss://, redis-socket:///run/redis.sock?db=0 or redis-sentinel://host:26379?master=name")
	uri := c.uri
	if !strings.Contains(uri, "://") {
		uri = "redis://" + uri
	}
	u, err := url.Parse(uri)
	if err != nil {
		return nil, "", wrong
	}
	where = u.Scheme + "://" + u.Host + u.Path
	var addrs []string
	master := u.Query().Get("master")
	switch {
	case u.Scheme == "redis-socket":
		u.Scheme = "unix"
	case u.Scheme == "redis-sentinel" && master != "":
		addrs = strings.Split(u.Host, ",")
		u.Scheme, u.Host, u.RawQuery = "redis", addrs[0], ""
	}
	its, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, "", wrong
	}
	switch {
	case c.cluster && c.clusterAddrs != "":
		addrs, where = strings.Split(c.clusterAddrs, ","), c.clusterAddrs
	case addrs == nil:
		addrs = []string{its.Addr} // go-redis knows the path of a socket by its slash
	}
	o = &redis.UniversalOptions{
		Addrs: addrs, MasterName: master, IsClusterMode: c.cluster,
		Username: cmp.Or(c.username, its.Username), Password: cmp.Or(c.password, its.Password), DB: its.DB,
		// One try within the timeout: an operator who waits wants to be told.
		DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout, PoolTimeout: c.timeout,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
	}
	if c.db >= 0 {
		o.DB = c.db
	}
	if its.TLSConfig != nil || c.tls || c.tlsServer != "" {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.tlsServer, InsecureSkipVerify: c.insecure} //nolint:gosec // when asked to
	}
	return o, where, nil
}

// open connects, and makes sure that Redis answers.
func (c *connection) open(ctx context.Context) (redis.UniversalClient, error) {
	o, where, err := c.options()
	if err != nil {
		return nil, err
	}
	rdb := redis.NewUniversalClient(o)
	bound, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	switch err = rdb.Ping(bound).Err(); {
	case err == nil && (o.IsClusterMode || len(rdb.ClusterSlots(bound).Val()) < 2):
		return rdb, nil
	case err == nil:
		err = usage("Redis at %s is a node of a Cluster: give --cluster", where)
	case ctx.Err() != nil:
		err = ctx.Err()
	default:
		err = &failure{exitRedis, fmt.Errorf("Redis at %s: %w; is it running, and are address, TLS, --username, "+
			"--password (or AUTOMUTEX_PASSWORD) and --db right?", where, err)}
	}
	return nil, errors.Join(err, rdb.Close())
}
