package lock

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; no secret hangs on it.
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// script is one Lua operation. Its file's header names KEYS, ARGV and reply
// codes; TestScripts holds that header against the fields here.
type script struct {
	name string
	args []string // what the call sites pass, in order
	src  string
	sha  string
}

// The operations. Each takes exactly one key: the lock, the pool, the arrivals
// at a lock, or the claim.
var (
	askScript     = load("ask", "body", "limit", "ttl", "keep", "stay", "park")
	releaseScript = load("release", "body", "limit", "cooldown", "inbound", "life")
	callScript    = load("call", "limit", "inbound", "life", "note", "fate")
	renewScript   = load("renew", "body", "length")
	confirmScript = load("confirm", "body", "length")
	inspectScript = load("inspect", "most", "note")
	breakScript   = load("break", "limit", "token", "all")
	sweepScript   = load("sweep")

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
)

// Replies of renew and confirm, as their headers name them. The others answer with numbers
// and lists that mean what they say.
const (
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
	for _, shared := range []string{"line", "calls", "pool_line", "claim"} {
		if marker := "--@include " + shared + "\n"; strings.Contains(src, marker) {
			src = strings.Replace(src, marker, read(shared), 1)
		}
	}
	sum := sha1.Sum([]byte(src)) //nolint:gosec // see the import
	return &script{name: name, args: args, src: src, sha: hex.EncodeToString(sum[:])}
}
