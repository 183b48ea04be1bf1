// Package wire has the scripts that run in Redis, and what goes over the wire as typed values: their
// arguments, replies, messages, and what they store. It sends nothing.
package wire

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
// arrivals at a lock, the claim, the controls, or the format.
var (
	AskScript     = load("ask", "body", "keep", "stay=0", "limit=1", "park=0", "every=0", "spare=0")
	ReleaseScript = load("release", "body", "inbound=0", "limit=1", "cooldown=0", "life=1000", "unused=0")
	CallScript    = load("call", "limit", "inbound", "life", "note", "fate")
	CloseScript   = load("close", "body", "length")
	RenewScript   = load("renew", "body", "length", "trace=0")
	InspectScript = load("inspect", "most", "note", "ticket")
	BreakScript   = load("break", "limit", "token", "all", "known")
	SweepScript   = load("sweep")

	ArriveScript = load("arrive", "note", "keep", "away=0", "known=0")
	ForgetScript = load("forget", "note")
	StopScript   = load("stop", "limit", "arrival")

	PoolTakeScript    = load("pool_take", "body", "ttl", "stay")
	PoolReleaseScript = load("pool_release", "body", "consume")
	PoolPutScript     = load("pool_put", "value") // as many as there are
	PoolInspectScript = load("pool_inspect", "most")
	PoolDeleteScript  = load("pool_delete")

	ClaimTakeScript  = load("claim_take", "body", "instead", "length")
	ClaimKeepScript  = load("claim_keep", "body", "next", "length", "stale")
	ClaimStartScript = load("claim_start", "body", "phase", "ends", "length")
	ClaimDropScript  = load("claim_drop", "body")

	ControlReadScript  = load("control_read", "most")
	ControlWriteScript = load("control_write", "target", "before", "after")
)

// ReleaseStringScript is ReleaseScript for a lock that was taken as a string. It reads the string with GET, which costs
// less than MGET. On a sorted set GET is an error, which the server counts.
var ReleaseStringScript = loadReleaseString()

func loadReleaseString() *exchange.Script {
	const read, get = "local taker = redis.call('MGET', lock)[1]", "local taker = redis.pcall('GET', lock)"
	src := strings.Replace(ReleaseScript.Source, read, get+"\nif type(taker) == 'table' then taker = redis.call('MGET', lock)[1] end", 1)
	script := exchange.NewScript(ReleaseScript.Name, src, ReleaseScript.Args...)
	Scripts = append(Scripts, script)
	return script
}

// The scripts of ordered keys. A lock that is not ordered sends none of them.
var (
	OrderAskScript     = load("order_ask", "body", "keep", "stay", "limit", "park", "every", "spare", "nonce", "ticket", "retried", "allowed", "continue", "again")
	OrderReleaseScript = load("order_release", "body", "inbound", "limit", "cooldown", "unused", "nonce", "ticket", "outcome")
	OrderStampScript   = load("order_stamp", "note", "nonce", "deadline", "cap")
	OrderActScript     = load("order_act", "limit", "inbound", "act", "nonce", "ticket", "state", "seen", "after", "note")
)

// Scripts are all of them.
var Scripts []*exchange.Script

// load reads an embedded script and puts in what it includes. The files are
// part of the binary: one that is missing is a bug, found by any test.
func load(name string, args ...string) *exchange.Script {
	read := func(name string) string {
		src, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(fmt.Sprintf("wire: embedded script %s: %v", name, err))
		}
		return string(src)
	}
	src := read(name)
	for _, shared := range []string{"clock", "deadline", "form", "line", "gate", "calls", "pool_line", "claim", "order", "order_turn"} {
		if marker := "--@include " + shared + "\n"; strings.Contains(src, marker) {
			src = strings.Replace(src, marker, read(shared), 1)
		}
	}
	script := exchange.NewScript(name, src, args...)
	Scripts = append(Scripts, script)
	return script
}

// Commands are what the scripts may use, each O(log n) and with one key. Of ranges that means a
// LIMIT; HGETALL comes after an HLEN. Tests hold that.
var Commands = []string{
	"TIME", "EXISTS", "DEL", "PTTL", "PEXPIRE", "PUBLISH", "GET", "MGET", "SET", "HLEN", "HGET", "HGETALL", "HSET", "HDEL",
	"PERSIST", "ZRANGE", "ZREVRANGEBYSCORE", "ZADD", "ZREM", "ZSCORE", "ZMSCORE", "ZRANK", "ZCARD", "ZCOUNT", "ZRANGEBYSCORE", "ZREMRANGEBYSCORE",
}
