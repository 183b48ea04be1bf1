// The driver plays two versions of automutex against each other on one Redis: go run driver.go OLDER NEWER,
// the programs made of player.go. With one stored format every operation has to work between them, in both
// directions; with two, whoever comes second has to refuse in words.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

type call struct {
	ID, Op, Name string
	Ms, N        int
	Text         string
}

type answer struct {
	ID, Error   string
	Busy, Twice bool
	N           int64
	Text        string
}

// process is a running player.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu      sync.Mutex // guards what follows
	calls   int
	answers map[string]chan answer
}

var (
	failures int
	failMu   sync.Mutex
)

func failf(format string, args ...any) {
	failMu.Lock()
	defer failMu.Unlock()
	failures++
	fmt.Printf("FAIL "+format+"\n", args...)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func start(name, program, addr string) *process {
	p := &process{name: name, cmd: exec.Command(program, addr), answers: map[string]chan answer{}}
	p.cmd.Stderr = io.Discard
	if os.Getenv("FLEET_LOG") != "" {
		p.cmd.Stderr = os.Stderr
	}
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	must(err)
	out, err := p.cmd.StdoutPipe()
	must(err)
	must(p.cmd.Start())
	go func() { // ends with the player
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var a answer
			must(json.Unmarshal(lines.Bytes(), &a))
			p.mu.Lock()
			got := p.answers[a.ID]
			delete(p.answers, a.ID)
			p.mu.Unlock()
			got <- a
		}
	}()
	return p
}

func (p *process) stop() {
	_ = p.stdin.Close()
	_ = p.cmd.Wait()
}

// begin sends a call; the channel has its answer.
func (p *process) begin(c call) <-chan answer {
	got := make(chan answer, 1)
	p.mu.Lock()
	p.calls++
	c.ID = strconv.Itoa(p.calls)
	p.answers[c.ID] = got
	text, err := json.Marshal(c)
	must(err)
	_, err = fmt.Fprintf(p.stdin, "%s\n", text)
	p.mu.Unlock()
	must(err)
	return got
}

func (p *process) finish(got <-chan answer, what string) answer {
	select {
	case a := <-got:
		return a
	case <-time.After(time.Minute):
		failf("%s: %s has no answer within a minute", p.name, what)
		return answer{Error: "no answer"}
	}
}

func (p *process) call(op, name string, more ...any) answer {
	c := call{Op: op, Name: name}
	for _, m := range more {
		switch m := m.(type) {
		case time.Duration:
			c.Ms = int(m.Milliseconds())
		case int:
			c.N = m
		case string:
			c.Text = m
		}
	}
	return p.finish(p.begin(c), op+" "+name)
}

func (p *process) ok(op, name string, more ...any) answer {
	a := p.call(op, name, more...)
	if a.Error != "" {
		failf("%s: %s %s: %s", p.name, op, name, a.Error)
	}
	return a
}

func (p *process) busy(op, name string) {
	if a := p.call(op, name); !a.Busy {
		failf("%s: %s %s: %q, want busy", p.name, op, name, a.Error)
	}
}

func (p *process) sees(op, name string, want int64) {
	if a := p.ok(op, name); a.N != want {
		failf("%s: %s of %s: %d, want %d", p.name, op, name, a.N, want)
	}
}

func eventually(what string, within time.Duration, done func() bool) {
	for end := time.Now().Add(within); !done(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			failf("not within %s: %s", within, what)
			return
		}
	}
}

// locks plays package lock: a is the first to come, b the second.
func locks(a, b *process, to string) {
	m := "m" + to
	a.ok("try", m)
	b.busy("try", m)
	b.sees("holders", m, 1)
	waits := b.begin(call{Op: "lock", Name: m}) // widens a's string
	eventually(b.name+" in line", 10*time.Second, func() bool { return a.call("waiting", m).N == 1 })
	a.ok("extend", m, 5*time.Second)
	<-time.After(1500 * time.Millisecond) // more than a third of the TTL: a has renewed what b has widened
	a.ok("held", m)
	a.ok("unlock", m)
	if got := b.finish(waits, "lock"); got.Error != "" {
		failf("%s: granted by %s: %s", b.name, a.name, got.Error)
	}
	a.busy("try", m)
	b.ok("unlock", m)

	sem := "sem" + to
	a.ok("try", sem)
	b.sees("available", sem, 1)
	b.ok("try", sem)
	a.busy("try", sem)
	third := a.begin(call{Op: "lock", Name: sem})
	eventually(a.name+" in line", 10*time.Second, func() bool { return b.call("waiting", sem).N == 1 })
	b.ok("unlock", sem)
	a.finish(third, "lock")
	b.busy("try", sem)
	b.sees("break", sem, 2)
	b.ok("try", sem)
	b.ok("unlock", sem)

	cool := "cool" + to
	a.ok("try", cool)
	a.ok("cooldown", cool, 2*time.Second) // which releases it
	b.busy("try", cool)
	b.ok("lock", cool)
	b.ok("unlock", cool)

	rate := "rate" + to
	a.ok("try", rate)
	a.ok("unlock", rate)
	b.busy("try", rate)
	b.ok("lock", rate)
	b.ok("unlock", rate)

	paused := "paused" + to
	a.ok("pause", paused)
	eventually(b.name+" obeys the pause", 5*time.Second, func() bool {
		got := b.call("try", paused)
		if got.Error == "" {
			b.call("unlock", paused)
		}
		return got.Busy
	})
	b.ok("resume", paused)
	eventually(a.name+" obeys the resume", 5*time.Second, func() bool { return a.call("try", paused).Error == "" })
	b.ok("limit", paused, 2)
	eventually(b.name+" obeys the limit", 5*time.Second, func() bool { return b.call("try", paused).Error == "" })
	a.ok("clear", paused)
	a.ok("unlock", paused)
	b.ok("unlock", paused)

	pool := "pool" + to
	a.ok("put", pool, "value 1|~%")
	if got := b.ok("take", pool); got.Text != "value 1|~%" {
		failf("%s takes %q out of the pool", b.name, got.Text)
	}
	takes := a.begin(call{Op: "take", Name: pool})
	<-time.After(300 * time.Millisecond)
	b.ok("unlock", pool)
	if got := a.finish(takes, "take"); got.Text != "value 1|~%" {
		failf("%s takes %q, %s", a.name, got.Text, got.Error)
	}
	a.ok("unlock", pool)
	b.ok("empty", pool)

	for _, task := range []string{"done", "window", "once"} {
		a.ok("unique", task, to)
		if got := b.call("unique", task, to); !got.Twice {
			failf("%s: a second %s task: %q, want a duplicate", b.name, task, got.Error)
		}
	}
}

// tasks has both work on the same tasks, with each policy.
func tasks(a, b *process) {
	types := []string{"park", "wait", "retry", "two", "rate", "skip"}
	for i := range 40 {
		for _, task := range types {
			[]*process{a, b}[i%2].ok("enqueue", task, fmt.Sprint("k", i%3))
		}
	}
	a.ok("serve", "")
	b.ok("serve", "")
	for range 60 { // claims, dropped by whoever runs the task
		a.call("unique", "once", "again")
		b.call("unique", "once", "again")
		<-time.After(10 * time.Millisecond)
	}
	var left answer
	eventually("all tasks done", 2*time.Minute, func() bool {
		left = a.call("left", "")
		return left.N <= 4 // "done" and "window", for which there is no handler
	})
	if left.N > 4 {
		failf("tasks are left: %s", left.Text)
	}
	a.ok("stop", "")
	b.ok("stop", "")
	a.sees("count", "overlaps", 0)
	for _, task := range types[:5] {
		a.sees("count", "runs:"+task, 40)
	}
	if n := a.ok("count", "runs:once").N; n < 3 {
		failf("%d tasks ran that were enqueued once", n)
	}
}

// refused plays two formats: b comes second.
func refused(a, b *process) {
	a.ok("try", "first")
	for _, op := range []string{"try", "lock"} {
		got := b.call(op, "second")
		if got.Busy || !strings.Contains(got.Error, "format") || !strings.Contains(got.Error, "VERSIONING.md") {
			failf("%s: %s beside another format: %q, want an error that names the formats", b.name, op, got.Error)
		}
	}
	b.ok("enqueue", "park", "k")
	b.ok("serve", "")
	<-time.After(2 * time.Second)
	b.sees("count", "runs:park", 0)
	if left := b.ok("left", ""); left.N != 1 || !strings.Contains(left.Text, "0 archived") {
		failf("%s: its task is %s", b.name, left.Text)
	}
	b.ok("stop", "")
	a.ok("held", "first")
	a.ok("unlock", "first")
}

func main() {
	older, newer := os.Args[1], os.Args[2]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	addr := listener.Addr().String()
	must(listener.Close())
	_, port, _ := net.SplitHostPort(addr)
	server := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	must(server.Start())
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	eventually("Redis", 10*time.Second, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})

	formats := map[string]string{}
	for name, program := range map[string]string{"older": older, "newer": newer} {
		p := start(name, program, addr)
		p.ok("try", "any")
		p.ok("unlock", "any")
		formats[name] = p.ok("format", "").Text
		p.ok("forget", "")
		p.stop()
	}
	fmt.Printf("stored formats: older %q, newer %q\n", formats["older"], formats["newer"])
	if formats["newer"] == "" {
		failf("the newer version does not say its format")
	}
	same := formats["older"] == formats["newer"]
	for _, first := range []string{"older", "newer"} {
		programs := map[string]string{"older": older, "newer": newer}
		second := map[string]string{"older": "newer", "newer": "older"}[first]
		a := start(first, programs[first], addr)
		a.ok("forget", "")
		b := start(second, programs[second], addr)
		switch {
		case !same && formats[second] == "":
			fmt.Printf("%s comes second and knows no formats: nothing to play\n", second)
		case !same:
			fmt.Printf("%s comes second, and has to refuse\n", second)
			refused(a, b)
		default:
			fmt.Printf("%s comes first\n", first)
			locks(a, b, "1")
			tasks(a, b)
		}
		a.stop()
		b.stop()
	}
	if same {
		// So that the refusal is played with each version, too.
		fmt.Println("another format is there already")
		p := start("newer", newer, addr)
		p.ok("forget", "")
		p.ok("set", "automutex:{control}:format", "999999")
		q := start("older", older, addr)
		for _, player := range []*process{p, q} {
			if got := player.call("try", "m"); !strings.Contains(got.Error, "999999") {
				failf("%s beside format 999999: %q", player.name, got.Error)
			}
		}
		p.stop()
		q.stop()
	}
	if failures > 0 {
		fmt.Printf("0 passed, %d failed\n", failures)
		_ = server.Process.Kill()
		os.Exit(1)
	}
	fmt.Println("the two versions work together as VERSIONING.md says")
}
