package wire

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/exchange"
)

var (
	headerKey = regexp.MustCompile(`(?m)^-- KEYS\[(\d+)\] (\w+)`)
	headerArg = regexp.MustCompile(`(?m)^-- ARGV\[(\d+)\] (\w+(?:=\d+)?) +(\S.*)$`)
	headerAns = regexp.MustCompile(`(?m)^-- reply (.*?) *: +(\S.*)$`)
	bodyUse   = regexp.MustCompile(`(KEYS|ARGV)(\[(\d+)\])?`)
	bodyCall  = regexp.MustCompile(`redis\.(\w+)\(\s*'?(\w+)`)
	unit      = regexp.MustCompile(`\((ms|us)\b|limit|how many|<token>|<value>|<note>|<queue>|<scope>|<json>|\b1:|one of`)
)

// included are files that are part of others and not sent alone.
var included = []string{"clock", "deadline", "form", "line", "gate", "calls", "pool_line", "claim", "order", "order_turn"}

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
	for _, s := range Scripts {
		loaded = append(loaded, s.Name)
		if s == ReleaseStringScript && s.SHA == ReleaseScript.SHA {
			t.Errorf("%s of a string reads as the other form does", s.Name)
		}
		if strings.Contains(s.Source, "@include") {
			t.Errorf("%s: an include that was not put in", s.Name)
		}
		if i := strings.Index(s.Source, "return"); i < 0 {
			t.Errorf("%s answers nothing", s.Name)
		}
	}
	slices.Sort(loaded)
	if loaded = slices.Compact(loaded); !slices.Equal(names, loaded) { // release has two forms
		t.Errorf("the folder has %q, loaded are %q", names, loaded)
	}
}

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

// Rule 13: all keys declared. The headers name the arguments in
// order, and the bodies use no more and no less.
func TestRule13_HeadersMatchTheArguments(t *testing.T) {
	t.Parallel()
	for _, s := range Scripts {
		src := read(t, s.Name)
		if s == PoolPutScript {
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
func TestDefaultsAreTheScripts(t *testing.T) {
	t.Parallel()
	for _, s := range Scripts {
		for i, arg := range s.Args {
			if _, spare, ok := strings.Cut(arg, "="); ok && !strings.Contains(code(s), fmt.Sprintf("(ARGV[%d] or %s)", i+1, spare)) {
				t.Errorf("%s: the header leaves %s out, the body does not", s.Name, arg)
			}
		}
	}
}

// Rule 13: O(log n) commands on the declared key only; rule 7: PUBLISH through
// pcall and nothing else.
func TestRule13_ScriptsUseTheDeclaredKeyOnly(t *testing.T) {
	t.Parallel()
	for _, s := range Scripts {
		src := code(s)
		calls := bodyCall.FindAllStringSubmatch(src, -1)
		// An error reply is built, not sent to Redis: it runs no command.
		uses := strings.Count(src, "redis.") - strings.Count(src, "redis.error_reply(")
		if uses != len(calls) {
			t.Errorf("%s: %d uses of redis besides error replies, of which %d are calls", s.Name, uses, len(calls))
		}
		for _, call := range calls {
			how, command := call[1], call[2]
			if !slices.Contains(Commands, command) {
				t.Errorf("%s: redis.%s('%s'): not on the list of commands", s.Name, how, command)
			}
			if command == "GET" && s == ReleaseStringScript && strings.Contains(src, "if type(taker) == 'table' then taker = redis.call('MGET', lock)[1] end") {
				continue // on a sorted set, the next line reads it again
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
			whole := s == BreakScript || s == PoolDeleteScript
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
	for _, s := range Scripts {
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

// The headers list the replies that the code reads.
func TestScriptReplies_inTheHeaders(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"ask": {"yours", "returned, yours", "busy", "returned, busy"}, "release": {"held", "absent", "calls", "grants"},
		"call": {"calls", "nothing"}, "renew": {"1 renewed", "0 lost"}, "inspect": {""},
		"arrive": {"new", "known", "none"}, "forget": {"known", "unknown"}, "stop": {"0 newest", "1 behind holders", "2 behind waiters"},
		"claim_take": {"taken", "standing"}, "claim_keep": {"1 kept", "0 absent"}, "claim_drop": {"1 dropped", "0 absent"},
		"claim_start": {"1 own", "0 superseded"},
	}
	for name, replies := range want {
		var got []string
		for _, h := range headerAns.FindAllStringSubmatch(read(t, name), -1) {
			got = append(got, h[1])
		}
		if name == "inspect" {
			if !strings.Contains(read(t, name), "-- reply {") {
				t.Errorf("%s: no reply in the header", name)
			}
			continue
		}
		if !slices.Equal(got, replies) {
			t.Errorf("%s: the header has replies %q, want %q", name, got, replies)
		}
	}
	if RenewRenewed != 1 || RenewLost != 0 {
		t.Errorf("Go has renewed = %d, lost = %d", RenewRenewed, RenewLost)
	}
}
