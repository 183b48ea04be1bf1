package redistest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/proto"
	"github.com/redis/go-redis/v9"
)

// Proxy stands between clients and one server and does what networks do. Every fault works on the connections that
// exist and on new ones. It understands RESP3, which go-redis speaks: faults hit whole commands, replies and messages,
// never a part.
//
// It does not follow a connection on which MONITOR or CLIENT REPLY OFF was sent, and of a cluster it hides one node
// only.
type Proxy struct {
	target string
	ln     net.Listener
	ctx    context.Context // ends at close; dials to the target end with it
	cancel context.CancelFunc
	wg     sync.WaitGroup // the accepting goroutine and all of its links

	mu     sync.Mutex // guards what follows; not held during I/O, nor while a match function runs
	links  map[*link]struct{}
	faults faults
	losses []*Held
	holds  []*Held
	counts map[string]int // commands that were sent on
}

// faults are those that are just on or off.
type faults struct {
	refuse              bool
	swallow             bool // everything
	swallowSubscription bool // what comes from the server on connections on which a SUBSCRIBE was seen
	dropMessages        bool
	delay               time.Duration
}

// NewProxy starts a proxy to the server at target (host:port). It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	Must(t, err)
	p := &Proxy{target: target, ln: ln, links: map[*link]struct{}{}, counts: map[string]int{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	Go(&p.wg, p.accept) // ends when the listener is closed
	t.Cleanup(func() {
		p.cancel()
		_ = p.ln.Close()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr gives the proxy's own host:port.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Client makes a new client that goes through the proxy, closed when the test ends.
func (p *Proxy) Client(t testing.TB, opts ...func(*redis.UniversalOptions)) redis.UniversalClient {
	t.Helper()
	return newClient(t, &redis.UniversalOptions{Addrs: []string{p.Addr()}}, opts)
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			Go(&p.wg, func() { p.serve(client) }) // ends with the connection, which Cut ends at the latest
		}
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	var refuse bool
	if p.locked(func() { refuse = p.faults.refuse }); refuse {
		return
	}
	server, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		return
	}
	l := &link{p: p, client: client, server: server, gone: make(chan struct{})}
	p.locked(func() { p.links[l] = struct{}{} })
	if p.ctx.Err() != nil { // the last Cut was called already, or will find the link
		l.close()
	}
	var up sync.WaitGroup
	Go(&up, l.up) // ends when the client closes, or at close
	l.down()
	up.Wait()
	p.locked(func() { delete(p.links, l) })
}

func (p *Proxy) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Cut closes all connections. What was on its way is lost.
func (p *Proxy) Cut() {
	var links map[*link]struct{}
	p.locked(func() { links = maps.Clone(p.links) })
	for l := range links {
		l.close()
	}
}

// Refuse has new connections closed at once.
func (p *Proxy) Refuse(on bool) { p.locked(func() { p.faults.refuse = on }) }

// Blackhole swallows everything in both directions. Connections stay open, and new ones are accepted.
func (p *Proxy) Blackhole(on bool) { p.locked(func() { p.faults.swallow = on }) }

// BlackholePubSub swallows everything from the server, pongs too, on connections on which a SUBSCRIBE was seen.
func (p *Proxy) BlackholePubSub(on bool) { p.locked(func() { p.faults.swallowSubscription = on }) }

// DropMessages swallows Pub/Sub messages. Confirmations and pongs pass, so the subscription looks healthy.
func (p *Proxy) DropMessages(on bool) { p.locked(func() { p.faults.dropMessages = on }) }

// Delay has replies and messages arrive that much later. To delay a command on its way there, see Hold.
func (p *Proxy) Delay(d time.Duration) { p.locked(func() { p.faults.delay = d }) }

// Heal takes back every fault and releases what is held.
func (p *Proxy) Heal() {
	var holds []*Held
	p.locked(func() {
		holds = p.holds
		p.faults, p.losses, p.holds = faults{}, nil, nil
	})
	for _, h := range holds {
		h.Release()
	}
}

// Held are commands that are kept from the server, see [Proxy.Hold], or whose replies are lost.
type Held struct {
	p        *Proxy
	match    func(command []string) bool
	left     int           // how many more; guarded by the proxy's mu, as is count
	count    int           // commands that came
	released chan struct{} // closed by Release, once; links wait for it
	once     sync.Once
}

// DropReplyTo has the next n replies to commands that match chooses lost: the command has run, but instead of its reply
// the client gets a closed connection (which makes go-redis send the command again). A command's first word comes in
// upper case, the rest as it was sent. match may run on several goroutines at once, and must not block.
func (p *Proxy) DropReplyTo(match func(command []string) bool, n int) { p.order(&p.losses, match, n) }

// Hold keeps the next n commands that match chooses (see DropReplyTo) on their way to the server until Release, and
// with them whatever follows on the same connections. Like a packet in a network, a held command arrives even if the
// client has given up and closed its connection meanwhile; only Cut loses it.
func (p *Proxy) Hold(match func(command []string) bool, n int) *Held {
	return p.order(&p.holds, match, n)
}

func (p *Proxy) order(list *[]*Held, match func(command []string) bool, n int) *Held {
	h := &Held{p: p, match: match, left: n, released: make(chan struct{})}
	p.locked(func() { *list = append(*list, h) })
	return h
}

// Count tells how many commands have been held.
func (h *Held) Count() (n int) { h.p.locked(func() { n = h.count }); return n }

// Release lets the held commands go, and holds no others.
func (h *Held) Release() {
	h.p.locked(func() { h.left = 0 })
	h.once.Do(func() { close(h.released) })
}

// take counts a command; false if it is one too many.
func (h *Held) take() (ok bool) {
	h.p.locked(func() {
		if ok = h.left > 0; ok {
			h.left--
			h.count++
		}
	})
	return ok
}

// taken gives the order of a list that chooses this command, if any does, which then has one less to choose.
func (p *Proxy) taken(list *[]*Held, command []string) *Held {
	var orders []*Held
	p.locked(func() { orders = slices.Clone(*list) })
	for _, h := range orders {
		if h.match(command) && h.take() {
			return h
		}
	}
	return nil
}

// Count tells how many commands of that name were sent on to the server; scripts on the controls are counted as
// CONTROL. Those that a script runs are not seen.
func (p *Proxy) Count(name string) int { return p.Commands()[strings.ToUpper(name)] }

// Commands gives the counts of all commands by name, in upper case.
func (p *Proxy) Commands() (counts map[string]int) {
	p.locked(func() { counts = maps.Clone(p.counts) })
	return counts
}

// pubsubCommands are answered by pushes, one per channel and not one per command.
var pubsubCommands = []string{"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"}

// message is how a message of Pub/Sub begins.
var message = regexp.MustCompile(`^>\d+\r\n\$\d+\r\n[ps]?message\r\n`)

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	p      *Proxy
	client net.Conn
	server net.Conn

	once sync.Once     // runs close
	gone chan struct{} // closed by close; ends whatever the goroutines wait for

	mu         sync.Mutex // guards what follows
	pending    [][]string // commands sent on and not answered yet, oldest first
	subscribed bool       // a SUBSCRIBE was seen
}

// close ends the link at once; what was on its way is lost.
func (l *link) close() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// up carries commands from the client to the server.
func (l *link) up() {
	// A client that goes does not take back what it has sent: the server still reads all of it before it sees the end, and
	// only then closes its side.
	defer func() { _ = l.server.(*net.TCPConn).CloseWrite() }()
	r := bufio.NewReader(l.client)
	for {
		raw, err := readValue(r)
		if err != nil {
			return
		}
		command, err := proto.ReadStrings(string(raw))
		if err != nil || len(command) == 0 { // no command
			return
		}
		command[0] = strings.ToUpper(command[0])
		var swallowed bool
		if l.p.locked(func() { swallowed = l.p.faults.swallow }); swallowed {
			continue
		}
		if h := l.p.taken(&l.p.holds, command); h != nil {
			select {
			case <-h.released:
			case <-l.gone:
				return
			}
		}
		l.sent(command)
		if _, err := l.server.Write(raw); err != nil {
			return
		}
	}
}

// IsControlRead tells whether a command, as its words, is a script on the controls or the format of package lock. Each
// Locker sends one now and then, whatever a test does.
func IsControlRead(command []string) bool {
	return len(command) > 3 && strings.HasPrefix(strings.ToUpper(command[0]), "EVAL") &&
		strings.Contains(command[3], ":{control}")
}

func (l *link) sent(command []string) {
	name := command[0]
	if IsControlRead(command) {
		name = "CONTROL"
	}
	l.p.locked(func() { l.p.counts[name]++ })
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(pubsubCommands, command[0]) {
		l.subscribed = true
	} else {
		l.pending = append(l.pending, command)
	}
}

// down carries replies and pushes from the server to the client, as far as the faults let them. An error of the client
// means that it is gone: what it has sent runs all the same, so the server is read to its end.
func (l *link) down() {
	defer l.close()
	r := bufio.NewReader(l.server)
	for {
		together := r.Buffered() > 0 // it came with the one before, and is late by as much already
		raw, err := readValue(r)
		if err != nil {
			return
		}
		command, subscribed := l.answered(raw[0] == '>')
		var faults faults
		l.p.locked(func() { faults = l.p.faults })
		if faults.swallow || faults.swallowSubscription && subscribed || faults.dropMessages && message.Match(raw) {
			continue
		}
		if faults.delay > 0 && !together {
			select {
			case <-time.After(faults.delay):
			case <-l.gone:
				return
			}
		}
		if command != nil && l.p.taken(&l.p.losses, command) != nil {
			return
		}
		_, _ = l.client.Write(raw)
	}
}

// answered gives the command that this is the reply to, or nil for a push, and whether the connection is one with
// subscriptions.
func (l *link) answered(isPush bool) (command []string, subscribed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isPush && len(l.pending) > 0 {
		command, l.pending = l.pending[0], l.pending[1:]
	}
	return command, l.subscribed
}

// readValue reads one whole value of the Redis protocol, of a type that clients and servers send.
func readValue(r *bufio.Reader) (raw []byte, err error) {
	if raw, err = r.ReadBytes('\n'); err != nil {
		return raw, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(raw[1:]))) // of a null -1
	elements := 0
	switch raw[0] {
	case '$', '!', '=':
		if n < 0 {
			return raw, nil
		}
		body := make([]byte, n+len("\r\n"))
		_, err = io.ReadFull(r, body)
		return append(raw, body...), err
	case '*', '~', '>':
		elements = n
	case '%':
		elements = 2 * n
	}
	for range elements {
		element, err := readValue(r)
		if raw = append(raw, element...); err != nil {
			return raw, err
		}
	}
	return raw, nil
}
