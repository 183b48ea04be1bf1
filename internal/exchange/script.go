package exchange

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; no secret hangs on it.
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Script is one Lua operation. It never changes.
type Script struct {
	Name string
	Args []string // the arguments, in order; name=n: n is the default if it is left out
	// Spare has the default of each argument that can be left out, else nil.
	Spare  []any
	Source string
	SHA    string // the hash of Source, for EVALSHA

	byHash, bySource scriptCommand
}

// scriptCommand is the beginning of a command that runs a script.
type scriptCommand struct{ command, script any } // strings, boxed once

// over runs the script by the methods of a client or transport.
func (s scriptCommand) over(ctx context.Context, to Scripts, keys []string, args []any) *redis.Cmd {
	script, _ := s.script.(string)
	if s.command == "eval" {
		return to.Eval(ctx, script, keys, args...)
	}
	return to.EvalSha(ctx, script, keys, args...)
}

// NewScript makes the script of that name. It panics if an element of args is malformed.
func NewScript(name, source string, args ...string) *Script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
	spare := make([]any, len(args))
	for i, arg := range args {
		if _, text, ok := strings.Cut(arg, "="); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				panic(fmt.Sprintf("exchange: argument %s of script %s: %v", arg, name, err))
			}
			spare[i] = n
		}
	}
	hash := hex.EncodeToString(sum[:])
	return &Script{
		Name: name, Args: args, Spare: spare, Source: source, SHA: hash,
		byHash: scriptCommand{"evalsha", hash}, bySource: scriptCommand{"eval", source},
	}
}

// Short leaves out the last arguments that equal their defaults: for a plain mutex only one
// or two remain. Each argument costs client and Redis 0.1 to 0.2 microseconds.
func (s *Script) Short(args []any) []any {
	for n := len(args); ; n-- {
		if spare := s.Spare[n-1]; spare == nil || spare != args[n-1] {
			return args[:n]
		}
	}
}
