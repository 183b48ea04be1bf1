package simulate

import (
	"bytes"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// conn is a connection to Redis without any network beneath: a command is executed
// within Write unless it is delayed, and its reply is there for Read.
type conn struct {
	net.Conn // nil: nobody asks for what conn lacks
	end      *endpoint
	peer     *peer

	mu       sync.Mutex
	in       []byte // what was written, up to the last whole command
	out      []byte // what is to be read
	closed   bool   // by the client
	severed  bool   // by the network
	black    bool   // whatever is sent vanishes
	setUp    bool   // the first reply has come, which is that of the set-up
	deadline time.Time
	wake     chan struct{} // Read looks again; buffered, so that nobody waits to send
	// arrives and returns are when the latest command reaches Redis, and its reply
	// the client: later ones come later.
	arrives, returns time.Time
}

func (c *conn) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Read is part of net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, deadline, err := c.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		var over <-chan time.Time
		if !deadline.IsZero() {
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-c.wake:
		case <-over:
		}
	}
}

// take reads what there is.
func (c *conn) take(p []byte) (n int, deadline time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, c.deadline, net.ErrClosed
	case len(c.out) > 0:
		n = copy(p, c.out)
		c.out = c.out[n:]
		return n, c.deadline, nil
	case c.severed:
		return 0, c.deadline, io.EOF
	case !c.deadline.IsZero() && time.Until(c.deadline) <= 0:
		return 0, c.deadline, os.ErrDeadlineExceeded
	}
	return 0, c.deadline, nil
}

// Write is part of net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.closed || c.severed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.in = append(c.in, p...)
	var commands [][]string
	for {
		command, n := parseCommand(c.in)
		if command == nil {
			break
		}
		commands = append(commands, command)
		c.in = c.in[n:]
	}
	c.mu.Unlock()
	for _, command := range commands {
		c.send(command)
	}
	return len(p), nil
}

// tcpGivesUp is after how long a kernel breaks a connection on which nothing is acknowledged:
// Linux, with what it has set, after 924 s.
const tcpGivesUp = 924 * time.Second

// send carries a command to its fate.
func (c *conn) send(command []string) {
	command[0] = strings.ToUpper(command[0])
	c.end.redis.spins(strings.HasPrefix(command[0], "EVAL"))
	fate, lasts, broken := c.end.fate(command)
	for _, b := range broken {
		b.sever()
	}
	c.mu.Lock()
	if c.black || c.severed {
		c.mu.Unlock()
		return
	}
	now := time.Now()
	arrives := now
	if !isSetup(command[0]) {
		arrives = now.Add(c.end.latency())
	}
	for _, until := range []time.Time{c.end.redis.frozenUntil(), c.end.suspendedUntil()} {
		if arrives.Before(until) {
			arrives = until
		}
	}
	if !arrives.After(c.arrives) && arrives.After(now) {
		arrives = c.arrives.Add(1)
	}
	if fate == hung || fate == swallowed || fate == late {
		if !c.black {
			time.AfterFunc(tcpGivesUp, c.sever) // after the world's end it finds nobody
		}
		c.black = true
	}
	inTurn := !c.arrives.After(now)
	if fate == late {
		arrives = now.Add(lasts)
	} else {
		c.arrives = arrives
	}
	c.mu.Unlock()
	act := func() { c.arrive(command, fate) }
	if arrives.After(now) || !inTurn && fate != late {
		time.AfterFunc(max(arrives.Sub(now), 1), act)
		return
	}
	act()
}

// arrive is when the command reaches Redis.
func (c *conn) arrive(command []string, fate faultKind) {
	switch fate {
	case hung:
	case cut, apart:
		c.sever()
	case replyLost:
		c.mu.Lock()
		c.black = true
		c.mu.Unlock()
		c.peer.execute(command, true)
		c.sever()
	case swallowed, late:
		c.end.redis.faulted()
		c.peer.execute(command, true)
	case setup:
		if isSetup(command[0]) {
			c.deliver([]byte("-WRONGPASS invalid username-password pair or user is disabled.\r\n"))
			return
		}
		c.sever()
	case "":
		c.peer.execute(command, false)
	default:
		c.deliver([]byte("-" + replies[fate] + "\r\n"))
	}
}

func isError(data []byte) bool { return bytes.HasPrefix(data, []byte("-")) }

// deliver brings what Redis says to the client.
func (c *conn) deliver(data []byte) {
	suspended := c.end.suspendedUntil()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.black || c.severed || c.closed {
		return
	}
	delay := time.Duration(0)
	if c.setUp {
		c.mu.Unlock()
		delay = max(c.end.latency(), time.Until(suspended)) // takes the endpoint's mutex
		c.mu.Lock()
	} else {
		c.setUp = !isError(data)
	}
	now := time.Now()
	at := now.Add(delay)
	if at.Before(c.returns) {
		at = c.returns.Add(1)
	}
	data = bytes.Clone(data)
	read := func() {
		c.out = append(c.out, data...)
		c.look()
	}
	if !at.After(now) {
		read()
		return
	}
	c.returns = at
	time.AfterFunc(at.Sub(now), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.black && !c.severed {
			read()
		}
	})
}

// sever breaks the connection, as the client finds out when it next uses it.
func (c *conn) sever() { c.ends(&c.severed) }

// Close is part of net.Conn.
func (c *conn) Close() error {
	c.ends(&c.closed)
	return nil
}

func (c *conn) ends(how *bool) {
	c.mu.Lock()
	was := c.severed || c.closed
	*how = true
	c.mu.Unlock()
	c.look()
	if !was {
		c.end.forget(c)
	}
}

// SetDeadline is part of net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline is part of net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	c.look()
	return nil
}

// SetWriteDeadline is part of net.Conn: nothing ever waits to be written.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// parseCommand takes the first whole command off b, and says how long it is; nil:
// there is none yet.
func parseCommand(b []byte) (command []string, length int) {
	at := 0
	number := func() int { // after a sign, in a line; -1: it is not there yet
		end := bytes.Index(b[at:], []byte("\r\n"))
		if end < 0 {
			return -1
		}
		n, err := strconv.Atoi(string(b[at+1 : at+end]))
		if err != nil {
			panic("simulate: not a command: " + string(b))
		}
		at += end + 2
		return n
	}
	for words := number(); len(command) < words; {
		n := number()
		if n < 0 || at+n+2 > len(b) {
			return nil, 0
		}
		command = append(command, string(b[at:at+n]))
		at += n + 2
	}
	return command, at
}
