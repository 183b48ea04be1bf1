package trust

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// linBug is a bug planted in the scripts, between the library and Redis: the
// library believes that Redis does not know its scripts, sends their text, and
// the text is another by the time it arrives.
type linBug struct {
	name   string
	script string // the one to change; "": every one that has the place
	before string
	after  string
	dead   bool // it shows where one has died in line

	planted atomic.Bool
	mu      sync.Mutex // guards wrong
	wrong   string     // why it could not be planted
}

// linBugs are those that the checker has to find. The places are code, short and
// in the middle of what the bug is about.
var linBugs = []*linBug{
	{
		name:   "a release without the token test",
		script: "release",
		before: `local held = redis.call('ZRANK', lock, 'h:' .. body)`,
		after: `local first = redis.call('ZRANGEBYSCORE', lock, 1e11, 1e14, 'LIMIT', 0, 1)[1]
			body = first and string.sub(first, 3) or body
			local held = redis.call('ZRANK', lock, 'h:' .. body)`,
	},
	{
		name:   "a grant that skips the liveness test",
		before: `elseif until_ms and -until_ms > now_ms then`,
		after:  `elseif true then`,
		dead:   true,
	},
	{
		name:   "a renewal that retakes",
		script: "renew",
		before: `if deadline <= math.floor(now_us / 1000) then`,
		after:  `if false then`,
	},
	{
		name:   "a purge before the deadline",
		before: `redis.call('ZREMRANGEBYSCORE', lock, 1e11, now_ms)`,
		after:  `redis.call('ZREMRANGEBYSCORE', lock, 1e11, now_ms + 50)`,
	},
	{
		name:   "last come, first served",
		before: `redis.call('ZRANGEBYSCORE', lock, 2e15, '(4e15', 'LIMIT', 0, 1)`,
		after:  `redis.call('ZREVRANGEBYSCORE', lock, '(4e15', 2e15, 'LIMIT', 0, 1)`,
	},
	{
		name:   "one holder too many",
		before: `local free = limit - redis.call('ZCOUNT', lock, 1e11, 1e14)`,
		after:  `local free = limit + 1 - redis.call('ZCOUNT', lock, 1e11, 1e14)`,
	},
}

// plant makes a client carry the bug.
func (b *linBug) plant(rdb redis.UniversalClient) {
	hook := new(redistest.FailHook)
	hook.Before(func(cmd redis.Cmder) error {
		switch args := cmd.Args(); cmd.Name() {
		case "evalsha":
			return redistest.ReplyError("NOSCRIPT No matching script. Please use EVAL.")
		case "eval":
			args[1] = b.edit(args[1].(string))
		}
		return nil
	})
	rdb.AddHook(hook)
}

func (b *linBug) edit(src string) string {
	if b.script != "" && !strings.HasPrefix(src, "-- "+b.script+":") {
		return src
	}
	switch strings.Count(src, b.before) {
	case 1:
		b.planted.Store(true)
		return strings.Replace(src, b.before, b.after, 1)
	case 0:
		if b.script == "" {
			return src
		}
		fallthrough
	default:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.wrong = fmt.Sprintf("%q is not exactly once in a script", b.before)
		return src
	}
}

// linNoPlace is what to do when the code has changed.
const linNoPlace = "%s: the bug cannot be planted: %s; the code has changed: have linBugs (or linOverlay) name the place where it is now"

// Each planted bug is found by the checker, and by nothing else than a history
// that it cannot put in order.
func TestLinear_plantedBugs(t *testing.T) {
	t.Parallel()
	for _, bug := range linBugs {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			row := found(t, "linearizability, planted", bug.name)
			w := newLinWorld(t, redistest.Real(t), bug)
			plan := linPlan{operations: 1_000_000, within: time.Minute, atOnce: 4, steps: 20}
			if bug.dead {
				plan.deathwatches, plan.operations = 2, 1
			}
			f, verdict := w.run(seed(t), plan)
			w.close()
			bug.mu.Lock()
			defer bug.mu.Unlock()
			switch {
			case bug.wrong != "":
				t.Fatalf(linNoPlace, bug.name, bug.wrong)
			case !bug.planted.Load():
				t.Fatalf(linNoPlace, bug.name, fmt.Sprintf("%q is in no script", bug.before))
			case !strings.Contains(verdict, "not linearizable"):
				t.Fatalf("the checker finds nothing in %d operations: %q", f.operations, verdict)
			}
			t.Log(verdict)
			row.note("found within %d operations", f.operations)
			row.note("%s", linReason(verdict))
		})
	}
}

// linReason is the step that could not be placed, out of a verdict.
func linReason(verdict string) string {
	_, rest, _ := strings.Cut(verdict, `no place for "`)
	step, _, _ := strings.Cut(rest, `"`)
	return "no place for: " + step
}

// linOverlay is the bug that is in the Go code: the library is built with it.
var linOverlay = struct{ name, file, before, after string }{
	name:   "a local deadline counted from receipt of the message",
	file:   "lock/line.go",
	before: `w.hint.value, w.askedAt, length)`,
	after:  `w.hint.value, time.Now(), length)`,
}

// The same histories, by this very test built with a bug in the library.
func TestLinear_plantedInGo(t *testing.T) {
	t.Parallel()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("the library cannot be built with a bug: %v", err)
	}
	redistest.Real(t) // skips or fails where there is none
	row := found(t, "linearizability, planted", linOverlay.name)
	file, err := filepath.Abs(filepath.Join("..", linOverlay.file))
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(src), linOverlay.before); n != 1 {
		t.Fatalf(linNoPlace, linOverlay.name, fmt.Sprintf("%q is %d times in %s", linOverlay.before, n, linOverlay.file))
	}
	dir := t.TempDir()
	edited, overlay, binary := filepath.Join(dir, "edited.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "trust.test")
	plan, err := json.Marshal(map[string]map[string]string{"Replace": {file: edited}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		edited:  strings.Replace(string(src), linOverlay.before, linOverlay.after, 1),
		overlay: string(plan),
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), goTool, "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building with the bug: %v\n%s", err, out)
	}
	var out []byte
	for range 3 { // each run ends at the first find; one is mostly enough
		cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^TestLinear$/^redis$", "-test.timeout", "5m")
		cmd.Env = append(os.Environ(), "TMPDIR="+dir) // its pictures go with the test
		out, err = cmd.CombinedOutput()
		if err != nil {
			break
		}
	}
	if !strings.Contains(string(out), "not linearizable") {
		t.Fatalf("the checker does not find it: %v\n%s", err, out)
	}
	row.note("%s", linReason(string(out)))
	t.Logf("%s", out)
}
