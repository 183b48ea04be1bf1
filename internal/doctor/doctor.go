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

// Examine checks everything under a prefix. It holds the rules of cfg against the tasks; with nil those that Guards say
// they run. An error ends it early, with the findings until then: Redis is out of reach, or the rules have mistakes.
// What Redis refuses to tell is a finding.
func Examine(ctx context.Context, rdb redis.UniversalClient, prefix string, cfg *automutex.Config) ([]Finding, error) {
	d := &doctor{
		rdb: rdb, prefix: prefix, asynq: asynq.NewInspectorFromRedisClient(rdb),
		engine: engine.New(engine.Options{Client: rdb, Prefix: prefix, Log: slog.New(slog.DiscardHandler), Obeys: true}),
	}
	defer d.engine.Close()
	if cfg != nil {
		if err := d.use(*cfg); err != nil {
			return nil, err
		}
		d.ran = &fleet.Process{Owner: "the file", Hashed: cfg.HashKeys != "", Rules: inspect.Describe(cfg.Rules)}
	}
	nodes, err := redisx.Masters(ctx, rdb)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lock.ErrBackend, err)
	}
	for _, d.node = range nodes {
		if len(nodes) > 1 {
			d.of = " of " + d.node.Options().Addr
		}
		if err := d.look(ctx, check{"Redis", d.server}, check{"clock", d.clock}, check{"keys", d.keys}); err != nil {
			return d.findings, err
		}
	}
	d.of = ""
	err = d.look(ctx, check{"rights", d.rights}, check{"rules", d.fleet}, check{"paused", d.paused},
		check{"order", d.blocked}, check{"tasks", d.tasks})
	return d.findings, err
}

type check struct {
	what string
	look func(ctx context.Context) error
}

func (d *doctor) look(ctx context.Context, checks ...check) error {
	for _, c := range checks {
		switch err := c.look(ctx); {
		case redisx.HasCode(err, "NOPERM"):
			d.foundf(Note, c.what, "could not be looked at: %s", printable.OneLine(err.Error()))
		case redisx.IsServers(err):
			d.foundf(Bad, c.what, "could not be looked at: %s", printable.OneLine(err.Error()))
		case errors.Is(err, lock.ErrBackend):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", lock.ErrBackend, err)
		}
	}
	return nil
}

type doctor struct {
	rdb      redis.UniversalClient
	prefix   string
	asynq    *asynq.Inspector
	engine   *engine.Engine
	rules    []automutex.Rule     // to hold against the tasks
	byTask   *tasktype.Map[[]int] // finds rules
	maker    *automutex.KeyMaker  // of rules; nil without any
	types    []string             // of tasks that are served, or queued
	ran      *fleet.Process       // what would run by the Config
	node     *redis.Client        // that is looked at
	of       string               // names it among several
	findings []Finding
}

func (d *doctor) foundf(level, what, format string, args ...any) {
	d.findings = append(d.findings, Finding{level, what + d.of, fmt.Sprintf(format, args...)})
}

func (d *doctor) use(cfg automutex.Config) error {
	cfg.Logger = slog.New(slog.DiscardHandler)
	maker, err := automutex.NewKeyMaker(cfg)
	if err == nil {
		d.rules, d.byTask, d.maker = cfg.Rules, inspect.ByTask(cfg.Rules), maker
	}
	return err
}

func (d *doctor) server(ctx context.Context) error {
	info := d.node.InfoMap(ctx)
	if info.Err() != nil {
		return info.Err()
	}
	version, policy := info.Item("Server", "redis_version"), info.Item("Memory", "maxmemory_policy")
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor) // what is no number is old
	switch {
	case version != "" && (major < 6 || major == 6 && minor < 2):
		d.foundf(Bad, "Redis", "version %s is too old: 6.2 or later is needed", version)
	case info.Item("Replication", "role") == "slave":
		d.foundf(Bad, "Redis", "is a replica: locks are taken on the master; connect to that (it is %s:%s)",
			info.Item("Replication", "master_host"), info.Item("Replication", "master_port"))
	default:
		d.foundf(Fine, "Redis", "version %s", version)
	}
	used, _ := strconv.Atoi(info.Item("Memory", "used_memory"))
	limit, _ := strconv.Atoi(info.Item("Memory", "maxmemory"))
	switch {
	case policy == "noeviction" && limit > 0 && used >= limit:
		d.foundf(Bad, "eviction", "Redis is full, and refuses writes (OOM), so that nobody gets a lock: raise maxmemory")
	case policy == "noeviction":
		d.foundf(Fine, "eviction", "maxmemory-policy is noeviction")
	case info.Item("Memory", "maxmemory") == "0":
		d.foundf(Note, "eviction", "maxmemory-policy is %s: it would evict locks, were there a maxmemory; set noeviction",
			policy)
	default:
		d.foundf(Bad, "eviction", "maxmemory-policy is %q: when memory is short Redis evicts locks, and a second holder "+
			"gets in; set noeviction", policy)
	}
	return nil
}

func (d *doctor) clock(ctx context.Context) error {
	began := time.Now()
	now, err := d.node.Time(ctx).Result()
	if err != nil {
		return err
	}
	off := now.Sub(began.Add(time.Since(began) / 2)).Round(time.Millisecond)
	if off.Abs() > 5*time.Second { // asynq compares times of both
		d.foundf(Bad, "clock", "is %s from this machine's: tasks and leases end early or late; synchronize both", off)
	} else {
		d.foundf(Fine, "clock", "is %s from this machine's", off)
	}
	return nil
}

// keys walks the keys of one server for those of locks to which another program has written.
func (d *doctor) keys(ctx context.Context) error {
	var wrong []string
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		var some []string
		var err error
		if some, cursor, err = d.node.Scan(ctx, cursor, "*:{*}*", 1000).Result(); err != nil {
			return err
		}
		pipe, kinds, lives := d.node.Pipeline(), map[string]*redis.StatusCmd{}, map[string]*redis.DurationCmd{}
		for _, key := range some {
			if strings.HasPrefix(key, d.prefix+":{") && strings.HasSuffix(key, "}") && key != d.prefix+":{"+keys.Controls+"}" {
				kinds[key], lives[key] = pipe.Type(ctx, key), pipe.PTTL(ctx, key)
			}
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		for key, kind := range kinds {
			if kind.Val() != "none" && (kind.Val() != "string" || lives[key].Val() == -1) { // -1: for ever
				wrong = append(wrong, printable.Short(key))
			}
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		d.foundf(Bad, "keys", "%s of another type than a lock's: %s; each call for such a lock fails. Find the program "+
			"that writes there, and DEL the keys",
			printable.Count(len(wrong), "key"), strings.Join(wrong[:min(5, len(wrong))], ", "))
	}
	return nil
}

// trials are the commands that the library sends, itself or from a script, each on a key K of doctor's own, which is
// also the name of a channel. A command that K is of another type for is permitted, too. A test holds them against the
// scripts.
const trials = `zadd K 1 a;pexpire K 60000;pexpireat K 9999999999999;eval return(redis.call('EXISTS',KEYS[1])) 1 K;
evalsha 0000000000000000000000000000000000000000 1 K;time;exists K;pttl K;zscore K a;zcard K;zcount K -inf +inf;
zrank K a;zrange K 0 0;zrevrangebyscore K +inf -inf LIMIT 0 1;zrangebyscore K -inf +inf LIMIT 0 1;
zremrangebyscore K 5 6;zrem K b;zpopmin K;set K claim PX 60000;get K;hset K report {};hlen K;
hget K report;hmget K report;hexists K report;hgetall K;hdel K report;publish K doctor;subscribe K;
scan 0 MATCH K COUNT 1;ping;unlink K;del K`

func (d *doctor) rights(ctx context.Context) error {
	key := keys.Key(d.prefix, "doctor-"+strings.ToLower(rand.Text()))
	var missing []string
	all := strings.Split(trials, ";")
	for _, trial := range all {
		var args []any
		for _, word := range strings.Fields(trial) {
			if word == "K" {
				word = key
			}
			args = append(args, word)
		}
		var err error
		if args[0] == "subscribe" {
			sub := d.rdb.Subscribe(ctx, key)
			_, err = sub.Receive(ctx)
			_ = sub.Close() // of a connection that is not used again
		} else {
			err = d.rdb.Do(ctx, args...).Err()
		}
		if err != nil && !redisx.IsServers(err) {
			return err
		} else if redisx.HasCode(err, "NOPERM") {
			missing = append(missing, fmt.Sprint(args[0]))
		}
	}
	if len(missing) > 0 {
		d.foundf(Bad, "rights", "not permitted: %s; docs/redis.md has the ACL line that suffices",
			strings.Join(missing, ", "))
	} else {
		d.foundf(Fine, "rights", "each of %d commands, on %s:* and its channels", len(all), d.prefix)
	}
	return nil
}

// fleet tells what does not fit together in what Guards run. Without a Config their rules are held against the tasks.
func (d *doctor) fleet(ctx context.Context) error {
	guards, err := fleet.Read(ctx, d.rdb, d.prefix)
	if err != nil {
		return err
	}
	for _, p := range guards {
		d.types = append(d.types, p.Serves...)
	}
	differ := fleet.Differences(d.withFile(guards))
	for _, difference := range differ {
		d.foundf(Bad, "rules", "%s", printable.OneLine(difference))
	}
	if len(guards) > 0 && len(differ) == 0 {
		d.foundf(Fine, "rules", "%s; what they run fits together", printable.Count(len(guards), "Guard"))
	}
	switch rules := fleet.Rules(guards); {
	case d.maker != nil:
	case len(rules) == 0:
		d.foundf(Note, "rules", "not looked at: no Guard says which it runs; give the FILE of the rules")
	case d.use(automutex.Config{Prefix: d.prefix, Rules: inspect.FromFleet(rules)}) != nil:
		d.foundf(Note, "rules", "not held against the tasks: those of different Guards make no one set")
	}
	return nil
}

// withFile puts what the file says before what Guards say, but for what their programs compute.
func (d *doctor) withFile(guards []fleet.Process) []fleet.Process {
	if d.ran == nil || len(guards) == 0 {
		return guards
	}
	run := fleet.Rules(guards)
	for i := range d.ran.Rules {
		its := &d.ran.Rules[i]
		at := slices.IndexFunc(run, func(r fleet.Rule) bool { return r.Name == its.Name })
		if at < 0 {
			d.foundf(Note, "rules", "no Guard says that it runs %s, which the file has", printable.Short(its.Name))
			continue
		}
		if run[at].Computed {
			its.Computed, its.On, its.OnHeaders = true, nil, nil
		}
		if run[at].Limit == "computed" {
			its.Limit = run[at].Limit
		}
		if strings.HasPrefix(run[at].Busy, "after failure") {
			its.Busy = run[at].Busy
		}
		run = slices.Delete(run, at, at+1)
	}
	for _, r := range run {
		d.foundf(Note, "rules", "the file has no rule %s, which Guards say that they run", printable.Short(r.Name))
	}
	return append([]fleet.Process{*d.ran}, guards...)
}

// paused tells what operators have paused or limited: it keeps tasks from running, and little else shows why.
func (d *doctor) paused(ctx context.Context) error {
	orders, err := d.engine.Controls().Orders(ctx)
	for _, o := range orders {
		d.foundf(Note, "paused", "%s is %s", o.Target, o.Control)
	}
	return err
}

// blocked names the first ordered key whose next task does not run.
func (d *doctor) blocked(ctx context.Context) error {
	all, err := blocked.List(ctx, d.engine, d.asynq)
	if len(all) > 0 {
		d.foundf(Bad, "order", "%s of key %s behind %s, which %s; automutex blocked lists all",
			printable.Count(all[0].Behind, "task"), all[0].Key, all[0].Task, printable.OneLine(all[0].Why))
	}
	return err
}

// tasks looks at asynq's queues, and holds the rules against the tasks that are to run: the first of each queue and
// state.
func (d *doctor) tasks(ctx context.Context) error {
	queues, err := d.asynq.Queues()
	if err != nil {
		return err
	}
	found := map[Finding]int{} // of how many tasks
	for _, queue := range queues {
		if info, err := d.asynq.GetQueueInfo(queue); err == nil && info.Paused {
			d.foundf(Note, "paused", "asynq's queue %s is: a task in it whose turn has come keeps those behind it waiting",
				queue)
		}
		for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
			d.asynq.ListPendingTasks, d.asynq.ListActiveTasks, d.asynq.ListScheduledTasks, d.asynq.ListRetryTasks,
		} {
			tasks, err := list(queue, asynq.PageSize(1000))
			if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) { // deleted meanwhile
				return err
			}
			for _, task := range tasks {
				if d.types = append(d.types, task.Type); d.maker != nil {
					d.hold(ctx, task, found)
				}
			}
		}
	}
	if len(queues) == 0 && slices.ContainsFunc(d.rules, func(r automutex.Rule) bool { return r.Busy == automutex.Park }) {
		d.foundf(Note, "Inspector", "rules park tasks, but asynq has no queue in this database: if asynq uses another "+
			"Redis or database, set Config.Inspector to an asynq.Inspector there, or parked tasks are not called")
	}
	d.slips()
	sorted := slices.SortedFunc(maps.Keys(found), func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), found[b]-found[a], cmp.Compare(a.Text, b.Text))
	})
	for _, f := range sorted[:min(10, len(sorted))] {
		d.foundf(f.Level, f.What, "%s (%s)", f.Text, printable.Count(found[f], "task"))
	}
	return nil
}

// slips finds rules for which there is no type, while one that looks alike has no rule.
func (d *doctor) slips() {
	for _, rule := range d.rules {
		meant := slices.IndexFunc(d.types, func(t string) bool {
			return d.byTask.Pattern(t) == "" && nearest.IsMeant(rule.Task, t)
		})
		if meant >= 0 && !slices.ContainsFunc(d.types, func(t string) bool { return d.byTask.Pattern(t) == rule.Task }) {
			d.foundf(Bad, "tasks", "nothing serves %q, which a rule is for, and no rule is for %q: did you mean that?",
				rule.Task, d.types[meant])
		}
	}
}

// hold counts what is wrong with a task by the rules.
func (d *doctor) hold(ctx context.Context, task *asynq.TaskInfo, found map[Finding]int) {
	if _, err := d.maker.Keys(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers)); err != nil {
		why, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "automutex: "), "; enqueue the task")
		found[Finding{Bad, "keys", printable.OneLine(why)}]++
	}
	its, _ := d.byTask.Find(task.Type)
	for _, i := range its {
		if rule := d.rules[i]; rule.Busy != automutex.Park && rule.Wait > 0 && task.Timeout > 0 && task.Timeout <= rule.Wait {
			found[Finding{Note, "Wait", fmt.Sprintf("rule %q: its Wait of %s is no shorter than the Timeout of tasks, of "+
				"which time in line is part; "+
				"make Wait shorter, or Timeout longer", cmp.Or(rule.Name, rule.Task), printable.Exact(rule.Wait))}]++
		}
	}
}
