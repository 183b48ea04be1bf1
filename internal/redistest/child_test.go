package redistest

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// childEnv makes this test binary a child that counts: it sends a byte to the
// address in it every millisecond.
const childEnv = "REDISTEST_CHILD"

func childMain() {
	conn, err := net.Dial("tcp", os.Getenv(childEnv))
	if err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	ticker := time.NewTicker(time.Millisecond)
	for {
		select {
		case <-ended:
			_, _ = conn.Write([]byte("end"))
			return
		case <-ticker.C:
			_, _ = conn.Write([]byte("."))
		}
	}
}

// startCounting gives a child and what it sends. next gives the next byte, or
// "" when there is none within that time, or "EOF".
func startCounting(t *testing.T) (c *Child, next func(time.Duration) string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c = StartChild(t, childEnv+"="+ln.Addr().String())
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), ln.Close() })
	return c, func(within time.Duration) string {
		b := make([]byte, 1)
		_ = conn.SetReadDeadline(time.Now().Add(within))
		switch _, err := conn.Read(b); {
		case os.IsTimeout(err):
			return ""
		case err != nil:
			return "EOF"
		}
		return string(b)
	}
}

func TestChild(t *testing.T) {
	t.Parallel()
	c, next := startCounting(t)
	if got := next(within); got != "." {
		t.Fatalf("got %q of a child that runs", got)
	}
	c.Pause(t)
	for next(10*time.Millisecond) == "." { // what it sent before
	}
	if got := next(50 * time.Millisecond); got != "" {
		t.Errorf("got %q of a child that is paused", got)
	}
	c.Resume(t)
	if got := next(within); got != "." {
		t.Errorf("got %q of a child that was resumed", got)
	}
	c.Pause(t)
	c.Kill()
	c.Kill()
	var rest string
	for got := ""; got != "EOF" && len(rest) < 10_000; rest += got {
		got = next(within)
	}
	if !strings.HasSuffix(rest, "EOF") || strings.Contains(rest, "end") {
		t.Errorf("got %q of a child that was killed", rest)
	}

	c, next = startCounting(t)
	c.End(t, within)
	rest = ""
	for got := ""; got != "EOF" && len(rest) < 10_000; rest += got {
		got = next(within)
	}
	if !strings.HasSuffix(rest, "endEOF") {
		t.Errorf("got %q of a child that was to end", rest)
	}
}
