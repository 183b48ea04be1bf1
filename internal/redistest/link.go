package redistest

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// pubsubCommands are answered by pushes, one per channel and not one per
// command.
var pubsubCommands = []string{
	"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE",
}

// messagePushes are the pushes that carry what was published.
var messagePushes = []string{"message", "pmessage", "smessage"}

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	p      *Proxy
	client net.Conn
	server net.Conn

	once sync.Once     // runs close
	gone chan struct{} // closed by close; ends whatever the goroutines wait for

	toClient chan delivery // from down, which closes it, to deliver

	mu      sync.Mutex // guards pending and pubsub
	pending [][]string // commands sent on and not answered yet, oldest first
	pubsub  bool       // a command of pubsubCommands was seen
}

// delivery is what goes to the client, and when.
type delivery struct {
	raw []byte
	due time.Time
	cut bool // instead of raw: end the link
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{
		p: p, client: client, server: server,
		gone: make(chan struct{}), toClient: make(chan delivery, 1024),
	}
}

// close ends the link at once; what was on its way is lost.
func (l *link) close() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// carry runs the link until both directions have ended.
func (l *link) carry() {
	var wg sync.WaitGroup
	Go(&wg, l.up)      // ends when the client closes, or at close
	Go(&wg, l.down)    // ends when the server closes, or at close
	Go(&wg, l.deliver) // ends after down, or at close; then closes
	wg.Wait()
}

// up carries commands from the client to the server.
func (l *link) up() {
	// A client that goes does not take back what it has sent: the server still
	// reads all of it before it sees the end, and only then closes its side.
	defer func() { _ = l.server.(*net.TCPConn).CloseWrite() }()
	r := bufio.NewReader(l.client)
	for {
		f, err := readCommand(r)
		if err != nil {
			return
		}
		if len(f.items) > 0 {
			f.items[0] = strings.ToUpper(f.items[0])
			if l.swallows(f.items) {
				continue
			}
			if h := l.p.holder(f.items); h != nil {
				select {
				case <-h.released:
				case <-l.gone:
					return
				}
			}
			l.sent(f.items)
		}
		if !l.waits(l.p.through(ToServer, len(f.raw))) {
			return
		}
		if _, err := l.server.Write(f.raw); err != nil {
			return
		}
	}
}

// IsControlRead tells whether a command, as its words, is a script on the controls or the
// format of package lock. Each Locker sends one now and then, whatever a test does.
func IsControlRead(command []string) bool {
	return len(command) > 3 && strings.HasPrefix(strings.ToUpper(command[0]), "EVAL") && strings.Contains(command[3], ":{control}")
}

// sent notes a command that goes to the server now.
func (l *link) sent(command []string) {
	name := command[0]
	if IsControlRead(command) {
		name = "CONTROL"
	}
	l.p.mu.Lock()
	l.p.counts[name]++
	l.p.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(pubsubCommands, command[0]) {
		l.pubsub = true
	} else {
		l.pending = append(l.pending, command)
	}
}

// down reads replies and pushes from the server and decides what becomes of
// them.
func (l *link) down() {
	defer close(l.toClient)
	r := bufio.NewReader(l.server)
	for {
		f, err := readFrame(r)
		if err != nil {
			return
		}
		d := delivery{raw: f.raw}
		command, pubsub := l.answered(f)
		message := isPush(f, pubsub) && slices.Contains(messagePushes, f.items[0])
		now := l.p.now()
		swallow := now.swallow[ToClient][kindOf(pubsub)] || now.dropMessages && message
		if message {
			l.p.countMessage(swallow)
		}
		if swallow {
			continue
		}
		if command != nil && l.p.loses(command, pubsub) {
			d = delivery{cut: true}
		}
		d.due = l.p.through(ToClient, len(f.raw)).Add(now.delay)
		select {
		case l.toClient <- d:
		case <-l.gone:
			return
		}
		if d.cut {
			return
		}
	}
}

// answered gives the command that f is the reply to, or nil for a push, and
// whether the connection is used for Pub/Sub.
func (l *link) answered(f frame) (command []string, pubsub bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isPush(f, l.pubsub) || len(l.pending) == 0 {
		return nil, l.pubsub
	}
	command, l.pending = l.pending[0], l.pending[1:]
	return command, l.pubsub
}

// isPush tells a push from a reply. RESP3 has a type for it; in RESP2 it is an
// array that begins with a known word.
func isPush(f frame, pubsub bool) bool {
	if f.kind == '>' {
		return len(f.items) > 0
	}
	return pubsub && f.kind == '*' && len(f.items) > 0 && (slices.Contains(messagePushes, f.items[0]) ||
		slices.Contains(pubsubCommands, strings.ToUpper(f.items[0])))
}

// deliver hands over to the client what is due.
func (l *link) deliver() {
	defer l.close()
	for d := range l.toClient {
		if !l.waits(d.due) || d.cut {
			return
		}
		// An error means that the client is gone. What it has sent runs all the
		// same, so the server is read to its end.
		_, _ = l.client.Write(d.raw)
	}
}
