package lock

import (
	"embed"
	"fmt"
	"strings"

	"github.com/automutex/automutex/internal/exchange"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// The operations. Each file's header names KEYS, ARGV and reply codes; a test holds that
// header against the arguments here. Each takes exactly one key: the lock, the pool, the
// arrivals at a lock, the claim, or the controls.
var (
	askScript     = load("ask", "body", "keep", "stay=0", "limit=1", "park=0", "every=0", "spare=0")
	releaseScript = load("release", "body", "inbound=0", "limit=1", "cooldown=0", "life=1000", "unused=0")
	callScript    = load("call", "limit", "inbound", "life", "note", "fate")
	holdScript    = load("hold", "body", "length")
	renewScript   = load("renew", "body", "length", "trace=0")
	inspectScript = load("inspect", "most", "note")
	breakScript   = load("break", "limit", "token", "all", "known")
	sweepScript   = load("sweep")
	fenceScript   = load("fence", "body")

	arriveScript = load("arrive", "note", "keep")
	forgetScript = load("forget", "note")
	stopScript   = load("stop", "limit", "arrival")

	poolTakeScript    = load("pool_take", "body", "ttl", "stay")
	poolReleaseScript = load("pool_release", "body", "consume")
	poolPutScript     = load("pool_put", "value") // as many as there are
	poolInspectScript = load("pool_inspect", "most")
	poolDeleteScript  = load("pool_delete")

	claimTakeScript = load("claim_take", "body", "instead", "length")
	claimKeepScript = load("claim_keep", "body", "next", "length")
	claimDropScript = load("claim_drop", "body")

	controlReadScript  = load("control_read", "most")
	controlWriteScript = load("control_write", "target", "before", "after")
)

// Replies of break, renew and hold, as their headers name them.
const (
	breakUnknown = -1
	breakNothing = -2

	renewLost    = 0
	renewRenewed = 1
)

// load reads an embedded script and puts in what it includes. The files are
// part of the binary: one that is missing is a bug, found by any test.
func load(name string, args ...string) *exchange.Script {
	read := func(name string) string {
		src, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(fmt.Sprintf("lock: embedded script %s: %v", name, err))
		}
		return string(src)
	}
	src := read(name)
	for _, shared := range []string{"clock", "deadline", "form", "line", "gate", "calls", "pool_line", "claim"} {
		if marker := "--@include " + shared + "\n"; strings.Contains(src, marker) {
			src = strings.Replace(src, marker, read(shared), 1)
		}
	}
	return exchange.NewScript(name, src, args...)
}
