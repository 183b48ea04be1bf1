package trust

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// linBug is a bug planted in the scripts, between the library and Redis: the
// library is told that Redis does not know its scripts, sends their text, and the
// text is another when it arrives.
type linBug struct {
	name   string
	file   string // in internal/wire/lua
	before string // a place in it, in whatever script includes it
	after  string
	shows  linPlan // where it shows; nothing in it: in any history

	planted atomic.Bool
}

// linBugs are those that the checker has to find. The places are short, and what
// the bug is about.
var linBugs = []*linBug{
	{
		name:   "a release without the token test",
		file:   "release",
		before: `cooldown == 0 and redis.call('ZRANK', lock, 'h:' .. body)`,
		after:  `cooldown == 0`,
	},
	{
		name:   "a grant that skips the liveness test",
		file:   "line",
		before: `local lives = id == asker or until_ms > now_ms`,
		after:  `local lives = true`,
		shows:  linPlan{deathwatches: 3},
	},
	{
		name:   "a renewal that retakes",
		file:   "renew",
		before: "if taker and taker ~= body then\n  return 0",
		after:  "if false then\n  return 0",
		shows:  linPlan{raids: 3},
	},
	{
		name:   "a release of anybody's string",
		file:   "release",
		before: `if taker == body and not ARGV[4] then`,
		after:  `if taker and not ARGV[4] then`,
		shows:  linPlan{raids: 3},
	},
	{
		name:   "a widening that forgets the holder",
		file:   "form",
		before: `1 / 128), 'h:' .. body`,
		after:  `1 / 128), 'h:' .. body .. '?'`,
	},
	{
		name:   "a purge before the deadline",
		file:   "clock",
		before: `local now_ms = math.floor(now_us / 1000)`,
		after:  `local now_ms = math.floor(now_us / 1000) + 50`,
	},
	{
		name:   "last come, first served",
		file:   "ask",
		before: `local ticket = now_us - 1.6e15`,
		after:  `local ticket = 1e15 - now_us % 1e15`,
	},
	{
		name:   "one holder too many",
		file:   "line",
		before: `local free = limit - `,
		after:  `local free = limit + 1 - `,
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
			if src := args[1].(string); strings.Contains(src, b.before) {
				args[1] = strings.Replace(src, b.before, b.after, 1)
				b.planted.Store(true)
			}
		}
		return nil
	})
	rdb.AddHook(hook)
}

// linPlace wants the place of a bug exactly once in a file of this repository,
// whose text it returns with the bug in it.
func linPlace(t *testing.T, bug, file, before, after string) string {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("..", "..", file))
	redistest.Must(t, err)
	if n := strings.Count(string(src), before); n != 1 {
		t.Fatalf("%s cannot be planted: %q is %d times in %s, not once; the code has changed: "+
			"have linBugs or linOverlay name the place where it is decided now", bug, before, n, file)
	}
	return strings.Replace(string(src), before, after, 1)
}

// Each planted bug is found, by a history that the checker cannot put in order.
func TestLinear_plantedBugs(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for _, bug := range linBugs {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			linPlace(t, bug.name, "internal/wire/lua/"+bug.file+".lua", bug.before, bug.after)
			row := found(t, "linearizability, planted", bug.name)
			w := newLinWorld(t, redistest.Real(t), bug)
			plan, dice := bug.shows, seed(t)
			if plan == (linPlan{}) {
				plan = linPlan{operations: 1_000_000, within: time.Minute, atOnce: 4, steps: 20}
			}
			var total linFigures
			var verdict string
			// The first time is mostly enough; a machine that stands still may hide it.
			for i := 0; i < 5 && verdict == ""; i++ {
				var f linFigures
				f, verdict = w.run(dice+uint64(i), plan)
				total.add(f)
			}
			w.close()
			switch {
			case !bug.planted.Load():
				t.Fatalf("%s was not planted: %q is in %s.lua, but in no script that was sent", bug.name, bug.before, bug.file)
			case !strings.Contains(verdict, "not linearizable"):
				t.Fatalf("the checker finds nothing in %d operations: %q", total.operations, verdict)
			}
			t.Log(verdict)
			row.notef("found within %d operations", total.operations)
			row.notef("%s", linReason(verdict))
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
	name:   "a local deadline counted from a lease's length after receipt of the message",
	file:   "lock/refresh.go",
	before: `grant.Value, since, m.grantLength(), true)`,
	after:  `grant.Value, since.Add(time.Since(since)+m.grantLength()), m.grantLength(), true)`,
}

// The same histories, by this very test built with a bug in the library.
func TestLinear_plantedInGo(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("the library cannot be built with a bug: %v", err)
	}
	redistest.Real(t) // skips or fails where there is none
	row := found(t, "linearizability, planted", linOverlay.name)
	src := linPlace(t, linOverlay.name, linOverlay.file, linOverlay.before, linOverlay.after)
	file, err := filepath.Abs(filepath.Join("..", "..", linOverlay.file))
	redistest.Must(t, err)
	dir := t.TempDir()
	edited, overlay, binary := filepath.Join(dir, "edited.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "trust.test")
	plan, err := json.Marshal(map[string]map[string]string{"Replace": {file: edited}})
	redistest.Must(t, err)
	for name, content := range map[string]string{
		edited:  src,
		overlay: string(plan),
	} {
		redistest.Must(t, os.WriteFile(name, []byte(content), 0o600))
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
	row.notef("%s", linReason(string(out)))
	t.Logf("%s", out)
}
