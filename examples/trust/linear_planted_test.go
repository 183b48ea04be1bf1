package trust

import (
	"os"
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
	file   string // in internal/engine/lua
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
		before: `local was = first == body or`,
		after:  `local was = count > 0 or`,
	},
	{
		name:   "a grant that skips the liveness test",
		file:   "grant",
		before: `length, lives = tonumber(g), tonumber(till) > now_ms`,
		after:  `length, lives = tonumber(g), true`,
		shows:  linPlan{deathwatches: 3},
	},
	{
		name:   "a renewal of anybody's word",
		file:   "renew",
		before: `if w == body then`,
		after:  `if string.sub(w or '+', 1, 1) ~= '+' then`,
		shows:  linPlan{raids: 3},
	},
	{
		name:   "a holder forgotten when others come",
		file:   "head",
		before: `int(now_ms + left + 1), w)`,
		after:  `int(now_ms + left + 1), w .. '?')`,
	},
	{
		name:   "a purge before the deadline",
		file:   "head",
		before: `local now_ms = math.floor(now_us / 1000)`,
		after:  `local now_ms = math.floor(now_us / 1000) + 50`,
	},
	{
		name:   "last come, first served",
		file:   "grant",
		before: `call('ZPOPMIN', line)`,
		after:  `call('ZPOPMAX', line)`,
	},
	{
		name:   "one holder too many",
		file:   "ask",
		before: `math.max(0, limit - count)`,
		after:  `math.max(0, limit + 1 - count)`,
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

// linPlace wants the place of a bug exactly once in a file of this repository.
func linPlace(t *testing.T, bug, file, before string) {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("..", "..", file))
	redistest.Must(t, err)
	if n := strings.Count(string(src), before); n != 1 {
		t.Fatalf("%s cannot be planted: %q is %d times in %s, not once; the code has changed: "+
			"have linBugs name the place where it is decided now", bug, before, n, file)
	}
}

// Each planted bug is found, by a history that the checker cannot put in order.
func TestLinear_plantedBugs(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for _, bug := range linBugs {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			linPlace(t, bug.name, "internal/engine/lua/"+bug.file+".lua", bug.before)
			row := &row{t}
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
