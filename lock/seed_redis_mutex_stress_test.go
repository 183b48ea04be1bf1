package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// The stress test: several processes, 1,000 locked sections each, on one lock.
const (
	stressEnv       = "AUTOMUTEX_TEST_STRESS" // "<redis address> <lock name> <sections>"
	stressProcesses = 4
	stressSections  = 4000 // of all processes
)

// stressMain is one process of the stress test. It says "ready", waits for a
// line, runs its sections and prints what went wrong, a line each. A section
// is two reads and two writes that would go wrong if anybody else were in one.
func stressMain() {
	words := strings.Fields(os.Getenv(stressEnv))
	name := words[1]
	sections, err := strconv.Atoi(words[2])
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*soon)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: words[0]})
	l := New(rdb, Options{Owner: strconv.Itoa(os.Getpid())})
	m := l.Mutex(name, TTL(5*time.Second), Fenced())
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return // the parent has gone
	}
	section := func(ctx context.Context) error {
		if n := rdb.Incr(ctx, name+":inside").Val(); n != 1 {
			fmt.Println(n, "are inside at once")
		}
		n, err := rdb.Get(ctx, name+":sections").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		lease, _ := FromContext(ctx)
		fence, err := lease.Fence()
		if err != nil {
			return err
		}
		if err := rdb.RPush(ctx, name+":fences", fmt.Sprint(fence, " ", os.Getpid())).Err(); err != nil {
			return err
		}
		if err := rdb.Set(ctx, name+":sections", n+1, 0).Err(); err != nil {
			return err
		}
		return rdb.Decr(ctx, name+":inside").Err()
	}
	for range sections {
		if err := m.Do(ctx, section); err != nil {
			fmt.Println("a section failed:", err)
		}
	}
	_ = l.Close()
}

func TestSeedRedisMutex_Stress(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	t.Run("four processes run 1,000 sections each with no overlap and none failed", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		rdb := raw(m)
		type process struct {
			in  io.Writer
			out *bufio.Scanner
			cmd *exec.Cmd
		}
		var all []process
		for range stressProcesses {
			p := process{cmd: exec.Command(os.Args[0])}
			p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", stressEnv, s.Addr(), m.name, stressSections/stressProcesses))
			p.cmd.Stderr = os.Stderr
			in, err := p.cmd.StdinPipe()
			redistest.Must(t, err)
			out, err := p.cmd.StdoutPipe()
			redistest.Must(t, err)
			redistest.Must(t, p.cmd.Start())
			t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
			p.in, p.out = in, bufio.NewScanner(out)
			all = append(all, p)
		}
		for _, p := range all {
			if !p.out.Scan() {
				t.Fatalf("a process ended: %v", p.out.Err())
			}
		}
		began := time.Now()
		for _, p := range all {
			if _, err := p.in.Write([]byte("go\n")); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range all {
			for p.out.Scan() {
				t.Errorf("process %d: %s", p.cmd.Process.Pid, p.out.Text())
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("process %d: %v", p.cmd.Process.Pid, err)
			}
		}
		took := time.Since(began)
		if n, err := rdb.Get(t.Context(), m.name+":sections").Int(); n != stressSections || err != nil {
			t.Errorf("%d sections were counted, %v; want %d", n, err, stressSections)
		}
		fences, err := rdb.LRange(t.Context(), m.name+":fences", 0, -1).Result()
		if err != nil || len(fences) != stressSections {
			t.Errorf("%d fences, %v; want %d", len(fences), err, stressSections)
		}
		turns, last, before := 0, int64(0), ""
		for _, line := range fences {
			text, process, _ := strings.Cut(line, " ")
			fence, err := strconv.ParseInt(text, 10, 64)
			if err != nil || fence <= last {
				t.Fatalf("fence %s follows %d", text, last)
			}
			if last = fence; process != before {
				turns++
			}
			before = process
		}
		if turns < stressSections/4 {
			t.Errorf("the processes took turns %d times only: they hardly competed", turns)
		}
		t.Logf("%d sections of %d processes in %s, %d turns", len(fences), stressProcesses, took.Round(time.Millisecond), turns)
		free(t, m, soon)
	})
}
