package wire

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// Pool is what Redis stores of a pool. values are free, holders have taken one each.
type Pool struct {
	Free, Taken, Waiting int
	Values               []string
	Holders              []inside.Holder
}

// ParsePool reads a reply of the script pool_inspect.
func ParsePool(reply any) (p Pool, err error) {
	f := listOf(reply)
	us := f.num(0)
	p = Pool{Free: int(f.num(1)), Taken: int(f.num(2)), Waiting: int(f.num(3))}
	values, holders := fields{list: field[[]any](f, 4)}, field[[]any](f, 5)
	for i := range values.list {
		p.Values = append(p.Values, Unescape(strings.TrimPrefix(values.text(i), "t:")))
	}
	if f.wrong || values.wrong {
		return Pool{}, Unexpected(reply)
	}
	for i := 0; i+1 < len(holders); i += 2 {
		member, _ := holders[i].(string)
		score, _ := holders[i+1].(string)
		value, expires, err := parseTaken(member, score, us)
		holder, ok := ParseTaker(member)
		if err != nil || !ok {
			return Pool{}, fmt.Errorf("unexpected member %q with score %q", member, score)
		}
		if holder.ExpiresIn = expires; expires <= 0 {
			p.Values = append(p.Values, value) // lapsed: free at the next call
			continue
		}
		holder.Value = value
		p.Holders = append(p.Holders, holder)
	}
	return p, nil
}

// parseTaken reads h:<value>|... and its deadline.
func parseTaken(member, score string, us int64) (value string, expires time.Duration, err error) {
	ms, err := strconv.ParseFloat(score, 64)
	for i := range len(member) {
		if member[i] == '|' {
			value = Unescape(member[len("h:"):i])
			break
		}
	}
	return value, time.Duration(ms)*time.Millisecond - time.Duration(us)*time.Microsecond, err
}
