package wire

import (
	"strconv"
	"strings"
	"time"
)

// Token is what a token says. No two attempts to take a lock have the same token.
//
//	body  = token|owner|note
//	token = channel.grant.[~][doublings+]nonce[.arrival]
//
// doublings says that a lease lasts up to 30 s doubled so many times, see lua/form.lua; it is left
// out if there are none.
type Token struct {
	Channel string        // where to wake the token's owner
	Grant   time.Duration // how long a lease that is granted to it lasts
	Apart   bool          // "~": no two holders of the lock have one note
	TTL     time.Duration // how long a lease lasts
	Nonce   int64         // tells tokens of one channel apart; for a string also when it was taken, see takenAt. In base 36
	Arrival int64         // when the work first came to the lock; 0: none, and left out
}

// Body returns the body with this token, and how many bytes of it are the token's. owner is escaped.
func (t Token) Body(owner, note string) (body []byte, size int) {
	b := make([]byte, 0, 64+len(owner)+len(note))
	b = append(b, t.Channel...)
	b = append(b, '.')
	b = strconv.AppendInt(b, t.Grant.Milliseconds(), 10)
	b = append(b, '.')
	if t.Apart {
		b = append(b, '~')
	}
	if n := doublings(t.TTL); n > 0 {
		b = strconv.AppendInt(b, n, 10)
		b = append(b, '+')
	}
	b = strconv.AppendInt(b, t.Nonce, 36)
	if t.Arrival > 0 {
		b = append(b, '.')
		b = strconv.AppendInt(b, t.Arrival, 10)
	}
	size = len(b)
	b = append(b, '|')
	b = append(b, owner...)
	b = append(b, '|')
	b = append(b, note...)
	return b, size
}

// takenAt returns when the token was made, by the clock of its process, in microseconds since
// 1970; 0 for a token without a nonce.
func takenAt(token string) int64 {
	f := strings.Split(token, ".")
	if len(f) < 3 {
		return 0
	}
	nonce := strings.TrimPrefix(f[2], "~")
	if _, after, found := strings.Cut(nonce, "+"); found {
		nonce = after
	}
	us, err := strconv.ParseInt(nonce, 36, 64)
	if err != nil {
		return 0
	}
	return us
}

// doublings returns how often 30 s must be doubled to be at least ttl.
func doublings(ttl time.Duration) (n int64) {
	for most := 30 * time.Second; most < ttl; most *= 2 {
		n++
	}
	return n
}
