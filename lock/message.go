package lock

import (
	"strconv"
	"strings"
)

// message is what a script publishes to the holder or waiter with a token: a grant, or
// another kind that a negative fence names.
type message struct {
	token    string
	fence    int64  // of a grant: its fence; else brokenFence, stopFence or gateFence
	serverUS int64  // Redis' time when the script ran
	value    string // of a grant: what was taken out of a pool, escaped; of gateFence: opens in (us)
}

const (
	brokenFence = -1 // the holder's lease was broken
	stopFence   = -2 // a newer arrival asks the holder or waiter to stop
	gateFence   = -3 // to the first waiter: when the gate opens
)

// parseMessage reads "<token> <fence> <server us>", and a value where there is one.
func parseMessage(payload string) (message, bool) {
	f := strings.Fields(payload)
	if len(f) != 3 && len(f) != 4 {
		return message{}, false
	}
	fence, err1 := strconv.ParseInt(f[1], 10, 64)
	us, err2 := strconv.ParseInt(f[2], 10, 64)
	msg := message{token: f[0], fence: fence, serverUS: us}
	if len(f) == 4 {
		msg.value = f[3] // escaped: no spaces in it
	}
	return msg, err1 == nil && err2 == nil
}
