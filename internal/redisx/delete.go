package redisx

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Some servers have a command that deletes a string if it has a given value. It costs the server a quarter of a script that does
// the same. Which of the commands a node has is found by sending them.

// compareDeletes are these commands: of Redis 8.4 and later, and of Valkey 9 and later.
var compareDeletes = [...]string{"delex", "delifeq"}

// forgetRefusalAfter is how long a node's refusal counts. A node with a newer version may have taken its place unseen.
const forgetRefusalAfter = time.Hour

// refusals has which of compareDeletes each node has refused. A node without an entry has refused none.
type refusals struct {
	nodes sync.Map // what masterOf returns, to refusal
}

// refusal is the last refusal of a node.
type refusal struct {
	count int // how many of compareDeletes the node has refused: the first ones
	since time.Time
}

// command returns the number of the command to send to a node; false: the node refuses all of them.
func (r *refusals) command(node any, now time.Time) (int, bool) {
	v, _ := r.nodes.Load(node)
	last, _ := v.(refusal)
	if now.Sub(last.since) >= forgetRefusalAfter {
		return 0, true
	}
	return last.count, last.count < len(compareDeletes)
}

// forget has each command tried again: a node did not answer, and another one may take its place.
func (r *refusals) forget() { r.nodes.Clear() }

// DeleteIfEqual deletes the string at key if it is body, by a command of the server that does only this, or by script, which replies 1
// if it has deleted the key. deleted is false without an error if the key is another string, of another type, or not there. An error
// may mean that there was no reply: the command may have run, or may run yet.
func (c *Conn) DeleteIfEqual(ctx context.Context, script *Script, key string, body any) (deleted bool, err error) {
	now := time.Now()
	node := c.masterOf(ctx, key)
	for n, ok := c.refused.command(node, now); ok; n, ok = c.refused.command(node, now) {
		switch reply, err := c.compareDelete(ctx, n, key, body); {
		case err == nil:
			return reply == any(int64(1)), nil
		case isOfOtherType(err):
			return false, nil
		case !isServers(err) || IsNotRun(err):
			return false, err
		}
		c.refused.nodes.Store(node, refusal{n + 1, now})
		if HasCode(err, "NOPERM") {
			c.denied.noteNoDelete(compareDeletes[n])
		}
	}
	reply, err := c.Run(ctx, script, []string{key}, body)
	if IsWrongType(err) {
		return false, nil
	}
	return reply == any(int64(1)), err
}

// compareDelete sends the command with that number.
func (c *Conn) compareDelete(ctx context.Context, n int, key string, body any) (any, error) {
	words := []any{compareDeletes[n], key, "ifeq", body}
	if n > 0 {
		words = []any{compareDeletes[n], key, body}
	}
	return c.Within(ctx, func(bound context.Context) (any, error) {
		cmd := redis.NewCmd(bound, words...)
		cmd.SetFirstKeyPos(1) // where a Cluster sends it: go-redis may not know the command
		reply, err := replyOf(cmd, c.rdb.Process(bound, cmd))
		c.noteUnreached(err)
		return reply, err
	})
}

// isOfOtherType reports whether a server replied that a key is no string. DELEX of Redis 8.4 says so without a code.
func isOfOtherType(err error) bool {
	return isServers(err) && (HasCode(err, "WRONGTYPE") || strings.Contains(err.Error(), "should be of string type"))
}
