package lock

import (
	"strconv"
	"strings"
)

// message is a grant as published: token, fence, server time; or the news that
// a lease was broken: then the fence is brokenFence; or that somebody newer asks
// to stop: then it is stopFence; or the news for the first in line when the gate opens:
// then it is gateFence.
type message struct {
	token string
	fence int64
	us    int64
	value string // out of a pool, escaped; of the gate: opens in (us)
}

const (
	brokenFence = -1
	stopFence   = -2
	gateFence   = -3
)

// parseMessage reads "<token> <fence> <server us>", and a value where there is one.
func parseMessage(payload string) (message, bool) {
	f := strings.Fields(payload)
	if len(f) != 3 && len(f) != 4 {
		return message{}, false
	}
	fence, err1 := strconv.ParseInt(f[1], 10, 64)
	us, err2 := strconv.ParseInt(f[2], 10, 64)
	msg := message{token: f[0], fence: fence, us: us}
	if len(f) == 4 {
		msg.value = f[3] // escaped: no spaces in it
	}
	return msg, err1 == nil && err2 == nil
}
