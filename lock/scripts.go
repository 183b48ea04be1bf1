package lock

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; no secret hangs on it.
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// script is one Lua operation. Its file's header names KEYS, ARGV and reply
// codes; TestScripts holds that header against the fields here.
type script struct {
	name string
	args []string // what the call sites pass, in order; name=n: n where it is left out
	// spare has the n of each argument that can be left out, else nil.
	spare []any
	src   string
	sha   string
}

// short leaves out the arguments at the end that say what the script takes for
// granted: a mutex without ado sends one or two. Each of the others costs client
// and Redis a tenth of a microsecond or two.
func (s *script) short(args []any) []any {
	for n := len(args); ; n-- {
		if spare := s.spare[n-1]; spare == nil || spare != args[n-1] {
			return args[:n]
		}
	}
}

// The operations. Each takes exactly one key: the lock, the pool, the arrivals
// at a lock, the claim, or the controls.
var (
	askScript     = load("ask", "body", "keep", "stay=0", "limit=1", "park=0", "every=0", "spare=0")
	releaseScript = load("release", "body", "inbound=0", "limit=1", "cooldown=0", "life=1000", "unused=0")
	callScript    = load("call", "limit", "inbound", "life", "note", "fate")
	holdScript    = load("hold", "body", "length")
	renewScript   = load("renew", "body", "length")
	confirmScript = load("confirm", "body", "length")
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

// Replies of break, renew, confirm and hold, as their headers name them. The others answer with numbers
// and lists that mean what they say.
const (
	breakUnknown = -1
	breakNothing = -2

	renewLost    = 0
	renewRenewed = 1
)

// load reads an embedded script and puts in what it includes. The files are
// part of the binary: one that is missing is a bug, found by any test.
func load(name string, args ...string) *script {
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
	sum := sha1.Sum([]byte(src)) //nolint:gosec // see the import
	spare := make([]any, len(args))
	for i, arg := range args {
		if _, text, ok := strings.Cut(arg, "="); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				panic(fmt.Sprintf("lock: argument %s of script %s: %v", arg, name, err))
			}
			spare[i] = n
		}
	}
	return &script{name: name, args: args, spare: spare, src: src, sha: hex.EncodeToString(sum[:])}
}
