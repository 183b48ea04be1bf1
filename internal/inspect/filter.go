package inspect

import (
	"cmp"
	"errors"
	"math"
	"path"
	"slices"
	"strings"
	"time"
)

// Filter says which locks an operator wants to see. The zero value is all of them.
type Filter struct {
	Match   string        // a pattern (*, ?, [a-z]) of the key, or a part of it when it has none of these
	Holder  string        // a part of a holder's owner
	Task    string        // a part of a holder's "queue/id"
	Waiting bool          // only locks with a line
	Longer  time.Duration // only locks taken longer ago than this
}

// Check reports a Match that is no pattern.
func (f Filter) Check() error {
	if _, err := path.Match(f.Match, ""); err != nil {
		return errors.New("not a pattern: a [ is not closed, or a \\ ends it")
	}
	return nil
}

// Passes reports whether a lock is shown. now is Redis' time.
func (f Filter) Passes(l Lock, now time.Time) bool {
	if !Compile(f.Match).Matches(l.Key) {
		return false
	}
	if f.Holder != "" && !slices.ContainsFunc(l.Holders, func(h Holder) bool { return strings.Contains(h.Owner, f.Holder) }) {
		return false
	}
	if f.Task != "" && !slices.ContainsFunc(l.Holders, func(h Holder) bool {
		return strings.Contains(TaskName(h.Queue, h.Task, h.Note), f.Task)
	}) {
		return false
	}
	if f.Waiting && l.Line == 0 {
		return false
	}
	// Of several holders only the newest one's age is known: any other may be older.
	return f.Longer == 0 || l.Held > 1 || l.Since != nil && now.Sub(*l.Since) > f.Longer
}

// Busier orders locks for a table: the longest line first, then the one taken longest
// ago, then by key, so that rows keep their place.
func Busier(a, b Lock) int {
	taken := func(l Lock) int64 {
		if l.Since == nil {
			return math.MaxInt64 // held by nobody: the last
		}
		return l.Since.UnixMicro()
	}
	return cmp.Or(cmp.Compare(b.Line, a.Line), cmp.Compare(taken(a), taken(b)), strings.Compare(a.Key, b.Key))
}
