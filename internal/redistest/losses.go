package redistest

import (
	"slices"
	"sync"
)

// loss is an order to lose some replies.
type loss struct {
	match  func(command []string) bool
	pubsub bool // also on connections used for Pub/Sub
	left   int  // guarded by the proxy's mu
}

// DropReplies has the next n replies lost: the command has run, but instead of
// its reply the client gets a closed connection (which makes go-redis send the
// command again). Replies on Pub/Sub connections and to the commands that set up
// a connection (HELLO, AUTH, SELECT, CLIENT) do not count.
func (p *Proxy) DropReplies(n int) {
	p.addLoss(&loss{left: n, match: func(command []string) bool {
		return !slices.Contains([]string{"HELLO", "AUTH", "SELECT", "CLIENT"}, command[0])
	}})
}

// DropReplyTo is DropReplies for the next n replies to commands that match
// chooses, on any connection. A command's first word comes in upper case, the
// rest as it was sent. match may run on several goroutines at once, and must
// not block.
func (p *Proxy) DropReplyTo(match func(command []string) bool, n int) {
	p.addLoss(&loss{left: n, match: match, pubsub: true})
}

func (p *Proxy) addLoss(l *loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = append(p.losses, l)
}

// loses tells whether the reply to command is to be lost, and takes it off the
// order.
func (p *Proxy) loses(command []string, pubsub bool) bool {
	p.mu.Lock()
	losses := slices.Clone(p.losses)
	p.mu.Unlock()
	for _, l := range losses {
		if pubsub && !l.pubsub || !l.match(command) {
			continue
		}
		p.mu.Lock()
		lost := l.left > 0
		if lost {
			l.left--
		}
		if l.left <= 0 {
			p.losses = slices.DeleteFunc(p.losses, func(o *loss) bool { return o == l })
		}
		p.mu.Unlock()
		if lost {
			return true
		}
	}
	return false
}

// Held are commands that are kept from the server, see [Proxy.Hold].
type Held struct {
	match    func(command []string) bool
	left     int           // guarded by the proxy's mu, as is count
	count    int           // commands that came and were kept
	released chan struct{} // closed by Release, once; links wait for it
	once     sync.Once
	p        *Proxy
}

// Hold keeps the next n commands that match chooses (see DropReplyTo) on their
// way to the server until Release, and with them whatever follows on the same
// connections. Like a packet in a network, a held command arrives even if the
// client has given up and closed its connection meanwhile; only Cut loses it.
func (p *Proxy) Hold(match func(command []string) bool, n int) *Held {
	h := &Held{match: match, left: n, released: make(chan struct{}), p: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds = append(p.holds, h)
	return h
}

// Count tells how many commands have been held.
func (h *Held) Count() int {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	return h.count
}

// Release lets the held commands go, and holds no others.
func (h *Held) Release() {
	h.p.mu.Lock()
	h.left = 0
	h.p.holds = slices.DeleteFunc(h.p.holds, func(o *Held) bool { return o == h })
	h.p.mu.Unlock()
	h.once.Do(func() { close(h.released) })
}

// holder gives what keeps this command, if anything does.
func (p *Proxy) holder(command []string) *Held {
	p.mu.Lock()
	holds := slices.Clone(p.holds)
	p.mu.Unlock()
	for _, h := range holds {
		if !h.match(command) {
			continue
		}
		p.mu.Lock()
		held := h.left > 0
		if held {
			h.left--
			h.count++
		}
		p.mu.Unlock()
		if held {
			return h
		}
	}
	return nil
}
