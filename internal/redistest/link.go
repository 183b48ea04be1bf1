package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pubsubCommands are answered by pushes, one per channel and not one per
// command; messagePushes are those that carry what was published.
var (
	pubsubCommands = []string{"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"}
	messagePushes  = []string{"message", "pmessage", "smessage"}
)

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	p      *Proxy
	client net.Conn
	server net.Conn

	once sync.Once     // runs close
	gone chan struct{} // closed by close; ends whatever the goroutines wait for

	mu      sync.Mutex // guards pending and kind
	pending [][]string // commands sent on and not answered yet, oldest first
	kind    Connections
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
			if h := l.p.taken(&l.p.holds, f.items); h != nil {
				select {
				case <-h.released:
				case <-l.gone:
					return
				}
			}
			l.sent(f.items)
		}
		if _, err := l.server.Write(f.raw); err != nil {
			return
		}
	}
}

// swallows tells whether a command vanishes on its way to the server.
func (l *link) swallows(command []string) bool {
	l.mu.Lock()
	if slices.Contains(pubsubCommands, command[0]) {
		l.kind = Subscriptions
	}
	kind := l.kind
	l.mu.Unlock()
	swallowed := false
	l.p.locked(func() {
		if swallowed = l.p.faults.swallow[ToServer][kind]; swallowed {
			l.p.swallowed[command[0]]++
		}
	})
	return swallowed
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
	l.p.locked(func() { l.p.counts[name]++ })
	if !slices.Contains(pubsubCommands, command[0]) {
		l.mu.Lock()
		l.pending = append(l.pending, command)
		l.mu.Unlock()
	}
}

// down carries replies and pushes from the server to the client, as far as the faults let them. An error of the client
// means that it is gone: what it has sent runs all the same, so the server is read to its end.
func (l *link) down() {
	defer l.close()
	r := bufio.NewReader(l.server)
	for {
		together := r.Buffered() > 0 // it came with the one before, and is late by as much already
		f, err := readFrame(r)
		if err != nil {
			return
		}
		command, kind := l.answered(f)
		message := command == nil && len(f.items) > 0 && slices.Contains(messagePushes, f.items[0])
		var swallowed bool
		var delay time.Duration
		l.p.locked(func() {
			swallowed, delay = l.p.faults.swallow[ToClient][kind] || l.p.faults.dropMessages && message, l.p.faults.delay
			if swallowed && message {
				l.p.dropped++
			}
		})
		if swallowed {
			continue
		}
		if delay > 0 && !together {
			select {
			case <-time.After(delay):
			case <-l.gone:
				return
			}
		}
		if command != nil && l.p.taken(&l.p.losses, command) != nil {
			return
		}
		_, _ = l.client.Write(f.raw)
	}
}

// answered gives the command that f is the reply to, or nil for a push. RESP3 has a type for pushes;
// in RESP2 one is an array that begins with a known word.
func (l *link) answered(f frame) (command []string, kind Connections) {
	l.mu.Lock()
	defer l.mu.Unlock()
	push := f.kind == '>' || l.kind == Subscriptions && f.kind == '*' && len(f.items) > 0 &&
		(slices.Contains(messagePushes, f.items[0]) || slices.Contains(pubsubCommands, strings.ToUpper(f.items[0])))
	if !push && len(l.pending) > 0 {
		command, l.pending = l.pending[0], l.pending[1:]
	}
	return command, l.kind
}

// frame is one whole value of the Redis protocol, RESP2 or RESP3, as it was
// read.
type frame struct {
	raw  []byte
	kind byte // its type: '+', '-', ':', '$', '*', '>' ...
	// items holds the strings in it: of a command its words, of an array or a
	// push its own elements without those nested deeper, of a scalar its text.
	items []string
}

// readFrame reads one value. It knows all types that servers send; the streamed
// ones, which none sends, are an error.
func readFrame(r *bufio.Reader) (f frame, err error) {
	if f.raw, err = r.ReadBytes('\n'); err != nil {
		return f, err
	}
	text := strings.TrimRight(string(f.raw), "\r\n")
	if text == "" {
		return f, errors.New("redistest: protocol: empty line")
	}
	f.kind, text = text[0], text[1:]
	if strings.IndexByte("+-:_#,(", f.kind) >= 0 {
		f.items = []string{text}
		return f, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 || strings.IndexByte("$!=*~>%|", f.kind) < 0 {
		return f, fmt.Errorf("redistest: protocol: %q", f.raw)
	}
	switch f.kind {
	case '$', '!', '=':
		if n < 0 { // null
			f.items = []string{""}
			return f, nil
		}
		body := make([]byte, n+2)
		_, err = io.ReadFull(r, body)
		f.raw, f.items = append(f.raw, body...), []string{string(body[:n])}
		return f, err
	case '%', '|':
		n *= 2
	}
	for range n {
		element, err := readFrame(r)
		if f.raw = append(f.raw, element.raw...); err != nil {
			return f, err
		}
		item := ""
		if strings.IndexByte("*~>%", element.kind) < 0 {
			item = element.items[0]
		}
		f.items = append(f.items, item)
	}
	if f.kind == '|' { // an attribute, of the value behind it
		value, err := readFrame(r)
		value.raw = append(f.raw, value.raw...)
		return value, err
	}
	return f, nil
}

// readCommand reads one command, which is an array of bulk strings or, typed by
// hand, a line of words.
func readCommand(r *bufio.Reader) (frame, error) {
	first, err := r.Peek(1)
	if err != nil {
		return frame{}, err
	}
	if first[0] == '*' {
		return readFrame(r)
	}
	line, err := r.ReadBytes('\n')
	return frame{raw: line, items: strings.Fields(string(line))}, err
}

// ask sends one command on a connection of its own. It gives the text of a string, and of a number.
func ask(addr string, command ...string) (string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: 2 * time.Second, Protocol: 2, DisableIdentity: true})
	defer func() { _ = rdb.Close() }()
	args := make([]any, len(command))
	for i, word := range command {
		args[i] = word
	}
	text, err := rdb.Do(context.Background(), args...).Text()
	if err != nil {
		err = fmt.Errorf("redistest: %s on %s: %w", strings.Join(command, " "), addr, err)
	}
	return text, err
}
