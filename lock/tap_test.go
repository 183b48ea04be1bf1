package lock

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/wire"
)

// tap is a hook that counts script calls and the sizes of pipelines.
type tap struct {
	mu        sync.Mutex     // guards the fields below
	calls     map[string]int // by script name, pipelined ones included
	evals     int            // EVAL rather than EVALSHA
	pipelines map[string][]int
	first     map[string][]any // arguments by script name, as first seen
}

func newTap(rdb redis.UniversalClient) *tap {
	k := &tap{calls: map[string]int{}, pipelines: map[string][]int{}, first: map[string][]any{}}
	rdb.AddHook(k)
	return k
}

func (k *tap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k *tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		k.mu.Lock()
		k.note(cmd)
		k.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (k *tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		k.mu.Lock()
		for _, cmd := range cmds {
			k.note(cmd)
		}
		if name := scriptName(cmds[0]); name != "" {
			k.pipelines[name] = append(k.pipelines[name], len(cmds))
		}
		k.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (k *tap) note(cmd redis.Cmder) {
	if name := scriptName(cmd); name != "" {
		k.calls[name]++
		if k.first[name] == nil {
			k.first[name] = cmd.Args()[min(len(cmd.Args()), len([]string{"EVALSHA", "sha", "1", "key"})):]
		}
		if cmd.Name() == "eval" {
			k.evals++
		}
	}
}

func (k *tap) count(s *exchange.Script) int { return k.named(s.Name) }

// named is how often the script or command of that name was sent.
func (k *tap) named(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls[name]
}

// sizes gives the sizes of all pipelines of s so far.
func (k *tap) sizes(s *exchange.Script) []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.pipelines[s.Name])
}

func (k *tap) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.calls)
	clear(k.pipelines)
	clear(k.first)
	k.evals = 0
}

func scriptName(cmd redis.Cmder) string {
	args := cmd.Args()
	if len(args) < 2 {
		return ""
	}
	switch name := cmd.Name(); name {
	case "set", "delex", "delifeq":
		return name
	}
	for _, s := range wire.Scripts {
		if args[1] == s.SHA || args[1] == s.Source {
			return s.Name
		}
	}
	return ""
}

// total is the number of script calls of all kinds.
func (k *tap) total() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, calls := range k.calls {
		n += calls
	}
	return n
}
