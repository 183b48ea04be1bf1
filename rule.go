package automutex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/safelog"
	"github.com/automutex/automutex/lock"
)

// Defaults of [Config] and [Rule].
const (
	defaultPrefix = lock.DefaultPrefix
	defaultLimit  = 1
	defaultTTL    = lock.DefaultTTL

	minTTL = lock.MinTTL
)

// Config is what [New] makes a [Guard] from. It is read once: changing it
// afterwards, or the slices in it, is not allowed and has no defined effect.
type Config struct {
	// Rules declare which tasks take turns. Their order is the order in which
	// a task that several rules apply to takes its locks; see [Rule].Scope.
	// With no rules at all, every task runs as if there were no Guard.
	Rules []Rule

	// Prefix starts every Redis key of this Guard. Empty means "automutex".
	// Braces, spaces and control characters are refused, and so is "asynq",
	// with which asynq's own keys start. Guards that share a Prefix must share
	// one asynq Redis.
	Prefix string

	// HashKeys is a secret that keeps payload values out of keys, and so out of
	// Redis' names, out of what is logged and told, and out of errors: the values
	// of a key are replaced by their HMAC-SHA256 under it, the scope stays
	// readable. Without the secret nobody finds a value by hashing guesses, as an
	// account number would be found in a moment. All Guards with a Prefix, and the
	// producers of package unique, have the same one; changing it renames every
	// lock, as another Prefix does. Empty means that keys are readable; else it
	// has at least 16 bytes.
	HashKeys string

	// Decode returns the payload that rules read, for tasks whose payload is an envelope
	// that another middleware unwraps: On, and what [Rule].Payload checks, are about the
	// JSON that Decode returns. A Key, those of [Fields] and [KeyOf] included, gets a task
	// with the same type and headers and that payload, which need not be JSON. Handlers
	// get the task as it is. nil means that rules read the payload as it is; return
	// t.Payload() for a task that has no envelope.
	//
	// Decode is called once for a task, by Middleware, Keys and Explain, if a rule of
	// the task has On or Key; a task that asks for its key again is decoded again. Its
	// errors count as those of a [KeyFunc] do, for every rule that has On or Key: a
	// [*KeyError] archives the task, [NoLock] means that it takes no lock of these rules,
	// after any other error it comes back, its attempt not spent. A panic costs the task
	// its attempt, as one of the handler does. Decode is called by many goroutines at
	// once, must not change the task, and returns the same bytes for the same task
	// always. Producers need the same one, as Config.Decode of package unique.
	Decode func(*asynq.Task) ([]byte, error)

	// Owner is a label that tells an operator who holds a lock. It need not be
	// unique: nothing is decided by it. Empty means "host:pid".
	Owner string

	// MaxWaiting is how many workers of this process may wait in line at once.
	// Beyond it the policy applies at once, except for a task on its last
	// attempt. 0 means that there is no cap; negative numbers are refused.
	MaxWaiting int

	// MinReplicas is how many replicas of a key's master must have acknowledged
	// a lease for it to count, so that a failover to one of them does not forget
	// it; see [lock.Options]. A task whose key too few acknowledge goes back
	// unspent, as when Redis is away; a handler's context ends when they stay
	// away for a TTL. 0 waits for none; negative numbers are refused.
	MinReplicas int

	// Inspector is what the policy Park wakes tasks with, on the Redis of
	// asynq. nil means one made from the Guard's own Redis client, which must be
	// a redis.UniversalClient then. The Guard does not close it.
	Inspector *asynq.Inspector

	// WakeAtFront has tasks that were parked run before what their queue has
	// pending, where they stand behind it otherwise. It moves the task's ID in
	// asynq's own list of pending tasks, whose layout asynq does not promise:
	// checked with asynq 0.26. It needs the Guard's Redis client to be a
	// redis.UniversalClient on the Redis of asynq.
	WakeAtFront bool

	// Logger is where the Guard logs. nil means slog.Default().
	Logger *slog.Logger

	// Observe is told of every [Event]. It is called by many goroutines at
	// once, on the path of the task, and so should be quick. nil means that
	// nobody is told. A panic costs the task its attempt, as one of the handler
	// does, and leaves no lease behind; on EventLost and EventOverdue, which may
	// come on another goroutine, it is logged instead.
	Observe func(context.Context, Event)
}

// Rule declares which tasks take turns: the task type, the payload fields that
// the key is made from, how many may run at once, and what becomes of a task
// that did not get its lock. Every zero value but that of Task has a meaning.
//
// Without On, OnHeaders and Key there is one lock for the whole Scope.
type Rule struct {
	// Name names the rule in errors, events and logs, and for [LeaseOf]. Names
	// are unique. Empty means Task, and then Task#2, Task#3 and so on for
	// further rules without a Name that have the same Task.
	Name string

	// Task is the task type, or its beginning. It matches as a pattern of
	// asynq's ServeMux does: a rule whose Task equals the type applies, else
	// the rules with the longest Task that the type begins with. Several rules
	// with the same Task all apply, and then need a Scope each. It must not be
	// blank.
	Task string

	// On lists the payload fields that the key is made from, as [Fields] takes
	// them.
	On []string

	// OnHeaders lists the task headers that the key is made from, as [Headers]
	// takes them. Their values come after those of On.
	OnHeaders []string

	// Key makes the parts of the key where On and OnHeaders do not do. It
	// excludes them. What its errors do, and [NoLock], see [KeyFunc].
	Key KeyFunc

	// Payload is a value of the Go type that the payload, or what [Config].Decode
	// returns, is decoded into. With it, New refuses a path in On that the type's
	// JSON has no field for; only the type is looked at. nil means that paths are
	// not checked.
	Payload any

	// Scope is the first part of the key: rules with one Scope share their
	// locks, and must have the same Limit and TTL. Empty means the type of the
	// task itself, so that a Task which is a beginning has a lock of its own
	// for each type that it matches.
	//
	// A task that several rules apply to takes its locks in one order, the
	// same for all tasks, so that no two tasks wait for each other: scopes in
	// the order in which the rules declare them, keys of one scope in byte
	// order, and equal keys once, under the rule declared first. New refuses
	// declarations that contradict each other.
	Scope string

	// Limit is how many tasks may hold one key at once. 0 means 1, a mutex.
	// Negative numbers are refused.
	Limit int

	// TTL is the length of a lease, which is renewed while the handler runs:
	// it bounds how long a key stays taken after its process has died, not how
	// long a handler may run. 0 means 30 seconds; less than 100 milliseconds
	// is refused.
	TTL time.Duration

	// Wait is the longest time that a task stands in line, in its worker,
	// before the policy applies. 0 means not at all; for [Replace] a TTL. Time in
	// line counts against the task's Timeout (30 minutes unless the task was
	// enqueued with another): give it one of at least the Wait and the work. A
	// wait ends a second before the task's deadline.
	Wait time.Duration

	// MaxHold bounds how long one task may hold the lock: then its handler's
	// context is cancelled and the lease is renewed no more, so that the key
	// is free at most a TTL later. 0 means that there is no bound; less than a
	// millisecond is refused.
	MaxHold time.Duration

	// Cooldown keeps the key taken after a success until this long after the
	// run began, so that there is at most one successful run per key in that
	// time. 0 means none; less than a millisecond is refused, as is a Cooldown
	// with a Limit above 1.
	Cooldown time.Duration

	// Busy is what becomes of a task that did not get its lock. The zero value
	// is [Retry].
	Busy Policy
}

// withDefaults fills in the zero values of Config itself; compile does so for
// the rules.
func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		c.Owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	c.Logger = safelog.New(c.Logger)
	return c
}

// compiled is a rule with its defaults filled in, ready to be applied.
type compiled struct {
	Rule
	index int // place in Config.Rules
	rank  int // place of the rule's scope in the order in which locks are taken

	onFrom, onTo int       // the values of On among those of all rules of this Task
	fields       *fieldSet // those of On alone; nil without any
}

// where names the rule in an error.
func (c *compiled) where() string {
	return fmt.Sprintf("rule %q (Rules[%d])", c.Name, c.index)
}

// scope is the scope of the rule's locks for a task of the given type.
func (c *compiled) scope(taskType string) string {
	if c.Scope != "" {
		return c.Scope
	}
	return taskType
}

// compile checks the whole configuration and makes the rules ready. The error
// joins everything that is wrong; the notices are for the log.
func compile(cfg Config) (rs *ruleSet, notices []string, err error) {
	rules := make([]*compiled, len(cfg.Rules))
	for i, rule := range cfg.Rules {
		rules[i] = &compiled{Rule: rule, index: i}
	}
	nameRules(rules)

	problems := checkConfig(cfg)
	for _, rule := range rules {
		for _, problem := range rule.check() {
			problems = append(problems, fmt.Errorf("automutex: %s: %w", rule.where(), problem))
		}
		rule.fillDefaults()
	}
	problems = append(problems, checkTogether(rules)...)

	rs, orderProblems := newRuleSet(rules)
	rs.secret = cfg.HashKeys
	rs.setDecode(cfg.Decode)
	problems = append(problems, orderProblems...)
	if len(problems) > 0 {
		return nil, nil, errors.Join(problems...)
	}
	return rs, rs.notices(), nil
}

// nameRules gives a Name to the rules that have none.
func nameRules(rules []*compiled) {
	unnamed := map[string]int{}
	for _, rule := range rules {
		if rule.Name != "" {
			continue
		}
		rule.Name = rule.Task
		if unnamed[rule.Task]++; unnamed[rule.Task] > 1 {
			rule.Name = fmt.Sprintf("%s#%d", rule.Task, unnamed[rule.Task])
		}
	}
}

func (c *compiled) fillDefaults() {
	if c.Limit == 0 {
		c.Limit = defaultLimit
	}
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	c.On = slices.Clone(c.On)
	c.OnHeaders = slices.Clone(c.OnHeaders)
}

func checkConfig(cfg Config) (problems []error) {
	report := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("automutex: Config."+format, args...))
	}
	if err := lock.CheckPrefix(cfg.Prefix); err != nil {
		report("Prefix: %w", err)
	}
	if cfg.Prefix == "asynq" {
		report(`Prefix: "asynq" is what asynq's own keys start with; choose another, such as "myapp"`)
	}
	if err := lock.CheckSecret(cfg.HashKeys); err != nil {
		report("HashKeys: %w", err)
	}
	if cfg.MaxWaiting < 0 {
		report("MaxWaiting: %d is negative; use 0 for no cap", cfg.MaxWaiting)
	}
	if cfg.MinReplicas < 0 {
		report("MinReplicas: %d is negative; use 0 to wait for no replica", cfg.MinReplicas)
	}
	return problems
}

// check gives everything that is wrong with the rule by itself, as declared.
func (c *compiled) check() (problems []error) {
	report := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}

	if strings.TrimSpace(c.Task) == "" {
		report("Task: %q is blank; name the task type that the rule is for, or its beginning", c.Task)
	} else if strings.TrimSpace(c.Task) != c.Task {
		report("Task: %q begins or ends with a blank, and would match no task; leave it out", c.Task)
	}
	if c.Key != nil && len(c.On)+len(c.OnHeaders) > 0 {
		report("Key: excludes On and OnHeaders; keep the one or the other")
	}
	problems = append(problems, c.checkOn()...)
	for i, name := range c.OnHeaders {
		switch {
		case name == "":
			report("OnHeaders[%d]: is empty; name a header, or leave it out", i)
		case slices.Index(c.OnHeaders, name) < i:
			report("OnHeaders[%d]: %q is there twice; leave one out", i, name)
		}
	}

	if c.Limit < 0 {
		report("Limit: %d is negative; use 1 for a mutex, more for a semaphore", c.Limit)
	}
	if c.TTL < 0 || c.TTL > 0 && c.TTL < minTTL {
		report("TTL: %s is too short; use 0 for %s, or at least %s%s", c.TTL, defaultTTL, minTTL, meantUnit(c.TTL))
	}
	if c.TTL > lock.MaxTTL || c.Cooldown > lock.MaxTTL {
		report("TTL: %s or Cooldown: %s is too long; at most %s", c.TTL, c.Cooldown, lock.MaxTTL)
	}
	switch {
	case c.Wait < 0:
		report("Wait: %s is negative; use 0 to not wait in line", c.Wait)
	case c.Wait > 0 && c.Wait < time.Millisecond:
		report("Wait: %s is too short; use 0 to not wait in line, or at least 1ms%s", c.Wait, meantUnit(c.Wait))
	}
	if c.MaxHold < 0 || c.MaxHold > 0 && c.MaxHold < time.Millisecond {
		report("MaxHold: %s is too short; use 0 for no bound, or at least 1ms%s", c.MaxHold, meantUnit(c.MaxHold))
	}
	if c.Cooldown < 0 || c.Cooldown > 0 && c.Cooldown < time.Millisecond {
		report("Cooldown: %s is too short; use 0 for none, or at least 1ms%s", c.Cooldown, meantUnit(c.Cooldown))
	}
	if c.Cooldown > 0 && c.Limit > 1 {
		report("Cooldown: does not go with Limit %d; use Limit 1, or no Cooldown", c.Limit)
	}
	if err := c.Busy.check(); err != nil {
		report("Busy: %w", err)
	}
	return problems
}

// meantUnit says what a duration was probably meant to be that is given as a bare
// number: Go counts that in nanoseconds.
func meantUnit(d time.Duration) string {
	if d <= 0 || d >= 100*time.Microsecond {
		return ""
	}
	return fmt.Sprintf("; did you mean %ds? Go counts a bare number in nanoseconds", int64(d))
}

func (c *compiled) checkOn() (problems []error) {
	for i, path := range c.On {
		segments, err := parsePath(path)
		if err == nil && slices.Index(c.On, path) < i {
			err = errors.New("is there twice; leave one out")
		}
		if err == nil && c.Payload != nil {
			err = checkPayloadPath(c.Payload, segments)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("On[%d]: %q %w", i, path, err))
		}
	}
	return problems
}

// checkTogether gives everything that is wrong between rules that are each
// right by themselves. Defaults are filled in.
func checkTogether(rules []*compiled) (problems []error) {
	names, tasks, scopes := map[string]*compiled{}, map[string]int{}, map[string]*compiled{}
	for _, rule := range rules {
		tasks[rule.Task]++
	}
	for _, rule := range rules {
		report := func(format string, args ...any) {
			problems = append(problems, fmt.Errorf("automutex: %s: %w", rule.where(), fmt.Errorf(format, args...)))
		}
		if first := names[rule.Name]; first != nil {
			report("Name: is that of Rules[%d] too; names are unique", first.index)
		} else {
			names[rule.Name] = rule
		}
		if rule.Scope == "" && tasks[rule.Task] > 1 {
			report("Scope: is empty, and %d rules have the Task %q; give each of them a Scope", tasks[rule.Task], rule.Task)
			continue
		}
		scope := rule.scope(rule.Task)
		first := scopes[scope]
		if first == nil {
			scopes[scope] = rule
			continue
		}
		if first.Limit != rule.Limit {
			report("Limit: is %d, but %s has %d for the same scope %q; one scope has one Limit", rule.Limit, first.where(), first.Limit, scope)
		}
		if first.TTL != rule.TTL {
			report("TTL: is %s, but %s has %s for the same scope %q; one scope has one TTL", rule.TTL, first.where(), first.TTL, scope)
		}
	}
	return problems
}
