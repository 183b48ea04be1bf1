package engine

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var update = flag.Bool("update", false, "write the stories anew")

// TestStories plays testdata/locks.txt: commands, what they reply and publish, and what is stored after.
func TestStories(t *testing.T) {
	t.Parallel()
	w := miniWorld(t)
	end := func() {}
	defer func() { end() }()
	play(t, "testdata/locks.txt", func() func(*event) (string, error) {
		ctx := context.Background()
		w.rdb.FlushAll(ctx)
		sub := w.rdb.PSubscribe(ctx, "automutex:*")
		end() // that of the story before, whose channel would fill
		end = func() { sub.Close() }
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		from, at := sub.Channel(), time.Duration(0)
		serial := int64(0)
		return func(e *event) (string, error) {
			serial++ // no two commands run in one microsecond
			w.set(startUS+e.At.Microseconds()+serial, e.At-at)
			at = e.At
			reply, err := playCommand(ctx, w.rdb, e)
			if err != nil {
				return "", err
			}
			text := showReply(reply)
			for _, message := range messages(w.rdb, from) {
				_, payload, _ := strings.Cut(message, ": ")
				text += fmt.Sprintf("; published %q", payload)
			}
			return relative(text + "; " + showStored(ctx, w.rdb)), nil
		}
	})
}

const storyKey = "automutex:{k}"

func playCommand(ctx context.Context, rdb *redis.Client, e *event) (any, error) {
	keys := e.Number("keys", 0)
	args := []any{}
	for _, word := range e.Words() {
		switch {
		case word == "_":
			word = ""
		case e.Name == "raw" && (word == "K" || strings.HasPrefix(word, "K:")):
			word = storyKey + word[1:]
		}
		args = append(args, word)
	}
	if e.Name == "raw" {
		reply, err := rdb.Do(ctx, args...).Result()
		if err == redis.Nil {
			return "nil", nil
		}
		return reply, err
	}
	all := orderKeys(storyKey)
	for _, s := range Scripts {
		if s.Name != e.Name {
			continue
		}
		switch {
		case keys == 0 && strings.HasPrefix(s.Name, "order_"):
			keys = 8
		case keys == 0 && (s.Name == "take" || s.Name == "drop"):
			keys = 1
		case keys == 0 && s.Name == "renew":
			keys = 2
		case s.Name == "arrive" || s.Name == "forget":
			keys, all = 2, newestKeys(storyKey)
		case s.Name == "stop":
			keys, all = 8, append(keysOf(storyKey), newestKeys(storyKey)...)
		case keys == 7 || s.Name == "put":
			keys, all = 7, append(keysOf(storyKey), storyKey+":values")
		case keys == 0:
			keys = 6
		}
		return rdb.Eval(ctx, s.Source, all[:keys], args...).Result()
	}
	return nil, fmt.Errorf("no script %q", e.Name)
}

func showReply(reply any) string {
	list, isList := reply.([]any)
	if !isList {
		if text, isText := reply.(string); isText {
			return text
		}
		return fmt.Sprint(reply)
	}
	var parts []string
	for _, one := range list {
		if text, isText := one.(string); isText {
			parts = append(parts, strconv.Quote(text))
		} else {
			parts = append(parts, showReply(one))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func showStored(ctx context.Context, rdb *redis.Client) string {
	keys := rdb.Keys(ctx, "*").Val()
	slices.Sort(keys)
	var parts []string
	for _, key := range keys {
		var value string
		switch rdb.Type(ctx, key).Val() {
		case "string":
			value = rdb.Get(ctx, key).Val() + fmt.Sprintf(" for %dms", rdb.PTTL(ctx, key).Val().Milliseconds())
		case "zset":
			for _, z := range rdb.ZRangeWithScores(ctx, key, 0, -1).Val() {
				is := ""
				if z.Score > 1<<52 {
					is, z.Score = "aside ", z.Score-1<<52
				}
				value += fmt.Sprintf(" %s:%s%.0f", z.Member, is, z.Score)
			}
		case "hash":
			all := rdb.HGetAll(ctx, key).Val()
			for _, field := range slices.Sorted(maps.Keys(all)) {
				value += fmt.Sprintf(" %s=%q", field, all[field])
			}
		}
		parts = append(parts, strings.Replace(key, storyKey, "K", 1)+" = "+strings.TrimSpace(value))
	}
	return cmp.Or(strings.Join(parts, "; "), "nothing stored")
}

var absolute = regexp.MustCompile(`\b18000\d{8}(\d{3})?\b`)

// relative writes each time as +<ms since the beginning>.
func relative(text string) string {
	return absolute.ReplaceAllStringFunc(text, func(s string) string {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return s
		}
		if len(s) > 13 {
			n /= 1000
		}
		return fmt.Sprintf("+%d", n-startUS/1000)
	})
}
