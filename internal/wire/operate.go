package wire

import "strings"

// What the break script removes. Without a token it also opens a gate that a hold or a
// cooldown has closed.
const (
	BreakSlots = 0 // holders
	BreakKey   = 1 // the whole key
	BreakGate  = 2 // nothing else
)

// AnyHolder lets the break script break every holder.
const AnyHolder = "*"

// KnownHolders lets the break script break holders with these tokens, and none if there is another one.
func KnownHolders(tokens []string) string { return " " + strings.Join(tokens, " ") + " " }

// Replies of break, renew and close, as their headers name them.
const (
	BreakUnknown = -1
	BreakNothing = -2

	RenewLost    = 0
	RenewRenewed = 1
)

// ParseBreak reads a reply of break or pool_delete: the number of slots or values that it removed, or a
// negative number that says why it removed none, and the tokens of the holders.
func ParseBreak(reply any) (taken int, tokens []string, err error) {
	f := listOf(reply)
	n, count := f.num(0), f.num(1)
	for i := 2; i < len(f.list); i++ {
		tokens = append(tokens, f.text(i))
	}
	f.wrong = f.wrong || count != int64(len(tokens)) || count > max(n, 0)
	return int(n), tokens, f.err(reply)
}

// ParseArrive reads a reply of the script arrive.
func ParseArrive(reply any) (arrival int64, first bool, err error) {
	f := listOf(reply)
	arrival, first = f.num(0), f.num(1) == 1
	f.wrong = f.wrong || arrival <= 0
	return arrival, first, f.err(reply)
}

// ParseAway reads a reply of the script arrive to work that goes away, or that may have no arrival.
func ParseAway(reply any) (known bool, err error) {
	f := listOf(reply)
	arrival, first := f.num(0), f.num(1)
	f.wrong = f.wrong || arrival < 0 || first < 0 || first > 1
	return arrival > 0, f.err(reply)
}
