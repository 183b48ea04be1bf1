package redistest

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Proxy stands between clients and one server and does what networks do. Every
// fault works on the connections that exist and on new ones. It understands the
// protocol: faults hit whole commands, replies and messages, never a part.
//
// It does not follow a connection on which MONITOR or CLIENT REPLY OFF was
// sent, and of a cluster it hides one node only.
type Proxy struct {
	target string
	ln     net.Listener
	ctx    context.Context // ends at close; dials to the target end with it
	cancel context.CancelFunc
	wg     sync.WaitGroup // the accepting goroutine and all of its links

	mu        sync.Mutex // guards what follows; not held during I/O, nor while a match function runs
	links     map[*link]struct{}
	faults    faults
	losses    []*Held
	holds     []*Held
	counts    map[string]int // commands that were sent on
	swallowed map[string]int // commands that were not, by Swallow
	dropped   int            // messages that were swallowed
}

// faults are those that are just on or off.
type faults struct {
	refuse       bool
	swallow      [2][2]bool // by Direction and Connections
	dropMessages bool
	delay        time.Duration
}

// Direction is where something goes that passes a [Proxy].
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// Connections are those of a kind that pass a [Proxy].
type Connections int

// The kinds of connections: one on which a SUBSCRIBE was seen counts among
// Subscriptions, from that SUBSCRIBE on, all others among Commands.
const (
	Commands Connections = iota
	Subscriptions
)

// NewProxy starts a proxy to the server at target (host:port). It ends with the
// test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("redistest: proxy: %v", err)
	}
	p := &Proxy{target: target, ln: ln, links: map[*link]struct{}{}, counts: map[string]int{}, swallowed: map[string]int{}}
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

// Client makes a new client that goes through the proxy, closed when the test
// ends.
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

// serve connects a client with the target and carries what they say.
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

// locked runs f with the lock.
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
func (p *Proxy) Blackhole(on bool) {
	p.locked(func() { p.faults.swallow = [2][2]bool{{on, on}, {on, on}} })
}

// Swallow has everything in one direction on one kind of connections vanish: commands that never arrive, or replies,
// messages and pongs to commands that have run. The connections stay open.
func (p *Proxy) Swallow(d Direction, c Connections, on bool) {
	p.locked(func() { p.faults.swallow[d][c] = on })
}

// BlackholePubSub swallows everything from the server, pongs too, on connections on which a SUBSCRIBE was seen.
func (p *Proxy) BlackholePubSub(on bool) { p.Swallow(ToClient, Subscriptions, on) }

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

// DropReplies has the next n replies lost: the command has run, but instead of its reply the client gets a closed
// connection (which makes go-redis send the command again). Replies to PING and to the commands that set up a connection
// do not count.
func (p *Proxy) DropReplies(n int) {
	p.DropReplyTo(func(command []string) bool {
		return !slices.Contains([]string{"HELLO", "AUTH", "SELECT", "CLIENT", "PING"}, command[0])
	}, n)
}

// DropReplyTo is DropReplies for the next n replies to commands that match chooses. A command's first word comes in upper
// case, the rest as it was sent. match may run on several goroutines at once, and must not block.
func (p *Proxy) DropReplyTo(match func(command []string) bool, n int) { p.order(&p.losses, match, n) }

// Hold keeps the next n commands that match chooses (see DropReplyTo) on their way to the server until Release, and with
// them whatever follows on the same connections. Like a packet in a network, a held command arrives even if the client has
// given up and closed its connection meanwhile; only Cut loses it.
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

// taken gives the order of a list that chooses this command, if any does, which then has one less to choose.
func (p *Proxy) taken(list *[]*Held, command []string) (taken *Held) {
	var orders []*Held
	p.locked(func() { orders = slices.Clone(*list) })
	for _, h := range orders {
		if !h.match(command) {
			continue
		}
		p.locked(func() {
			if h.left > 0 {
				h.left--
				h.count++
				taken = h
			}
		})
		if taken != nil {
			break
		}
	}
	return taken
}

// Count tells how many commands of that name were sent on to the server; scripts on the controls are counted as CONTROL.
// Those that a script runs are not seen.
func (p *Proxy) Count(name string) int { return p.Commands()[strings.ToUpper(name)] }

// Commands gives the counts of all commands by name, in upper case.
func (p *Proxy) Commands() (counts map[string]int) {
	p.locked(func() { counts = maps.Clone(p.counts) })
	return counts
}

// Swallowed tells how many commands of that name came and were not sent on, because of Swallow or Blackhole.
func (p *Proxy) Swallowed(name string) (n int) {
	p.locked(func() { n = p.swallowed[strings.ToUpper(name)] })
	return n
}

// DroppedMessages tells how many Pub/Sub messages were swallowed, by whatever fault. A test that publishes a message to
// have it lost waits for this before it ends the fault: the message may come after the reply to PUBLISH.
func (p *Proxy) DroppedMessages() (n int) { p.locked(func() { n = p.dropped }); return n }
