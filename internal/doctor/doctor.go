// Package doctor looks for what keeps locks from working: Redis' settings and rights, and rules that do not fit the
// tasks that there are. The command line and the web page share it.
package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
	"github.com/automutex/automutex/lock"
)

// Levels of a Finding.
const (
	Fine = "ok"   // as it should be
	Note = "note" // may cause trouble later, or could not be checked
	Bad  = "bad"  // causes trouble now
)

// Finding is the result of one check.
type Finding struct {
	Level string `json:"level"`
	What  string `json:"what"`
	Text  string `json:"text"`
}

// Options say what to check.
type Options struct {
	Prefix string            // of the locks
	Config *automutex.Config // the rules to hold against the tasks; nil: those that Guards say they run
	Tasks  int               // tasks to read of each queue and state at most
}

// Examine checks everything. An error ends it early, with the findings until then: Redis
// is out of reach, or the rules have mistakes.
func Examine(ctx context.Context, rdb redis.UniversalClient, options Options) ([]Finding, error) {
	d := &doctor{
		Options: options, rdb: rdb, asynq: asynq.NewInspectorFromRedisClient(rdb),
		locker: lock.New(rdb, lock.Options{Prefix: options.Prefix, Logger: slog.New(slog.DiscardHandler)}),
	}
	defer func() { _ = d.locker.Close() }() // never fails
	for _, check := range []func(context.Context) error{d.servers, d.rights, d.fleet, d.paused, d.blocked, d.tasks} {
		if err := check(ctx); err != nil {
			return d.findings, err
		}
	}
	return d.findings, nil
}

// CountBad returns how many findings are bad.
func CountBad(findings []Finding) (n int) {
	for _, f := range findings {
		if f.Level == Bad {
			n++
		}
	}
	return n
}

// inner has the calls of package lock that only the packages of this module make.
var inner = lock.Inside(inside.Pass{})

// most is how many findings of one kind there are.
const most = 5

// doctor collects findings.
type doctor struct {
	Options
	rdb      redis.UniversalClient
	asynq    *asynq.Inspector
	locker   *lock.Locker
	guards   []fleet.Process // what they say of themselves
	prefixes []string        // under which there are Guards
	findings []Finding
}

func (d *doctor) foundf(level, what, format string, args ...any) {
	d.findings = append(d.findings, Finding{level, what, fmt.Sprintf(format, args...)})
}

// unable makes a finding of an error if it says that the user may not do something, or else is the error of the examination.
func (d *doctor) unable(what string, err error) error {
	if denied(err) {
		d.foundf(Note, what, "could not be looked at: %s", printable.OneLine(err.Error()))
		return nil
	}
	return inspect.Backend(err)
}

// denied tells whether Redis said that the user may not.
func denied(err error) bool { return err != nil && strings.Contains(err.Error(), "NOPERM") }

// servers looks at the one server, or at the masters of a Cluster.
func (d *doctor) servers(ctx context.Context) error {
	one, isOne := d.rdb.(*redis.Client)
	nodes := []*redis.Client{one}
	if cluster, isCluster := d.rdb.(*redis.ClusterClient); isCluster {
		var err error
		if nodes, err = redisx.Masters(ctx, cluster); err != nil {
			return inspect.Backend(err)
		}
	} else if !isOne {
		return inspect.Backend(fmt.Errorf("a %T is not known", d.rdb))
	}
	for _, n := range nodes {
		of := ""
		if !isOne {
			of = " of " + n.Options().Addr
		}
		if err := d.server(ctx, n, of); err != nil {
			return err
		}
	}
	return nil
}

// farOff is how far the clock of Redis may be from this one: asynq compares times of both.
const farOff = 5 * time.Second

func (d *doctor) server(ctx context.Context, rdb *redis.Client, of string) error {
	if text, err := rdb.Info(ctx).Result(); err == nil {
		d.info("Redis"+of, "eviction"+of, ParseInfo(text))
	} else if err := d.unable("Redis"+of, err); err != nil {
		return err
	}
	began := time.Now()
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return d.unable("clock"+of, err)
	}
	off := now.Sub(began.Add(time.Since(began) / 2)).Round(time.Millisecond)
	if off.Abs() > farOff {
		d.foundf(Bad, "clock"+of, "is %s from this machine's: tasks and leases end early or late; synchronize both", off)
	} else {
		d.foundf(Fine, "clock"+of, "is %s from this machine's", off)
	}
	return d.keys(ctx, rdb, of)
}

// ParseInfo reads the answer to INFO.
func ParseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

// info judges what a server says of itself.
func (d *doctor) info(server, eviction string, info map[string]string) {
	version, policy := info["redis_version"], info["maxmemory_policy"]
	numbers := strings.SplitN(version+".0", ".", 3)
	major, _ := strconv.Atoi(numbers[0]) // what is no number is old
	minor, _ := strconv.Atoi(numbers[1])
	switch {
	case version != "" && (major < 6 || major == 6 && minor < 2):
		d.foundf(Bad, server, "version %s is too old: 6.2 or later is needed", version)
	case info["role"] == "slave":
		d.foundf(Bad, server, "is a replica: locks are taken on the master; connect to that (it is %s:%s)", info["master_host"], info["master_port"])
	default:
		d.foundf(Fine, server, "version %s", version)
	}
	switch {
	case policy == "noeviction":
		d.foundf(Fine, eviction, "maxmemory-policy is noeviction")
	case info["maxmemory"] == "0":
		d.foundf(Note, eviction, "maxmemory-policy is %s: it would evict locks, were there a maxmemory; set noeviction", policy)
	default:
		d.foundf(Bad, eviction, "maxmemory-policy is %q: when memory is short Redis evicts locks, and a second holder gets in; set noeviction", policy)
	}
}

// keys walks the keys of one server for two mistakes: another prefix than that of the Guards, and keys of locks to which
// another program has written.
func (d *doctor) keys(ctx context.Context, rdb *redis.Client, of string) error {
	var wrong []string
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		var some []string
		var err error
		if some, cursor, err = rdb.Scan(ctx, cursor, "*:{*}*", 1000).Result(); err != nil {
			return d.unable("keys"+of, err)
		}
		pipe, kinds, lives := rdb.Pipeline(), map[string]*redis.StatusCmd{}, map[string]*redis.DurationCmd{}
		for _, key := range some {
			if prefix, is := strings.CutSuffix(key, fleet.Key("")); is {
				d.prefixes = append(d.prefixes, prefix)
			}
			if strings.HasPrefix(key, d.Prefix+":{") && strings.HasSuffix(key, "}") && key != d.Prefix+":{"+keys.Controls+"}" {
				kinds[key], lives[key] = pipe.Type(ctx, key), pipe.PTTL(ctx, key)
			}
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return d.unable("keys"+of, err)
		}
		for key, kind := range kinds {
			if kind.Val() != "none" && (kind.Val() != "string" || lives[key].Val() == -1) { // -1: for ever
				wrong = append(wrong, printable.Short(key))
			}
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		d.foundf(Bad, "keys"+of, "%s of another type than a lock's: %s; each call for such a lock fails. Find the program that writes there, and DEL the keys",
			printable.Count(len(wrong), "key"), strings.Join(wrong[:min(most, len(wrong))], ", "))
	}
	return nil
}

// trials are the commands that the library sends, itself or from a script, each on names of doctor's own: K a sorted
// set, S a string, H a hash, C a channel. A test holds them against the scripts.
const trials = `zadd K 1 a; pexpire K 60000; pexpireat K 9999999999999; eval return(redis.call('EXISTS',KEYS[1])) 1 K;
	evalsha 0000000000000000000000000000000000000000 1 K; time; exists K; pttl K; zscore K a; zcard K; zcount K -inf +inf; zrank K a; zrange K 0 0;
	zrevrange K 0 0; zrangebyscore K -inf +inf LIMIT 0 1; zremrangebyscore K 5 6; zrem K b; zpopmin K; set S claim PX 60000; get S;
	hset H report {}; hlen H; hget H report; hmget H report; hexists H report; hgetall H; hdel H report; publish C doctor; scan 0 MATCH K COUNT 1; ping;
	unlink K; del K S H`

// Commands returns the commands whose rights Examine tries.
func Commands() (commands []string) {
	for trial := range strings.SplitSeq(trials, ";") {
		commands = append(commands, strings.Fields(trial)[0])
	}
	return commands
}

// rights tries each command.
func (d *doctor) rights(ctx context.Context) error {
	name := "doctor-" + strings.ToLower(rand.Text())
	key := keys.Key(d.Prefix, name)
	names := map[string]string{"K": key, "S": key + ":doctor", "H": key + ":doctors", "C": d.Prefix + ":" + name}
	var missing []string
	var said error // of the first
	for trial := range strings.SplitSeq(trials, ";") {
		var args []any
		for _, word := range strings.Fields(trial) {
			if its, is := names[word]; is {
				word = its
			}
			args = append(args, word)
		}
		err := d.rdb.Do(ctx, args...).Err()
		if reply := redis.Error(nil); err != nil && !errors.As(err, &reply) {
			return inspect.Backend(err)
		} else if denied(err) {
			missing, said = append(missing, fmt.Sprint(args[0])), cmp.Or(said, err)
		}
	}
	sub := d.rdb.Subscribe(ctx, names["C"])
	defer func() { _ = sub.Close() }() // of a connection that is not used again
	if _, err := sub.Receive(ctx); denied(err) {
		missing, said = append(missing, "subscribe"), cmp.Or(said, err)
	} else if err != nil {
		return inspect.Backend(err)
	}
	if len(missing) > 0 {
		d.foundf(Bad, "rights", "not permitted: %s (%s); docs/redis.md has the ACL line that suffices", strings.Join(missing, ", "), printable.OneLine(said.Error()))
	} else {
		d.foundf(Fine, "rights", "each of %d commands, on %s:* and its channels", len(Commands())+1, d.Prefix)
	}
	return nil
}
