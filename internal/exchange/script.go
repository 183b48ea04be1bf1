package exchange

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; no secret hangs on it.
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Script is one Lua operation. It never changes.
type Script struct {
	Name string
	Args []string // what the call sites pass, in order; name=n: n where it is left out
	// Spare has the n of each argument that can be left out, else nil.
	Spare  []any
	Source string
	SHA    string // of Source, by which Redis knows it
}

// NewScript makes the script of that name. A wrong argument is a bug: it panics.
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
	return &Script{Name: name, Args: args, Spare: spare, Source: source, SHA: hex.EncodeToString(sum[:])}
}

// Short leaves out the arguments at the end that say what the script takes for
// granted: a mutex without ado sends one or two. Each of the others costs client
// and Redis a tenth of a microsecond or two.
func (s *Script) Short(args []any) []any {
	for n := len(args); ; n-- {
		if spare := s.Spare[n-1]; spare == nil || spare != args[n-1] {
			return args[:n]
		}
	}
}
