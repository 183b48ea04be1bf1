package wire

import (
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
)

// The functions of this file make the arguments of scripts, in the order of their heads. Arguments of
// type any are boxed once by callers, or say their value only as the command is written.

// AskArgs is what an ask sends. A stay of 0 does not join the line.
type AskArgs struct {
	Body         *exchange.Counted
	Keep         any   // how long the key lasts after a take (ms)
	Stay         int64 // how long the entry in the line lives (ms)
	Limit        int
	Park         int64 // ParkNever, ParkLast or ParkAhead
	Every, Spare int64 // the rate (us)
}

// Whether and where an ask parks.
const (
	ParkNever = 0
	ParkLast  = 1 // at the end of the line
	ParkAhead = 2 // before all that is parked
)

// Args are the arguments of ask.
func (a AskArgs) Args() []any {
	return AskScript.Short([]any{a.Body, a.Keep, a.Stay, int64(a.Limit), a.Park, a.Every, a.Spare})
}

// CallArgs are the arguments of call. An empty note only checks the line.
func CallArgs(limit int, inbound, life any, note string, fate inside.Fate) []any {
	code := 0
	switch fate {
	case inside.FateUnsure, inside.FateComing:
	case inside.FateGone:
		code = 1
	case inside.FateLater:
		code = 2
	}
	return []any{limit, inbound, life, note, code}
}

// InspectArgs are the arguments of inspect: how many of each list it names at most, and the task to look for.
func InspectArgs(most int, note string, ticket int64) []any { return []any{most, note, ticket} }

// BreakArgs are the arguments of break.
func BreakArgs(limit int, token string, what int, known string) []any {
	return []any{limit, token, what, known}
}

// CloseArgs are the arguments of close: the holder whose key stays closed for length.
func CloseArgs(member *MemberArg, length time.Duration) []any {
	return []any{member, length.Milliseconds()}
}

// RenewArgs are the arguments of renew; with trace it writes even if it changes nothing.
func RenewArgs(member *MemberArg, length time.Duration, trace bool) []any {
	if trace {
		return []any{member, length.Milliseconds(), int64(1)}
	}
	return []any{member, length.Milliseconds()}
}

// ClaimTakeArgs are the arguments of claim_take.
func ClaimTakeArgs(holder, instead string, length time.Duration) []any {
	return []any{holder, instead, length.Milliseconds()}
}

// ClaimKeepArgs are the arguments of claim_keep.
func ClaimKeepArgs(holder, next string, length time.Duration, stale bool) []any {
	return []any{holder, next, length.Milliseconds(), Flag(stale)}
}

// ClaimStartArgs are the arguments of claim_start.
func ClaimStartArgs(holder string, phase inside.Phase, ends bool, length time.Duration) []any {
	return []any{holder, string(phase), Flag(ends), length.Milliseconds()}
}

// ClaimDropArgs are the arguments of claim_drop.
func ClaimDropArgs(holder string) []any { return []any{holder} }

// OrderActArgs are the arguments of order_act: act changes the member that item names.
func OrderActArgs(limit int, inbound any, act inside.OrderAct, item inside.OrderItem, after time.Duration) []any {
	return []any{int64(limit), inbound, string(act), item.Nonce, item.Ticket, item.State, item.Seen, after.Milliseconds(), item.Note}
}

// Flag is a bool as scripts take it: 1 or 0.
func Flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// MemberArg is a member's name without its kind, as renewals send it. Commands carry a
// pointer to it.
type MemberArg string

// MarshalBinary is called by go-redis each time the command is written.
func (a *MemberArg) MarshalBinary() ([]byte, error) { return []byte(*a), nil }

// String is what tracing hooks print. Owners and notes are anybody's text.
func (a *MemberArg) String() string { return printable.Text(string(*a)) }
