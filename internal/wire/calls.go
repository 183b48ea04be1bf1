package wire

import "time"

// Calls is a reply that names parked work whose turn has come.
type Calls struct {
	Code     int64         // of release: how many slots are free, as without calls
	FirstEnd time.Duration // until the first deadline, or until the gate opens; below 0: neither
	Notes    []string      // of the called, in the order of the line
}

// ParseCalls reads such a reply, of release, call or order_act. ok is false for one of another form.
func ParseCalls(reply any) (c Calls, ok bool) {
	f := listOf(reply)
	c = Calls{Code: f.num(0), FirstEnd: f.ms(2)}
	_ = f.num(1)
	if len(f.list) > 3 {
		c.Notes = make([]string, 0, len(f.list)-3)
	}
	for i := 3; i < len(f.list); i++ {
		c.Notes = append(c.Notes, f.text(i))
	}
	return c, !f.wrong
}

// ParseGrants reads the part of a reply of release that names grants to waiters of the same channel.
// rest is the reply without it.
func ParseGrants(reply any) (rest any, grants []Message) {
	r, _ := reply.([]any)
	if len(r) < 2 {
		return reply, nil
	}
	if _, isText := r[1].(string); !isText {
		return reply, nil
	}
	grants = make([]Message, 0, len(r)-1)
	for _, v := range r[1:] {
		if text, ok := v.(string); ok {
			if msg, ok := ParseMessage(text); ok {
				grants = append(grants, msg)
			}
		}
	}
	return r[0], grants
}
