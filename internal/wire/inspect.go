package wire

import (
	"fmt"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// ParseInspect reads a reply of the script inspect for the lock with that key.
func ParseInspect(key string, reply any) (inside.Info, error) {
	f := listOf(reply)
	us := f.num(0)
	info := inside.Info{Key: key, Held: int(f.num(1)), Waiting: int(f.num(2)), Parked: int(f.num(3)), Called: int(f.num(4)), Place: int(f.num(6))}
	if fence := f.num(5); fence > 0 {
		info.Granted = time.Duration(us-fence) * time.Microsecond
	}
	members := field[[]any](f, 7)
	info.Gate = inside.Gate{Reason: f.text(8), OpensIn: time.Duration(f.num(9)) * time.Microsecond}
	ordered, first := int(f.num(10)), field[[]any](f, 11)
	if err := f.err(reply); err != nil {
		return inside.Info{}, err
	}
	for i := 0; i+1 < len(members); i += 2 {
		member, _ := members[i].(string)
		score, _ := members[i+1].(string)
		ms, err := strconv.ParseFloat(score, 64)
		holder, ok := ParseHolder(member)
		if err != nil || !ok {
			return inside.Info{}, fmt.Errorf("unexpected member %q with score %q", member, score)
		}
		holder.ExpiresIn = time.Duration(ms)*time.Millisecond - time.Duration(us)*time.Microsecond
		info.Holders = append(info.Holders, holder)
	}
	if ordered > 0 {
		head, err := parseHead(key, ordered, info.Holders, first)
		if err != nil {
			return inside.Info{}, err
		}
		info.Head = head
		if info.Queued = ordered; head.Runs {
			info.Queued--
			info.Place = max(-1, info.Place-1) // the head is not in line
		}
	}
	if len(info.Holders) == 1 && info.Granted == 0 { // a string, which has no fence
		if at := takenAt(info.Holders[0].Token); at > 0 {
			info.Granted = max(0, time.Duration(us-at)*time.Microsecond)
		}
	}
	return info, nil
}
