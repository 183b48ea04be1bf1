package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

// trial is one command that the library sends, itself or from a script, and a
// harmless use of it.
type trial struct {
	command string
	args    func(key string) []any
}

// trials are all of them, in an order that makes the key, uses it and deletes
// it. A test holds them against the commands of the scripts.
var trials = []trial{
	{"zadd", with(1, "a")},
	{"pexpire", with(60_000)}, // where the next ones fail, it goes by itself
	{"eval", func(key string) []any { return []any{"return redis.call('EXISTS', KEYS[1])", 1, key} }},
	{"evalsha", func(key string) []any { return []any{strings.Repeat("0", 40), 1, key} }}, // there is none: NOSCRIPT
	{"time", func(string) []any { return nil }},
	{"exists", with()},
	{"pttl", with()},
	{"zscore", with("a")},
	{"zcard", with()},
	{"zcount", with("-inf", "+inf")},
	{"zrank", with("a")},
	{"zrange", with(0, 0)},
	{"zrangebyscore", with("-inf", "+inf", "LIMIT", 0, 1)},
	{"zrevrangebyscore", with("+inf", "-inf", "LIMIT", 0, 1)},
	{"zremrangebyscore", with(5, 6)},
	{"zrem", with("b")},
	{"persist", with()},
	{"mget", with()},
	{"set", beside("claim", "PX", 60_000)},
	{"get", beside()},
	{"hset", hash("report", "{}")},
	{"hlen", hash()},
	{"hget", hash("report")},
	{"hgetall", hash()},
	{"hdel", hash("report")},
	{"publish", func(key string) []any { return []any{channelOf(key), "doctor"} }},
	{"scan", func(key string) []any { return []any{0, "MATCH", key, "COUNT", 1} }},
	{"ping", func(string) []any { return nil }},
	{"del", func(key string) []any { return []any{key, besideKey(key), hashKey(key)} }},
}

// besideKey is a key beside the lock's, as a claim's is.
func besideKey(key string) string { return key + ":doctor" }

// hashKey is that of a hash, as the controls are one.
func hashKey(key string) string { return key + ":doctors" }

func hash(args ...any) func(string) []any {
	return func(key string) []any { return append([]any{hashKey(key)}, args...) }
}

func beside(args ...any) func(string) []any {
	return func(key string) []any { return append([]any{besideKey(key)}, args...) }
}

func with(args ...any) func(string) []any {
	return func(key string) []any { return append([]any{key}, args...) }
}

// channelOf is a channel of the prefix that key has.
func channelOf(key string) string {
	prefix, name, _ := strings.Cut(key, ":{")
	return prefix + ":" + strings.Trim(name, "}")
}

// rights tries each command on a key and channel of its own.
func (d *doctor) rights(ctx context.Context) error {
	key := keys.Key(d.Prefix, "doctor-"+strings.ToLower(rand.Text()))
	var missing []string
	for _, t := range trials {
		err := d.rdb.Do(ctx, append([]any{t.command}, t.args(key)...)...).Err()
		switch {
		case denied(err):
			missing = append(missing, fmt.Sprintf("%s (%s)", t.command, reason(err)))
		case gone(err) && !errors.Is(err, redis.Nil):
			return inspect.Backend(err)
		}
	}
	if err := d.releases(ctx, key); err != nil {
		return err
	}
	if len(missing) == 0 {
		d.foundf(Fine, "rights", "each of %d commands, on %s:* and its channels", len(trials), d.Prefix)
		return nil
	}
	d.foundf(Bad, "rights", "not permitted: %s; docs/redis.md has the ACL line that suffices", strings.Join(missing, ", "))
	if slices.ContainsFunc(missing, func(s string) bool { return strings.HasPrefix(s, "del ") }) {
		d.foundf(Note, "rights", "%s is left behind for a minute, since it may not be deleted", key)
	}
	return nil
}

// releases says how a lock that is a string is released: by a command of the server's own, or by a script. The key
// does not exist.
func (d *doctor) releases(ctx context.Context, key string) error {
	for _, c := range [][]any{{"DELEX", key, "IFEQ", "doctor"}, {"DELIFEQ", key, "doctor"}} {
		switch err := d.rdb.Do(ctx, c...).Err(); {
		case err == nil:
			d.foundf(Fine, "releases", "by %s", c[0])
			return nil
		case redis.HasErrorPrefix(err, "NOPERM"):
			d.foundf(Note, "releases", "by a script: the server has %[1]s, which costs it less, but this user may not run it; allow it with +%[2]s", c[0], strings.ToLower(fmt.Sprint(c[0])))
			return nil
		case gone(err):
			return inspect.Backend(err)
		}
	}
	d.foundf(Fine, "releases", "by a script: the server has neither DELEX (Redis 8.4) nor DELIFEQ (Valkey 9)")
	return nil
}

// reason says what was denied: the command, the key or the channel.
func reason(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "channel"):
		return "channel"
	case strings.Contains(text, "key"):
		return "key"
	}
	return "command"
}

// pubsub sends itself a message.
func (d *doctor) pubsub(ctx context.Context) error {
	const bites = "waiters are woken late, after up to a second"
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	channel := d.Prefix + ":doctor-" + strings.ToLower(rand.Text())
	sub := d.rdb.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }() // of a connection that is not used again
	_, err := sub.Receive(ctx)
	switch {
	case denied(err):
		d.foundf(Bad, "Pub/Sub", "this user may not subscribe to %s:*: %s", d.Prefix, bites)
		return nil
	case err != nil:
		d.foundf(Bad, "Pub/Sub", "no subscription within %s (%s): %s", d.Timeout, printable.OneLine(err.Error()), bites)
		return nil
	}
	if err := d.rdb.Publish(ctx, channel, "doctor").Err(); denied(err) {
		d.foundf(Bad, "Pub/Sub", "this user may not publish on %s:*: %s", d.Prefix, bites)
		return nil
	} else if err != nil {
		return inspect.Backend(err)
	}
	if _, err := sub.ReceiveMessage(ctx); err != nil {
		d.foundf(Bad, "Pub/Sub", "a message sent did not arrive within %s: %s; does a proxy stand in between?", d.Timeout, bites)
		return nil
	}
	d.foundf(Fine, "Pub/Sub", "a message sent arrived")
	return nil
}
