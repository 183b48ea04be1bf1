package redistest

import (
	"context"
	"errors"
	"maps"
	"net"
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

	mu       sync.Mutex // guards what follows; not held during I/O, nor while a match function runs
	links    map[*link]struct{}
	faults   faults
	losses   []*loss
	holds    []*Held
	counts   map[string]int
	messages int // sent on
	dropped  int // messages that were not

	swallowed map[string]int // commands, by Swallow
	wires     wires
}

// faults are those that are just on or off.
type faults struct {
	refuse       bool
	swallow      swallowing
	dropMessages bool
	delay        time.Duration
	throttle     int // bytes a second; 0: no limit
}

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
	p.wg.Add(1)
	go p.accept() // ends when close closes the listener
	t.Cleanup(p.close)
	return p
}

// close ends all connections and waits for all goroutines.
func (p *Proxy) close() {
	p.cancel()
	_ = p.ln.Close()
	p.Cut()
	p.wg.Wait()
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
	defer p.wg.Done()
	for {
		client, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.wg.Add(1)
		go p.serve(client) // ends with the connection, which Cut ends at the latest
	}
}

// serve connects a client with the target and carries what they say.
func (p *Proxy) serve(client net.Conn) {
	defer p.wg.Done()
	if p.now().refuse {
		_ = client.Close()
		return
	}
	var d net.Dialer
	server, err := d.DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := newLink(p, client, server)
	p.mu.Lock()
	p.links[l] = struct{}{}
	late := p.ctx.Err() != nil // close has called Cut already, or will find the link
	p.mu.Unlock()
	if late {
		l.close()
	}
	l.carry()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// now gives the faults as they are set.
func (p *Proxy) now() faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

func (p *Proxy) set(change func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.faults)
}

// Cut closes all connections. What was on its way is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	links := maps.Clone(p.links)
	p.mu.Unlock()
	for l := range links {
		l.close()
	}
}

// Refuse has new connections closed at once.
func (p *Proxy) Refuse(on bool) { p.set(func(f *faults) { f.refuse = on }) }

// Blackhole swallows everything in both directions. Connections stay open, and
// new ones are accepted.
func (p *Proxy) Blackhole(on bool) {
	p.set(func(f *faults) { f.swallow = swallowing{{on, on}, {on, on}} })
}

// BlackholePubSub swallows everything from the server, pongs too, on connections
// on which a SUBSCRIBE was seen. They stay open. It is short for a Swallow.
func (p *Proxy) BlackholePubSub(on bool) { p.Swallow(ToClient, Subscriptions, on) }

// DropMessages swallows Pub/Sub messages. Confirmations and pongs pass, so the
// subscription looks healthy.
func (p *Proxy) DropMessages(on bool) { p.set(func(f *faults) { f.dropMessages = on }) }

// Delay has every reply and message arrive that much later. It adds latency,
// not a limit on throughput. To delay a command on its way there, see Hold.
func (p *Proxy) Delay(d time.Duration) { p.set(func(f *faults) { f.delay = d }) }

// Heal takes back every fault and releases what is held.
func (p *Proxy) Heal() {
	p.mu.Lock()
	holds := p.holds
	p.faults, p.losses, p.holds = faults{}, nil, nil
	p.mu.Unlock()
	for _, h := range holds {
		h.Release()
	}
}

// Count tells how many commands of that name were sent on to the server; scripts on
// the controls are counted as CONTROL. Those
// that a script runs are not seen.
func (p *Proxy) Count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[strings.ToUpper(name)]
}

// Commands gives the counts of all commands by name, in upper case.
func (p *Proxy) Commands() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Messages tells how many Pub/Sub messages were sent on to clients.
func (p *Proxy) Messages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.messages
}

// DroppedMessages tells how many Pub/Sub messages were swallowed, by whatever
// fault. A test that publishes a message to have it lost waits for this before
// it ends the fault: the message may come after the reply to PUBLISH.
func (p *Proxy) DroppedMessages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

func (p *Proxy) countMessage(dropped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if dropped {
		p.dropped++
	} else {
		p.messages++
	}
}
