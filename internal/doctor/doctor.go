// Package doctor looks for what keeps locks from working: Redis' settings and rights, and rules that do not fit the
// tasks that there are.
package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
	"github.com/automutex/automutex/internal/tasktype"
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
}

// Examine checks everything. An error ends it early, with the findings until then: Redis
// is out of reach, or the rules have mistakes.
func Examine(ctx context.Context, rdb redis.UniversalClient, options Options) ([]Finding, error) {
	d := &doctor{
		Options: options, rdb: rdb, asynq: asynq.NewInspectorFromRedisClient(rdb),
		engine: engine.New(engine.Options{Client: rdb, Prefix: options.Prefix, Log: slog.New(slog.DiscardHandler), Obeys: true}),
	}
	defer d.engine.Close()
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

// most is how many findings of one kind there are.
const most = 5

// doctor collects findings.
type doctor struct {
	Options
	rdb      redis.UniversalClient
	asynq    *asynq.Inspector
	engine   *engine.Engine
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

// fleet tells what does not fit together in what Guards run. Without a Config their rules are held against the tasks.
func (d *doctor) fleet(ctx context.Context) (err error) {
	if d.guards, err = fleet.Read(ctx, d.rdb, d.Prefix); err != nil {
		return d.unable("rules", err)
	}
	differ := fleet.Differences(d.guards)
	for _, difference := range differ {
		d.foundf(Bad, "rules", "%s", printable.OneLine(difference.String()))
	}
	if len(d.guards) == 0 && len(d.prefixes) > 0 {
		d.foundf(Note, "prefix", "no Guard says that it has the prefix %s; there are Guards with %s: give that with --prefix", d.Prefix, strings.Join(d.prefixes, ", "))
	} else if len(d.guards) > 0 && len(differ) == 0 {
		d.foundf(Fine, "rules", "%s; what they run fits together", printable.Count(len(d.guards), "Guard"))
	}
	if rules := fleet.Rules(d.guards); d.Config == nil && len(rules) > 0 {
		cfg := automutex.Config{Prefix: d.Prefix, Rules: inspect.FromFleet(rules), Logger: slog.New(slog.DiscardHandler)}
		if _, err := automutex.NewKeyMaker(cfg); err != nil {
			d.foundf(Note, "rules", "not held against the tasks: those of different Guards make no one set")
		} else {
			d.Config = &cfg
		}
	} else if d.Config == nil {
		d.foundf(Note, "rules", "not looked at: no Guard says which it runs; give the FILE of the rules")
	}
	return nil
}

// paused tells what operators have paused or limited: it keeps tasks from running, and little else shows why.
func (d *doctor) paused(ctx context.Context) error {
	orders, err := d.engine.Controls().Orders(ctx)
	if said := redis.Error(nil); errors.As(err, &said) {
		d.foundf(Bad, "paused", "pauses and limits cannot be read, so programs that start obey none: %s", printable.OneLine(err.Error()))
		return nil
	} else if err != nil {
		return err
	}
	for _, o := range orders {
		d.foundf(Note, "paused", "%s is %s", o.Target, o.Text())
	}
	return nil
}

// blocked names ordered keys whose next task does not run.
func (d *doctor) blocked(ctx context.Context) error {
	keys, err := blocked.List(ctx, d.engine, d.asynq)
	if err != nil {
		return d.unable("order", err)
	}
	for _, key := range keys[:min(most, len(keys))] {
		d.foundf(Bad, "order", "%s of key %s behind %s, which %s", printable.Count(key.Behind, "task"), key.Key, key.Task, printable.OneLine(key.Why))
	}
	if more := len(keys) - most; more > 0 {
		d.foundf(Bad, "order", "and %s; automutex blocked lists all", printable.Count(more, "more key"))
	}
	return nil
}

// tasks holds the rules against asynq's queues and tasks.
func (d *doctor) tasks(ctx context.Context) error {
	queues, err := d.asynq.Queues()
	if err != nil {
		return d.unable("tasks", err)
	}
	for _, queue := range queues {
		if info, err := d.asynq.GetQueueInfo(queue); err == nil && info.Paused {
			d.foundf(Note, "paused", "asynq's queue %s is: a task in it whose turn has come keeps those behind it waiting", queue)
		}
	}
	if d.Config == nil {
		return nil
	}
	parks := slices.ContainsFunc(d.Config.Rules, func(r automutex.Rule) bool { return r.Busy == automutex.Park })
	if len(queues) == 0 && parks {
		d.foundf(Note, "Inspector", "rules park tasks, but asynq has no queue in this database: if asynq uses another Redis or database, set Config.Inspector to an asynq.Inspector there, or parked tasks are not called")
	}
	return d.trial(ctx, *d.Config, queues)
}

// trial holds rules against the tasks that there are.
func (d *doctor) trial(ctx context.Context, cfg automutex.Config, queues []string) error {
	cfg.Logger = slog.New(slog.DiscardHandler)
	maker, err := automutex.NewKeyMaker(cfg)
	if err != nil {
		return err
	}
	byTask := inspect.ByTask(cfg.Rules)
	types, noKey, short := map[string]bool{}, map[string]int{}, map[int]int{}
	err = d.eachTask(ctx, queues, func(task *asynq.TaskInfo) {
		types[task.Type] = true
		if task.State == asynq.TaskStateArchived || task.State == asynq.TaskStateCompleted {
			return // it may have had another form
		}
		if _, err := maker.Keys(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers)); err != nil {
			why, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "automutex: "), "; enqueue the task")
			noKey[printable.OneLine(why)]++
		}
		its, _ := byTask.Find(task.Type)
		for _, i := range its {
			if rule := cfg.Rules[i]; rule.Busy != automutex.Park && rule.Wait > 0 && task.Timeout > 0 && task.Timeout <= rule.Wait {
				short[i]++
			}
		}
	})
	if err != nil {
		return d.unable("tasks", err)
	}
	reasons := slices.SortedFunc(maps.Keys(noKey), func(a, b string) int { return noKey[b] - noKey[a] })
	for _, why := range reasons[:min(most, len(reasons))] {
		d.foundf(Bad, "keys", "%s (%s); a worker archives such a task unrun", why, printable.Count(noKey[why], "task"))
	}
	for i, rule := range inspect.Describe(cfg.Rules) {
		if n := short[i]; n > 0 {
			d.foundf(Note, "Wait", "rule %q: its Wait of %s is no shorter than the Timeout of %s: time in line is part of a task's Timeout; make Wait shorter, or Timeout longer",
				rule.Name, rule.Wait, printable.Count(n, "task"))
		}
	}
	d.slips(cfg.Rules, byTask, types)
	return nil
}

// mostTasks is how many tasks of each queue and state are looked at.
const mostTasks = 1000

// eachTask calls f for the tasks of the queues.
func (d *doctor) eachTask(ctx context.Context, queues []string, f func(*asynq.TaskInfo)) error {
	type lister func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	in, page := d.asynq, 100
	for _, queue := range queues {
		for _, list := range []lister{in.ListPendingTasks, in.ListActiveTasks, in.ListScheduledTasks, in.ListRetryTasks, in.ListArchivedTasks, in.ListCompletedTasks} {
			for n := 0; n*page < mostTasks && ctx.Err() == nil; n++ {
				tasks, err := list(queue, asynq.PageSize(page), asynq.Page(n+1))
				if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) { // deleted meanwhile
					return err
				}
				for _, task := range tasks {
					f(task)
				}
				if len(tasks) < page {
					break
				}
			}
		}
	}
	return ctx.Err()
}

// slips finds rules that nothing serves, while a type that looks alike is served and has no rule.
func (d *doctor) slips(rules []automutex.Rule, byTask *tasktype.Map[[]int], types map[string]bool) {
	for _, p := range d.guards {
		for _, served := range p.Serves {
			types[served] = true
		}
	}
	matched, loose := map[string]bool{}, []string{}
	for _, taskType := range slices.Sorted(maps.Keys(types)) {
		if its, found := byTask.Find(taskType); found {
			matched[rules[its[0]].Task] = true
		} else {
			loose = append(loose, taskType)
		}
	}
	for _, rule := range rules {
		i := slices.IndexFunc(loose, func(taskType string) bool { return nearest.IsMeant(rule.Task, taskType) })
		if i >= 0 && !matched[rule.Task] {
			matched[rule.Task] = true // of several rules for it, one is named
			d.foundf(Bad, "tasks", "nothing serves %q, which a rule is for, and no rule is for %q: did you mean that?", rule.Task, loose[i])
		}
	}
}
