package wire

import (
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// ParseHolder reads h:<token>|<owner>|<note>.
func ParseHolder(member string) (inside.Holder, bool) {
	prefix, body, ok := strings.Cut(member, ":")
	f := strings.SplitN(body, "|", 3)
	if !ok || len(f) != 3 || prefix != "h" {
		return inside.Holder{}, false
	}
	return inside.Holder{Token: f[0], Owner: Unescape(f[1]), Note: f[2]}, true
}

// ParseTaker reads h:<value>|<token>|<owner>|<note>.
func ParseTaker(member string) (inside.Holder, bool) {
	_, body, _ := strings.Cut(member, "|")
	return ParseHolder("h:" + body)
}

// The scores of the line, and of the tasks in order behind it, for ZRANGE: see lua/line.lua and lua/order.lua.
const (
	LineFrom = "2e15"
	LineTo   = "+inf"
)

// ParseWaiter reads a member of the line with its score. The score is a ticket: see lua/line.lua and
// docs/redis.md.
func ParseWaiter(member string, score float64) (w inside.Waiter, ok bool) {
	if o, ordered := parseOrderMember(member); ordered {
		return o.waiter(score), true
	}
	if note, parked := strings.CutPrefix(member, "p:"); parked {
		w = inside.Waiter{Note: note, Parked: true, Called: score >= 6e15}
		w.Since = time.UnixMicro(int64(math.Mod(score, 2e15) + 1.6e15))
		return w, true
	}
	f := strings.SplitN(strings.TrimPrefix(member, "e:"), "|", 3)
	if len(f) != 3 {
		return inside.Waiter{}, false
	}
	return inside.Waiter{Owner: Unescape(f[1]), Note: f[2], Since: time.UnixMicro(int64(score - 2e15 + 1.6e15))}, true
}

// Unescape is the inverse of keys.Escape. It returns other text as it is.
func Unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
