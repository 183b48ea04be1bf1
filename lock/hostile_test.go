package lock

import (
	"bufio"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// No text of a user is run or names a key. What the library sends is watched from
// both sides: by a hook, and by MONITOR, which shows also what scripts call and on
// which key.
func TestHostileTextsAreNeitherCodeNorKeys(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	seen := newWitness(rdb)
	lines := monitor(t, s)

	allowedKeys := map[string]bool{}
	for i, text := range anyText {
		if len(text) > 1000 {
			continue // MONITOR would show megabytes; FuzzScripts has them
		}
		w := words{owner: text, note: text, name: "name" + text, part: text, value: text}
		if i%2 == 0 {
			w.secret = "s"
		}
		for _, key := range w.walk(t, rdb) {
			allowedKeys[key] = true
		}
	}
	const ended = "the last command"
	redistest.Must(t, s.Client(t).Echo(t.Context(), ended).Err())
	keys := make([]string, 0, len(allowedKeys))
	for key := range allowedKeys {
		keys = append(keys, key)
	}
	if err := seen.verdict(keys); err != nil {
		t.Error(err)
	}
	for _, s := range wire.Scripts {
		if _, ran := seen.loaded[s.Name]; !ran && s != wire.SweepScript { // which takes no text
			t.Errorf("the script %s did not run", s.Name)
		}
	}

	inScripts := 0
	declared := "" // the key of the script that runs
	for line := come(t, lines, "what MONITOR shows"); !strings.Contains(line, ended); line = come(t, lines, "what MONITOR shows") {
		lua, args := monitored(t, line)
		switch {
		case !lua:
			declared = ""
			if name := strings.ToLower(args[0]); name == "eval" || name == "evalsha" {
				declared = args[3]
			}
		default:
			inScripts++
			switch name := strings.ToUpper(args[0]); {
			case name == "TIME":
			case name == "PUBLISH":
				if !regexp.MustCompile(`^automutex:([A-Za-z0-9_-]{16}|control)$`).MatchString(args[1]) {
					t.Errorf("a script publishes to %q", args[1])
				}
			case !slices.Contains(wire.Commands, name):
				t.Errorf("a script calls %q", args)
			case args[1] == declared+":none" && (name == "EXISTS" || name == "ZADD" && args[2] == "XX"): // changes nothing, see form
			case args[1] != declared:
				t.Errorf("a script that was given the key %q calls %.300q", declared, args)
			}
		}
		if t.Failed() {
			break
		}
	}
	if inScripts < 1000 {
		t.Errorf("MONITOR showed %d calls of scripts", inScripts)
	}
}

// monitor gives what MONITOR shows from now on, until the test ends.
func monitor(t *testing.T, s *redistest.Server) <-chan string {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	redistest.Must(t, err)
	// Room for all that one walk shows: Redis drops a monitor that does not read.
	lines, done := make(chan string, 100_000), make(chan struct{})
	go func() { // ends when the connection is closed, or nobody wants the lines any more
		defer close(done)
		for in := bufio.NewScanner(conn); in.Scan(); {
			select {
			case lines <- strings.TrimPrefix(in.Text(), "+"):
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	if answer := come(t, lines, "the answer to MONITOR"); answer != "OK" {
		t.Fatalf("MONITOR is answered %q", answer)
	}
	return lines
}

// monitored reads a line of MONITOR: whether a script called, and what.
func monitored(t *testing.T, line string) (lua bool, args []string) {
	t.Helper()
	m := regexp.MustCompile(`(?s)^\d+\.\d+ \[\d+ ([^\]]*)\] (.*)$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("MONITOR shows %q", line)
	}
	for rest := m[2]; rest != ""; rest = strings.TrimPrefix(rest, " ") {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			t.Fatal(fmt.Errorf("%q: %w", rest, err))
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatal(fmt.Errorf("%q: %w", quoted, err))
		}
		args, rest = append(args, text), rest[len(quoted):]
	}
	return m[1] == "lua", args
}
