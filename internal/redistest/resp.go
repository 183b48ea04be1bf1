package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

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
func readFrame(r *bufio.Reader) (frame, error) {
	var f frame
	err := f.read(r, 0)
	return f, err
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

func (f *frame) read(r *bufio.Reader, depth int) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	f.raw = append(f.raw, line...)
	head := strings.TrimRight(string(line), "\r\n")
	if head == "" {
		return errors.New("redistest: protocol: empty line")
	}
	kind, head := head[0], head[1:]
	if depth == 0 {
		f.kind = kind
	}
	switch kind {
	case '+', '-', ':', '_', '#', ',', '(':
		f.item(depth, head)
		return nil
	case '$', '!', '=':
		n, err := length(head)
		if n < 0 || err != nil {
			f.item(depth, "")
			return err
		}
		start := len(f.raw)
		f.raw = append(f.raw, make([]byte, n+2)...)
		if _, err := io.ReadFull(r, f.raw[start:]); err != nil {
			return err
		}
		f.item(depth, string(f.raw[start:start+n]))
		return nil
	case '*', '~', '>', '%', '|':
		n, err := length(head)
		if err != nil {
			return err
		}
		below := depth + 1
		if kind == '%' || kind == '|' {
			n *= 2
		}
		if kind == '|' {
			below++ // what an attribute says is not an element
		} else if depth > 0 {
			f.item(depth, "")
		}
		for range n {
			if err := f.read(r, below); err != nil {
				return err
			}
		}
		if kind == '|' {
			return f.read(r, depth) // and the value that it belongs to
		}
		return nil
	}
	return fmt.Errorf("redistest: protocol: unknown type %q", kind)
}

// item keeps the strings of the outermost value and of its elements.
func (f *frame) item(depth int, text string) {
	if depth <= 1 {
		f.items = append(f.items, text)
	}
}

// length reads the count of a bulk string or an array; -1 is null.
func length(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < -1 {
		return 0, fmt.Errorf("redistest: protocol: bad length %q", s)
	}
	return n, nil
}

// ask sends one command on a connection of its own. It gives the text of a
// string, and any other value as it was read.
func ask(addr string, command ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", fmt.Errorf("redistest: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", fmt.Errorf("redistest: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return "", fmt.Errorf("redistest: %w", err)
	}
	f, err := readFrame(bufio.NewReader(conn))
	switch {
	case err != nil:
		return "", fmt.Errorf("redistest: %s on %s: %w", command[0], addr, err)
	case f.kind == '-':
		return "", fmt.Errorf("redistest: %s on %s: %s", strings.Join(command, " "), addr, f.items[0])
	case f.kind == '+' || f.kind == '$':
		return f.items[0], nil
	}
	return string(f.raw), nil
}
