package simulate

import (
	"flag"
	"runtime/debug"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
)

var (
	worlds    = flag.Int("worlds", 25, "how many worlds are drawn")
	first     = flag.Uint64("first", 1, "the seed of the first world; the others follow it") // so a change that breaks one is known by it
	within    = flag.Duration("within", 0, "how long worlds and faults are begun; 0: without end")
	seedFlag  = flag.Uint64("seed", 0, "play the world of this seed, and no other")
	repeat    = flag.Int("repeat", 1, "how often a world of -seed is played")
	onlyOrder = flag.Bool("in-order", false, "draw worlds with tasks in order, and play only those")
	oneIn     = flag.Int("one-in", 151, "of each fault at each command of each scenario, one in so many is put; 1: all. An odd number, or some faults never are")
	verbose   = flag.Bool("trace", false, "print what happened in worlds that fail, step by step")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(1000) // each script takes a new Lua state: collected at the usual pace, that takes two fifths of the time
	logging.Disable()        // what go-redis has to say, its callers are told too
	redistest.Main(m)
}
