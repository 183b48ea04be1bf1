package turn

import (
	"strconv"
	"strings"
	"time"
)

// Answer is the reply to an ask: "yours", the asker holds the lock, or "busy".
type Answer struct {
	Yours    bool
	Fence    int64         // yours
	Value    string        // yours: what was taken out of a pool, escaped
	ServerUS int64         // busy: Redis' time (us)
	Deadline time.Duration // busy: until the first deadline; below 0: no holder
	Place    int           // busy: waiters before the asker
	Holder   string        // busy: the body of one holder, or the head of an ordered key; empty: none
	Gate     time.Duration // busy: until the gate opens, if the asker waits for that; else 0
	Reason   string        // busy: what closed the gate

	// Returned: the asker's note was parked or called before, or this ask parked it. The fields below are zero otherwise.
	Returned     bool
	InLine       time.Duration // since the note's first place in line
	SinceCall    time.Duration // since the note was called; below 0: it was not
	OthersParked int           // how many more notes are parked
	Parked       bool          // busy: the note is parked now
}

// Message is what a script publishes to the holder or waiter with a token: a grant, or another kind that a negative fence names.
type Message struct {
	Token    string
	Fence    int64  // of a grant: its fence; else BrokenFence, StopFence or GateFence
	ServerUS int64  // Redis' time when the script ran
	Value    string // of a grant: what was taken out of a pool, escaped; of GateFence: opens in (us)
}

// The negative fences name what else a message says.
const (
	BrokenFence = -1 // the holder's lease was broken
	StopFence   = -2 // a newer arrival asks the holder or waiter to stop
	GateFence   = -3 // to the first waiter: when the gate opens
)

// ParseMessage reads "<token> <fence> <server us>", and a value where there is one.
func ParseMessage(payload string) (Message, bool) {
	f := strings.Fields(payload)
	if len(f) != 3 && len(f) != 4 {
		return Message{}, false
	}
	fence, err1 := strconv.ParseInt(f[1], 10, 64)
	us, err2 := strconv.ParseInt(f[2], 10, 64)
	msg := Message{Token: f[0], Fence: fence, ServerUS: us}
	if len(f) == 4 {
		msg.Value = f[3] // escaped: no spaces in it
	}
	return msg, err1 == nil && err2 == nil
}
