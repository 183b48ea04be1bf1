package lock

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// Holder is one holder of a lock, as others see it.
type Holder struct {
	// Token identifies the lease; see [Lease.Token].
	Token string
	// Owner is the holder's label ([Options].Owner).
	Owner string
	// Note is the holder's note; empty: none.
	Note string
	// ExpiresIn is the time until the lease's deadline, which a renewal moves.
	ExpiresIn time.Duration
	// Value is the value that the holder took out of a pool. It is empty for a lock.
	Value string
}

// maxHolders bounds what Holders lists.
const maxHolders = 1000

// Locked reports whether [Lock.Available] returns 0. The result may be outdated at once: to
// act on it, take the lock. After an error (ErrBackend) it is false.
func (m *Lock) Locked(ctx context.Context) (bool, error) {
	n, err := m.Available(ctx)
	return n == 0 && err == nil, err
}

// Available returns the number of free slots; 0 while the lock is paused or its gate is
// closed. A holder whose deadline has passed does not count. The result may be outdated at
// once. After an error it is 0.
func (m *Lock) Available(ctx context.Context) (int, error) {
	if err := m.enterControlled(ctx); err != nil {
		return 0, err
	}
	info, err := m.inspect(ctx, 0, "")
	if err != nil || info.Gate.OpensIn > 0 {
		return 0, err
	}
	return max(0, m.slots()-info.Held), nil
}

// Holders returns the holders of the lock, at most 1,000, the earliest deadline first. It
// returns nil if nobody holds the lock.
func (m *Lock) Holders(ctx context.Context) ([]Holder, error) {
	info, err := m.inspect(ctx, maxHolders, "")
	if len(info.Holders) == 0 {
		return nil, err
	}
	holders := make([]Holder, 0, len(info.Holders))
	for _, h := range info.Holders {
		holders = append(holders, Holder(h))
	}
	return holders, err
}

// Waiting returns the number of waiters in line. A waiter whose process died counts for up to
// three seconds. Parked tasks do not count.
func (m *Lock) Waiting(ctx context.Context) (int, error) {
	info, err := m.inspect(ctx, 0, "")
	return info.Waiting, err
}

// inspectAll returns all that Redis stores of the lock, in one exchange. Place is that of the
// handle's own [Note].
func (m *Lock) inspectAll(ctx context.Context) (inside.Info, error) {
	return m.inspect(ctx, maxHolders, m.note)
}

func (m *Lock) inspect(ctx context.Context, most int, note string) (inside.Info, error) {
	reply, err := m.operate(ctx, inspectScript, []any{most, note})
	if err != nil {
		return inside.Info{}, err
	}
	return parseInspect(m.Key(), reply, nil)
}

func parseInspect(key string, reply any, err error) (inside.Info, error) {
	if err != nil {
		return inside.Info{}, backendError("inspect", key, err)
	}
	f := listOf(reply)
	us := f.num(0)
	info := inside.Info{Key: key, Held: int(f.num(1)), Waiting: int(f.num(2)), Parked: int(f.num(3)), Called: int(f.num(4)), Place: int(f.num(6))}
	if fence := f.num(5); fence > 0 {
		info.Granted = time.Duration(us-fence) * time.Microsecond
	}
	members := field[[]any](f, 7)
	info.Gate = inside.Gate{Reason: f.text(8), OpensIn: time.Duration(f.num(9)) * time.Microsecond}
	if err := f.err(reply); err != nil {
		return inside.Info{}, backendError("inspect", key, err)
	}
	for i := 0; i+1 < len(members); i += 2 {
		member, _ := members[i].(string)
		score, _ := members[i+1].(string)
		ms, err := strconv.ParseFloat(score, 64)
		holder, ok := lockKind{}.parseHolder(member)
		if err != nil || !ok {
			return inside.Info{}, backendError("inspect", key, fmt.Errorf("unexpected member %q with score %q", member, score))
		}
		holder.ExpiresIn = time.Duration(ms)*time.Millisecond - time.Duration(us)*time.Microsecond
		info.Holders = append(info.Holders, holder)
	}
	if len(info.Holders) == 1 && info.Granted == 0 { // a string, which has no fence
		if at := takenAt(info.Holders[0].Token); at > 0 {
			info.Granted = max(0, time.Duration(us-at)*time.Microsecond)
		}
	}
	return info, nil
}

// unescape is the inverse of keytext.Escape. It returns other text as it is.
func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}
