package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// mostProcesses and mostSets bound what Read asks Redis for: the processes that wrote last,
	// and the sets of rules that most of them have.
	mostProcesses = 5000
	mostSets      = 100
	// chunk is how many values one MGET brings.
	chunk = 500
)

// Reader is what Read needs of a client.
type Reader interface {
	Time(ctx context.Context) *redis.TimeCmd
	ZRevRangeByScoreWithScores(ctx context.Context, key string, opt *redis.ZRangeBy) *redis.ZSliceCmd
	MGet(ctx context.Context, keys ...string) *redis.SliceCmd
}

// Fleet is what the processes of a prefix have said of themselves.
type Fleet struct {
	At        time.Time // Redis' time of the look
	Processes []Process // those that wrote last first
	Sets      []Set     // different sets of rules, the one that most processes run first
	Cut       bool      // there are more processes or sets than were read
}

// Set is the rules that some processes have in common.
type Set struct {
	Hash  string
	Kind  string // of its processes
	Rules []Rule
	Runs  int // live processes that run it
}

// Read reads the fleet of a prefix: at most mostProcesses processes and mostSets sets of rules.
func Read(ctx context.Context, rdb Reader, prefix string) (*Fleet, error) {
	k := keys(prefix)
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	f := &Fleet{At: now}
	index, err := rdb.ZRevRangeByScoreWithScores(ctx, k.index(), &redis.ZRangeBy{Min: "-inf", Max: "+inf", Count: mostProcesses + 1}).Result()
	if err != nil {
		return nil, err
	}
	if len(index) > mostProcesses {
		index, f.Cut = index[:mostProcesses], true
	}
	names := make([]string, len(index))
	for i, z := range index {
		id, _ := z.Member.(string)
		names[i] = k.process(id)
	}
	texts, err := mget(ctx, rdb, names)
	if err != nil {
		return nil, err
	}
	for i, text := range texts {
		var p Process
		if text == "" || json.Unmarshal([]byte(text), &p) != nil {
			continue // it has expired, or is of a version that writes otherwise
		}
		p.Seen = time.UnixMilli(int64(index[i].Score))
		f.Processes = append(f.Processes, p)
	}
	f.Sets = setsOf(f.Processes, now)
	if len(f.Sets) > mostSets {
		f.Sets, f.Cut = f.Sets[:mostSets], true
	}
	if err := readRules(ctx, rdb, k, f.Sets); err != nil {
		return nil, err
	}
	return f, nil
}

// setsOf returns the sets of rules that live processes run, without the rules, in the order of Fleet.Sets.
func setsOf(processes []Process, now time.Time) []Set {
	type id struct{ kind, hash string }
	runs := map[id]int{}
	for _, p := range processes {
		if !p.Stopped(now) {
			runs[id{p.Kind, p.Hash}]++
		}
	}
	sets := make([]Set, 0, len(runs))
	for set, n := range runs {
		sets = append(sets, Set{Hash: set.hash, Kind: set.kind, Runs: n})
	}
	slices.SortFunc(sets, func(a, b Set) int {
		return cmp.Or(cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Hash, b.Hash))
	})
	return sets
}

// readRules reads the rules of the sets.
func readRules(ctx context.Context, rdb Reader, k keys, sets []Set) error {
	names := make([]string, len(sets))
	for i, set := range sets {
		names[i] = k.rules(set.Hash)
	}
	texts, err := mget(ctx, rdb, names)
	if err != nil {
		return err
	}
	for i, text := range texts {
		if text != "" {
			_ = json.Unmarshal([]byte(text), &sets[i].Rules) // of another version: what it shares with this one
		}
	}
	return nil
}

// mget reads values, a chunk at a time. A missing one is empty.
func mget(ctx context.Context, rdb Reader, names []string) ([]string, error) {
	texts := make([]string, 0, len(names))
	for some := range slices.Chunk(names, chunk) {
		values, err := rdb.MGet(ctx, some...).Result()
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			text, _ := v.(string)
			texts = append(texts, text)
		}
	}
	return texts, nil
}

// Rules returns the rules that the live processes of a kind run, each name once: where two
// sets differ, the rule of the set that more of them run.
func (f *Fleet) Rules(kind string) (rules []Rule) {
	seen := map[string]bool{}
	for _, set := range f.Sets {
		if set.Kind != kind {
			continue
		}
		for _, r := range set.Rules {
			if !seen[r.Name] {
				seen[r.Name] = true
				rules = append(rules, r)
			}
		}
	}
	return rules
}
