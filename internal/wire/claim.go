package wire

import "github.com/automutex/automutex/internal/inside"

// ParseClaimTake reads a reply of the script claim_take, which was sent for holder.
func ParseClaimTake(reply any, holder string) (inside.Claimed, error) {
	if reply == int64(0) {
		return inside.Claimed{Holder: holder, Phase: inside.PhaseEnqueuing}, nil
	}
	f := listOf(reply)
	standing := inside.Claimed{Holder: f.text(0), Age: f.ms(1), Phase: inside.Phase(f.text(2))}
	if err := f.err(reply); err != nil {
		return inside.Claimed{}, err
	}
	return standing, nil
}
