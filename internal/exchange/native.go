package exchange

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Some servers have a command that deletes a string if it has a given value. It costs the server a
// quarter of a script that does the same. Which of the commands a node has is found by sending them.

// compareDeletes are these commands: of Redis 8.4 and later, and of Valkey 9 and later.
var compareDeletes = [...]string{"delex", "delifeq"}

// forgetRefusalAfter is how long a node's refusal counts. A node with a newer version may have taken
// its place unseen.
const forgetRefusalAfter = time.Hour

// refusals has which of compareDeletes each node has refused. A node without an entry has refused none.
type refusals struct {
	nodes sync.Map // what MasterOf returns, to refusal
}

// refusal is the last refusal of a node.
type refusal struct {
	count int // how many of compareDeletes the node has refused: the first ones
	since time.Time
}

// command returns the command to send to a node; empty: the node refuses all of them.
func (r *refusals) command(node any, now time.Time) string {
	v, _ := r.nodes.Load(node)
	last, _ := v.(refusal)
	switch {
	case now.Sub(last.since) >= forgetRefusalAfter:
		return compareDeletes[0]
	case last.count == len(compareDeletes):
		return ""
	}
	return compareDeletes[last.count]
}

// note notes that a node has refused that command. Of goroutines that note the same refusal at once, each
// stores the same count.
func (r *refusals) note(node any, command string, now time.Time) {
	for i, c := range compareDeletes {
		if c == command {
			r.nodes.Store(node, refusal{i + 1, now})
		}
	}
}

// forget has each command tried again: a node did not answer, and another one may take its place.
func (r *refusals) forget() { r.nodes.Clear() }

// Deleted is what DeleteFirst has found out.
type Deleted uint8

// What DeleteFirst may find out.
const (
	DeleteUnknown Deleted = iota // the node has no such command
	DeleteRefused                // it replied anything else than that it has deleted the key
	DeleteDone
)

// DeleteFirst deletes the string at key if it is body, by a command of the server that does only this.
// Unless it is done, the caller runs its script, which decides. An error means that there was no reply, so
// the command may have run, or may run yet.
func (c *Conn) DeleteFirst(b Bounds, key string, body *Counted) (Deleted, error) {
	node := c.MasterOf(b.Values, key)
	command := c.refused.command(node, b.Now)
	if command == "" {
		return DeleteUnknown, nil
	}
	bound := c.boundContext(b.Values, b.Now)
	arg, sent := any(body), (*resent)(nil)
	if c.queue == nil {
		arg, sent = c.redirects(body)
	}
	var cmd *redis.Cmd
	if command == "delex" {
		cmd = redis.NewCmd(bound, command, key, "ifeq", arg)
	} else {
		cmd = redis.NewCmd(bound, command, key, arg)
	}
	cmd.SetFirstKeyPos(1) // where a Cluster sends it: go-redis may not know the command
	if sent != nil {
		sent.cmd = cmd
	}
	before := body.Copies()
	err := c.sendDelete(bound, b, cmd, body)
	if errors.Is(err, ErrNoAnswer) {
		return DeleteUnknown, err
	}
	reply, err := replyOf(cmd, err)
	body.NoteReply(before, err)
	switch {
	case err == nil && reply == any(int64(1)):
		return DeleteDone, nil
	case !serverReplied(err):
		return DeleteUnknown, err
	}
	if err != nil && !NotRun(err) && !ofOtherType(err) {
		c.refused.note(node, command, b.Now)
		if redis.HasErrorPrefix(err, "NOPERM") {
			c.denied.noteNoDelete(strings.ToUpper(command))
		}
	}
	return DeleteRefused, nil
}

// sendDelete ends as RunBounded does. After ErrNoAnswer the client or the transport may still write to cmd.
func (c *Conn) sendDelete(bound context.Context, b Bounds, cmd *redis.Cmd, body *Counted) (err error) {
	switch {
	case c.queue != nil:
		err = c.submit(b.Leave, bound, cmd)
	case c.onCaller(b.Leave):
		err = c.processOne(bound, cmd, body)
	default:
		_, err = c.within(b.Leave, bound, func() (any, error) { return nil, c.processOne(bound, cmd, body) })
	}
	if errors.Is(err, ErrNoAnswer) {
		noteLeftBehind([]any{body})
	}
	c.unreached(err)
	return err
}

// ofOtherType reports whether a server replied that a key is no string. DELEX of Redis 8.4 says so without a code.
func ofOtherType(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGTYPE") || strings.Contains(err.Error(), "should be of string type")
}
