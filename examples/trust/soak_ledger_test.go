package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// soakLedger is what workers write down of what they do, in a Redis that no fault
// hits: who is at work on which key, and what became of which task. It works
// across processes, and every entry may be made twice: go-redis resends.
type soakLedger struct {
	rdb  *redis.Client
	fail func(error) // told of what must not happen: an entry that cannot be made
}

// What became of tasks: sets of their numbers.
const (
	done     = "done"     // a handler succeeded
	skipped  = "skipped"  // EventSkipped
	replaced = "replaced" // EventReplaced
	dropped  = "dropped"  // AfterFailure answered nil
	revoked  = "revoked"  // a handler returned asynq.RevokeTask
	final    = "final"    // its last attempt came, or a handler failed for good: it may be archived, and make room for another one
	unkeyed  = "unkeyed"  // EventKeyError
	began    = "began"    // a handler began with one that a newer task may take the place of
	robbed   = "robbed"   // asynq counts attempts that nobody has spent
)

// note puts a task into one of these sets. It comes before what asynq is told.
func (l *soakLedger) note(what string, n int) {
	if err := l.rdb.SAdd(context.Background(), what, n).Err(); err != nil {
		l.fail(err)
	}
}

// spent notes that an attempt is about to be.
func (l *soakLedger) spent(n int) {
	if err := l.rdb.HIncrBy(context.Background(), "spent", strconv.Itoa(n), 1).Err(); err != nil {
		l.fail(err)
	}
}

// checkSpent notes a task of which asynq counts more attempts than were spent.
func (l *soakLedger) checkSpent(n, retried int) {
	spent, err := l.rdb.HGet(context.Background(), "spent", strconv.Itoa(n)).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		l.fail(err)
	}
	if retried > spent {
		l.note(robbed, n)
	}
}

// count counts what only figures are made of.
func (l *soakLedger) count(what string) {
	if err := l.rdb.HIncrBy(context.Background(), "counts", what, 1).Err(); err != nil {
		l.fail(err)
	}
}

// soakRun is one run of a handler.
type soakRun struct {
	proc string // the life of a worker, which may be killed
	name string // unique
	n    int
	keys []string
	// fences of the leases, 0 where there is none
	fences []int64
	// came to the guard, and to the handler: its lease began between the two
	came, began time.Time
}

// enterLua notes a run on its keys, and everyone who is there beside it if these
// are more than may be. A fence that does not grow is noted too, where one holds
// a key at a time.
// KEYS: procs that are about to be killed, the keys of this proc, overlaps, fences,
// all runs, and a key each. ARGV: proc, run, then for each key its limit, its fence and its name.
var enterLua = redis.NewScript(`
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 0 end
redis.call('SADD', KEYS[5], ARGV[2])
for i = 6, #KEYS do
  local at = 3 + (i - 6) * 3
  local limit, fence, name = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  if redis.call('SADD', KEYS[i], ARGV[2]) == 1 then
    redis.call('SADD', KEYS[2], KEYS[i])
    local there = redis.call('SMEMBERS', KEYS[i])
    if limit == 0 and #there > 1 then
      redis.call('HINCRBY', 'counts', 'beside others, as Allow has it', 1)
    elseif limit > 0 and #there > limit then
      redis.call('RPUSH', KEYS[3], limit .. ' ' .. ARGV[2] .. ' ' .. table.concat(there, ' ') .. ' on ' .. name)
    end
    if limit == 1 and fence ~= '0' then -- 0: Redis did not tell it, and nothing is written with it
      local last = redis.call('HGET', KEYS[4], name)
      if last and tonumber(last) >= tonumber(fence) then
        redis.call('RPUSH', KEYS[3], '0 ' .. ARGV[2] .. ' fence ' .. fence .. ' after ' .. last .. ' on ' .. name)
      end
      redis.call('HSET', KEYS[4], name, fence)
    end -- of a mutex
  end -- of the first time
end
return 0`)

func (l *soakLedger) enter(r soakRun) {
	keys := []string{"killed", "of:" + r.proc, "overlaps", "fences", "working"}
	args := []any{r.proc, r.name}
	for i, key := range r.keys {
		keys = append(keys, "in:"+key)
		args = append(args, soakLimit(key), r.fences[i], key)
	}
	if err := enterLua.Run(context.Background(), l.rdb, keys, args...).Err(); err != nil {
		l.fail(err)
	}
}

// leave ends a run. One that has lost its lease before is no overlap's fault: its
// context had ended.
func (l *soakLedger) leave(r soakRun, lost bool) {
	_, err := l.rdb.Pipelined(context.Background(), func(p redis.Pipeliner) error {
		p.SRem(context.Background(), "working", r.name)
		for _, key := range r.keys {
			p.SRem(context.Background(), "in:"+key, r.name)
		}
		if lost {
			p.SAdd(context.Background(), "lost", r.name)
		}
		return nil
	})
	if err != nil {
		l.fail(err)
	}
}

// succeed notes the effect of a run: the task is done. Of a key with a cooldown
// also when that began, and whether that is too soon.
func (l *soakLedger) succeed(r soakRun, cooldown bool) {
	ctx := context.Background()
	_, err := l.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.SAdd(ctx, done, r.n)
		p.SAdd(ctx, "runs that succeeded", r.name)
		if cooldown {
			p.ZAdd(ctx, "successes:"+r.keys[0], redis.Z{
				Score: float64(r.began.UnixMilli()), Member: fmt.Sprintf("%d %s", r.came.UnixMilli(), r.name),
			})
		}
		return nil
	})
	if err != nil {
		l.fail(err)
	}
}

// killedLua strikes out all runs of a process. KEYS: procs killed, this one's
// keys, all runs. ARGV: proc.
var killedLua = redis.NewScript(`
redis.call('SADD', KEYS[1], ARGV[1])
local sets = redis.call('SMEMBERS', KEYS[2])
sets[#sets + 1] = KEYS[3]
for _, key in ipairs(sets) do
  for _, run in ipairs(redis.call('SMEMBERS', key)) do
    if string.sub(run, 1, #ARGV[1] + 1) == ARGV[1] .. '#' then redis.call('SREM', key, run) end -- of this proc
  end -- of a set
end
return 0`)

// kill is called in the moment before a process is: what it does from then on
// does not count.
func (l *soakLedger) kill(proc string) {
	if err := killedLua.Run(context.Background(), l.rdb, []string{"killed", "of:" + proc, "working"}, proc).Err(); err != nil {
		l.fail(err)
	}
}

// working tells how many handlers are under way.
func (l *soakLedger) working() int64 {
	n, err := l.rdb.SCard(context.Background(), "working").Result()
	if err != nil {
		l.fail(err)
	}
	return n
}

// numbers gives a set of tasks.
func (l *soakLedger) numbers(t *testing.T, what string) map[int]bool {
	t.Helper()
	members, err := l.rdb.SMembers(context.Background(), what).Result()
	redistest.Must(t, err)
	found := make(map[int]bool, len(members))
	for _, text := range members {
		n, err := strconv.Atoi(text)
		redistest.Must(t, err)
		found[n] = true
	}
	return found
}

// lost tells how many runs lost their leases.
func (l *soakLedger) lost() int64 { return l.rdb.SCard(context.Background(), "lost").Val() }

// overlaps are the entries that no lost lease explains, and how many one does.
func (l *soakLedger) overlaps(t *testing.T) (bad []string, explained int) {
	t.Helper()
	entries, err := l.rdb.LRange(context.Background(), "overlaps", 0, -1).Result()
	redistest.Must(t, err)
	for _, entry := range entries {
		// The limit, the run that came, and all that were there then; or 0, the run
		// that came, and what was wrong with its fence.
		what, _, _ := strings.Cut(entry, " on ")
		words := strings.Fields(what)
		limit, err := strconv.Atoi(words[0])
		redistest.Must(t, err)
		lost := func(run string) bool { return l.rdb.SIsMember(context.Background(), "lost", run).Val() }
		if limit == 0 && lost(words[1]) || limit > 0 && len(slices.DeleteFunc(words[2:], lost)) <= limit {
			explained++
			continue
		}
		bad = append(bad, entry)
	}
	return bad, explained
}

// soon are the successes of one key that certainly follow each other sooner than
// its cooldown allows: that counts from when a run began, which its guard knows
// and its handler learns a moment later.
func (l *soakLedger) soon(t *testing.T) (bad []string) {
	t.Helper()
	keys, err := l.rdb.Keys(context.Background(), "successes:*").Result()
	redistest.Must(t, err)
	const rounding = 10 * time.Millisecond // of milliseconds, and between clocks
	for _, key := range keys {
		var before string
		var since int64
		for _, z := range l.rdb.ZRangeWithScores(context.Background(), key, 0, -1).Val() {
			came, run, _ := strings.Cut(fmt.Sprint(z.Member), " ")
			apart := time.Duration(int64(z.Score)-since) * time.Millisecond
			if apart < soakCooldown-rounding {
				bad = append(bad, fmt.Sprintf("%s came to %s, and %s began %s later", before, key, run, apart))
			}
			before = run
			if since, err = strconv.ParseInt(came, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bad
}

// The ledger sees what it is there for.
func TestSoak_ledgerSeesOverlaps(t *testing.T) {
	t.Parallel()
	rdb, ok := redistest.StartReal(t).Client(t).(*redis.Client)
	if !ok {
		t.Fatal("no *redis.Client")
	}
	l := &soakLedger{rdb: rdb, fail: func(err error) { t.Error(err) }}
	run := func(proc, name, key string, fence int64) soakRun {
		return soakRun{proc: proc, name: proc + "#" + name, keys: []string{key}, fences: []int64{fence}}
	}
	mutex, three, allow := "p:{turn:wait|a}", "p:{turn:three|a}", "p:{turn:allow|a}"
	a, b := run("p1", "1", mutex, 5), run("p2", "1", mutex, 6)
	expect := func(what string, want, wantExplained int) {
		t.Helper()
		bad, explained := l.overlaps(t)
		if len(bad) != want || explained != wantExplained {
			t.Errorf("%s: found %d and %d explained, want %d and %d: %q", what, len(bad), explained, want, wantExplained, bad)
		}
	}
	l.enter(a)
	l.enter(a) // sent twice
	expect("one", 0, 0)
	l.enter(b)
	expect("two", 1, 0)
	l.leave(a, true)
	expect("two, of which one had lost its lease", 0, 1)
	l.leave(b, false)
	l.enter(run("p1", "2", mutex, 6))
	expect("a fence that does not grow", 1, 1)
	for i, fence := range []int64{9, 0, 10} {
		untold := run("p2", fmt.Sprint("untold", i), "p:{turn:wait|b}", fence)
		l.enter(untold)
		l.leave(untold, false)
	}
	expect("a fence that Redis did not tell", 1, 1)
	l.kill("p1")
	l.enter(run("p1", "3", mutex, 7)) // too late to count
	l.enter(run("p2", "2", mutex, 8))
	expect("after a kill", 1, 1)
	if n := l.working(); n != 1 {
		t.Errorf("%d handlers are under way, want 1", n)
	}
	for i := range 4 {
		l.enter(run("p2", strconv.Itoa(10+i), three, 1))
		l.enter(run("p2", strconv.Itoa(20+i), allow, 0))
	}
	expect("four where three may be", 2, 1)

	for i, began := range []int64{1000, 1600, 1900} {
		r := run("p2", strconv.Itoa(30+i), "p:{turn:cool|a}", 1)
		r.n, r.came, r.began = i, time.UnixMilli(began-1), time.UnixMilli(began)
		l.succeed(r, true)
	}
	if bad := l.soon(t); len(bad) != 1 {
		t.Errorf("300 ms within a cooldown of 500: %q", bad)
	}
	if n := len(l.numbers(t, done)); n != 3 {
		t.Errorf("%d are done, want 3", n)
	}
}
