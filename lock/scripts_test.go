package lock

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// included are files that are part of others and not sent alone.
var included = []string{"clock", "deadline", "form", "line", "gate", "calls", "pool_line", "claim"}

// Each file in lua/ is loaded, and sent whole.
func TestScriptsAreLoaded(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("lua")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".lua")
		if !ok {
			t.Errorf("%s is no Lua file", f.Name())
		}
		if !slices.Contains(included, name) {
			names = append(names, name)
		}
	}
	var loaded []string
	for _, s := range scripts {
		loaded = append(loaded, s.Name)
		if strings.Contains(s.Source, "@include") {
			t.Errorf("%s: an include that was not put in", s.Name)
		}
		if i := strings.Index(s.Source, "return"); i < 0 {
			t.Errorf("%s answers nothing", s.Name)
		}
	}
	if slices.Sort(loaded); !slices.Equal(names, loaded) {
		t.Errorf("the folder has %q, loaded are %q", names, loaded)
	}
}

var (
	headerKey = regexp.MustCompile(`(?m)^-- KEYS\[(\d+)\] (\w+)`)
	headerArg = regexp.MustCompile(`(?m)^-- ARGV\[(\d+)\] (\w+(?:=\d+)?) +(\S.*)$`)
	headerAns = regexp.MustCompile(`(?m)^-- reply (.*?) *: +(\S.*)$`)
	bodyUse   = regexp.MustCompile(`(KEYS|ARGV)(\[(\d+)\])?`)
	bodyCall  = regexp.MustCompile(`redis\.(\w+)\(\s*'?(\w+)`)
	unit      = regexp.MustCompile(`\((ms|us)\b|limit|how many|<token>|<value>|<note>|<queue>|<scope>|<json>|\b1:`)
)

// code is a script without comments.
func code(s *exchange.Script) string {
	return regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(s.Source, "")
}

func read(t *testing.T, name string) string {
	t.Helper()
	src, err := os.ReadFile("lua/" + name + ".lua")
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

// Rule 13: all keys declared. The headers name what the call sites pass, in
// order, and the bodies use no more and no less.
func TestRule13_HeadersMatchTheCallSites(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t)).Mutex(redistest.Name(t))
	passed := passedArgs(t, m)
	for _, s := range scripts {
		src := read(t, s.Name)
		if s == poolPutScript {
			continue // takes as many values as there are
		}
		var args []string
		for i, h := range headerArg.FindAllStringSubmatch(src, -1) {
			if h[1] != fmt.Sprint(i+1) {
				t.Errorf("%s: ARGV[%s] is argument %d in the header", s.Name, h[1], i+1)
			}
			if !unit.MatchString(h[2] + " " + h[3]) {
				t.Errorf("%s: the header gives %s no unit: %q", s.Name, h[2], h[3])
			}
			args = append(args, h[2])
		}
		if !slices.Equal(args, s.Args) {
			t.Errorf("%s: the header has ARGV %q, Go has %q", s.Name, args, s.Args)
		}
		needed := slices.IndexFunc(args, func(arg string) bool { return strings.Contains(arg, "=") })
		if needed < 0 {
			needed = len(args)
		}
		if n, seen := passed[s.Name]; seen != (s != sweepScript) || n != needed { // a sweep takes none
			t.Errorf("%s: the call sites pass %d arguments for a mutex, the header has %d without =", s.Name, n, needed)
		}
		keys := headerKey.FindAllStringSubmatch(src, -1)
		if len(keys) != 1 || keys[0][1] != "1" || !slices.Contains([]string{"lock", "pool", "arrivals", "claim", "controls"}, keys[0][2]) {
			t.Errorf("%s: the header has keys %q, want the lock", s.Name, keys)
		}
		used := map[string]bool{}
		for _, u := range bodyUse.FindAllStringSubmatch(code(s), -1) {
			if u[2] == "" {
				t.Errorf("%s: uses %s as a whole", s.Name, u[1])
			}
			used[u[0]] = true
		}
		want := map[string]bool{"KEYS[1]": true}
		for i := range args {
			want[fmt.Sprintf("ARGV[%d]", i+1)] = true
		}
		if !maps.Equal(used, want) {
			t.Errorf("%s: the body uses %v, the header declares %v", s.Name, used, want)
		}
	}
}

// What is left out of a call is what the script puts in its place, and nothing else is.
func TestShort(t *testing.T) {
	t.Parallel()
	for _, s := range scripts {
		for i, arg := range s.Args {
			if _, spare, ok := strings.Cut(arg, "="); ok && !strings.Contains(code(s), fmt.Sprintf("(ARGV[%d] or %s)", i+1, spare)) {
				t.Errorf("%s: the header leaves %s out, the body does not", s.Name, arg)
			}
		}
	}
	m := newLocker(t, redistest.Mini(t).Client(t)).Mutex(redistest.Name(t))
	le := m.newLease()
	zero, one := int64(0), int64(1)
	for _, c := range []struct {
		s    *exchange.Script
		full []any
		want int
	}{
		{askScript, []any{le, int64(4000), zero, one, zero}, 2},
		{askScript, []any{le, int64(4000), int64(3000), one, zero}, 3},
		{askScript, []any{le, int64(4000), zero, int64(2), zero}, 4},
		{askScript, []any{le, int64(4000), zero, one, one}, 5},
		{releaseScript, []any{le, zero, one, zero, minCallLifeArg}, 1},
		{releaseScript, []any{le, one, one, zero, minCallLifeArg}, 2},
		{releaseScript, []any{le, one, int64(2), zero, minCallLifeArg}, 3},
		{releaseScript, []any{le, zero, one, one, minCallLifeArg}, 4},
		{releaseScript, []any{le, one, one, zero, int64(1001)}, 5},
	} {
		if got := c.s.Short(c.full); len(got) != c.want {
			t.Errorf("of %s%v are sent %v, want %d", c.s.Name, c.full[1:], got[1:], c.want)
		}
	}
	// The callers' own arguments are of the kind that is compared.
	if _, args := m.kind.ask(le, modeTry); len(args) != 2 {
		t.Errorf("a try sends %v, want body and keep", args[1:])
	}
}

// passedArgs runs every operation and counts the arguments that reach the client.
func passedArgs(t *testing.T, m *Lock) map[string]int {
	t.Helper()
	k := newTap(raw(m))
	_, err1 := m.Available(t.Context())
	m.locker.parking.runCall(m, "", inside.FateUnsure)
	le := mustTry(t, m)
	fenceOf(t, le)
	mustBeBusy(t, m)
	err2 := errors.Join(le.Extend(t.Context(), time.Second), le.hold(t.Context(), time.Second))
	err3 := le.Unlock(t.Context())
	_, err4 := m.BreakAll(t.Context())
	p := m.locker.Pool(redistest.Name(t))
	_, err5 := p.Put(t.Context(), "value")
	taken, err6 := p.m.TryLock(t.Context())
	_, err7 := p.Inspect(t.Context())
	err8 := taken.Unlock(t.Context())
	_, err9 := p.Delete(t.Context())
	named := handle(m.locker, m, Note("note"))
	arrival, _, err10 := named.arrive(t.Context())
	_, err11 := handle(m.locker, m, onStop(arrival, func() {})).askOlderToStop(t.Context())
	err12 := named.forget(t.Context())
	claim := m.locker.claim(m.Key())
	_, err13 := claim.Take(t.Context(), "queue/task", "", time.Minute)
	_, err14 := claim.Keep(t.Context(), "queue/task", "queue/next", 0)
	_, err15 := claim.Drop(t.Context(), "queue/next")
	err16 := m.locker.Controls().Pause(t.Context(), m.Key(), time.Time{}, "")
	err17 := m.locker.Controls().Resume(t.Context(), m.Key())
	for _, err := range []error{err16, err17, err1, err2, err3, err4, err5, err6, err7, err8, err9, err10, err11, err12, err13, err14, err15} {
		if err != nil {
			t.Fatal(err)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	passed := map[string]int{}
	for name, args := range k.first {
		passed[name] = len(args)
	}
	return passed
}

// allowed are the commands that the scripts may use, each O(log n) and with one
// key. Of ranges that means a LIMIT, see below; HGETALL comes after an HLEN.
var allowed = []string{
	"TIME", "EXISTS", "DEL", "PTTL", "PEXPIRE", "PUBLISH", "GET", "MGET", "SET", "HLEN", "HGET", "HGETALL", "HSET", "HDEL",
	"PERSIST", "ZRANGE", "ZREVRANGEBYSCORE", "ZADD", "ZREM", "ZSCORE", "ZMSCORE", "ZRANK", "ZCARD", "ZCOUNT", "ZRANGEBYSCORE", "ZREMRANGEBYSCORE",
}

// Rule 13: O(log n) commands on the declared key only; rule 7: PUBLISH through
// pcall and nothing else.
func TestRule13_ScriptsUseTheDeclaredKeyOnly(t *testing.T) {
	t.Parallel()
	for _, s := range scripts {
		src := code(s)
		calls := bodyCall.FindAllStringSubmatch(src, -1)
		// An error reply is built, not sent to Redis: it runs no command.
		uses := strings.Count(src, "redis.") - strings.Count(src, "redis.error_reply(")
		if uses != len(calls) {
			t.Errorf("%s: %d uses of redis besides error replies, of which %d are calls", s.Name, uses, len(calls))
		}
		for _, call := range calls {
			how, command := call[1], call[2]
			if !slices.Contains(allowed, command) {
				t.Errorf("%s: redis.%s('%s'): not on the list of this test", s.Name, how, command)
			}
			if want := map[bool]string{true: "pcall", false: "call"}[command == "PUBLISH"]; how != want && command != "PEXPIRE" && command != "ZADD" {
				t.Errorf("%s: redis.%s('%s'), want redis.%s", s.Name, how, command, want)
			}
		}
		// Nor does one of the ZADD that has to be refused before a widening.
		if n := strings.Count(src, "redis.pcall('ZADD'"); n > 1 || n == 1 && !strings.Contains(src, "if not string.find(redis.pcall('ZADD', lock, 0, '').err, 'WRONGTYPE', 1, true) then") {
			t.Errorf("%s: the outcome of a ZADD is not looked at", s.Name)
		}
		// A PEXPIRE whose error does not end the script has its reply looked at.
		if m := regexp.MustCompile(`redis\.pcall\('PEXPIRE'[^\n]*`).FindString(src); m != "" && !strings.HasSuffix(m, ") ~= 1 then") {
			t.Errorf("%s: the outcome of %s is not looked at", s.Name, m)
		}
		// Every command but TIME and PUBLISH has the lock as its key, and ranges
		// that answer members have a limit.
		balanced := strings.ReplaceAll(src, "'(", "'") // no parentheses in strings
		for _, call := range regexp.MustCompile(`redis\.(call|pcall)\(([^()]|\([^()]*\))*\)`).FindAllString(balanced, -1) {
			keyless := strings.HasPrefix(call, "redis.call('TIME')") || strings.HasPrefix(call, "redis.pcall('PUBLISH'")
			if !keyless && !regexp.MustCompile(`^redis\.p?call\('\w+', (lock|pool|arrivals|claim|controls|KEYS\[1\])\b`).MatchString(call) {
				t.Errorf("%s: %s: not on the lock's key", s.Name, call)
			}
			// Breaking and deleting are an operator's, and see every holder.
			whole := s == breakScript || s == poolDeleteScript
			if !whole && strings.Contains(call, "'ZRANGEBYSCORE'") && !strings.Contains(call, "'LIMIT'") {
				t.Errorf("%s: %s has no LIMIT", s.Name, call)
			}
		}
		if m := regexp.MustCompile(`\b(lock|pool|arrivals|claim|controls)\s*=\s*[^K=\s]|KEYS\[1\]\s*\.\.`).FindAllString(src, -1); len(m) > 0 {
			t.Errorf("%s: the key is changed: %q", s.Name, m)
		}
		if !strings.Contains(src, "lock") && !strings.Contains(src, "pool") && !strings.Contains(src, "arrivals") && !strings.Contains(src, "claim") && !strings.Contains(src, "controls") && !strings.Contains(src, "KEYS[1]") {
			t.Errorf("%s: uses no key", s.Name)
		}
	}
}

// TIME is read once, and again by what widens a string; words and not letters, and no global is set.
func TestScriptsAreWellKept(t *testing.T) {
	t.Parallel()
	for _, s := range scripts {
		widens := strings.Count(code(s), "local function widen(")
		if n := strings.Count(code(s), "'TIME'") - widens; n > 1 {
			t.Errorf("%s reads TIME %d times outside of widen, want once", s.Name, n)
		}
		for _, m := range regexp.MustCompile(`local (?:function )?([\w, ]+)`).FindAllStringSubmatch(code(s), -1) {
			for name := range strings.SplitSeq(m[1], ", ") {
				if name = strings.TrimSpace(name); len(name) == 1 && name != "_" {
					t.Errorf("%s: a variable %q: words, not letters", s.Name, name)
				}
			}
		}
	}
}
