package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"
)

// What is measured runs in processes of its own: this program starts itself
// again with a job in the environment. So every figure comes from a fresh heap,
// several processes are no special case, and one can be killed.
const jobEnv = "AUTOMUTEX_BENCH_JOB"

// job is what a worker process is told to do.
type job struct {
	Do        string // a name in duties
	Contender string // by its full name; what it means is up to the duty
	Conf      conf
	Key       string
	N         int // goroutines, tasks, waiters: as the duty says
	Time      time.Duration
	Load      string
	Profile   string // a file for a CPU profile; empty: none
}

// line is what a worker writes to its standard output, as JSON, one a line.
type line struct {
	Ready  bool            `json:",omitempty"`
	Result json.RawMessage `json:",omitempty"`
	Err    string          `json:",omitempty"`
}

// must ends the cell if a step of it fails: it panics, and caught returns the error. get is must for a
// step with a value. Neither is for goroutines beside.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

// caught runs fn, and returns the error of the step that failed.
func caught(fn func()) (err error) {
	defer func() {
		if failed, ok := recover().(error); ok {
			err = failed
			if bug := runtime.Error(nil); errors.As(failed, &bug) {
				panic(failed)
			}
		}
	}()
	fn()
	return nil
}

// worker is a worker process, seen from the program that started it.
type worker struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *json.Decoder
	ended bool
}

// hire starts a worker and waits until it is ready to begin.
func (b *bench) hire(ctx context.Context, j job) *worker {
	b.hired++
	if b.profiles != "" && j.Do != "hold" && j.Do != "succeed" { // those are killed, and leave none
		name := strings.NewReplacer(" ", "-", ",", "-", "/", "-").Replace(fmt.Sprintf("%s_%s_%d", b.cell, j.Do, b.hired))
		j.Profile = filepath.Join(b.profiles, name+".pprof")
	}
	cmd := exec.CommandContext(ctx, b.self)
	cmd.Env = append(os.Environ(), jobEnv+"="+string(get(json.Marshal(j))))
	cmd.Stderr = b.stderr
	cmd.WaitDelay = time.Second
	in, out := get(cmd.StdinPipe()), get(cmd.StdoutPipe())
	must(cmd.Start())
	w := &worker{cmd: cmd, in: in, lines: json.NewDecoder(out)}
	w.next() // it is ready
	return w
}

// begin lets the worker go on from where it said that it is ready.
func (w *worker) begin() { get(io.WriteString(w.in, "go\n")) }

// result waits for what the worker has to tell.
func (w *worker) result(value any) { must(json.Unmarshal(w.next().Result, value)) }

func (w *worker) next() (l line) {
	err := w.lines.Decode(&l)
	switch {
	case err != nil:
		err = fmt.Errorf("bench: a worker ended early: %w", err)
	case l.Err != "":
		err = errors.New(l.Err)
	}
	if err != nil {
		w.kill()
		panic(err)
	}
	return l
}

// kill ends the worker at once, as an out-of-memory killer would.
func (w *worker) kill() {
	w.ended = true
	_ = w.cmd.Process.Kill() // unless it has ended
	_ = w.cmd.Wait()         // says that it was killed
}

// dismiss ends the worker, which closes what it has. Without effect when it has
// ended.
func (w *worker) dismiss() {
	if w.ended {
		return
	}
	w.ended = true
	_ = w.in.Close() // that is what it waits for
	late := time.AfterFunc(20*time.Second, func() { _ = w.cmd.Process.Kill() })
	defer late.Stop()
	if err := w.cmd.Wait(); err != nil {
		panic(fmt.Errorf("bench: a worker: %w", err))
	}
}

// mate is the worker's own side.
type mate struct {
	job
	in      <-chan string // the lines that came in; closed at their end
	out     *json.Encoder
	staying atomic.Bool // it waits for that end
}

// orphaned is how long a worker goes on that is neither told anything any more nor
// waits for being dismissed: the program that started it has died, or given up.
const orphaned = 2 * time.Second

// listen reads what comes in. Its goroutine ends with the input, and has the
// process end then, unless that does so by itself.
func (m *mate) listen(in io.Reader) {
	lines := make(chan string)
	m.in = lines
	go func() {
		for r := bufio.NewScanner(in); r.Scan(); {
			lines <- r.Text()
		}
		close(lines)
		time.Sleep(orphaned)
		if !m.staying.Load() {
			os.Exit(1)
		}
	}()
}

// duties are what workers can do.
var duties = map[string]func(context.Context, *mate){
	"pairs":   pairsDuty,
	"turns":   turnsDuty,
	"drain":   drainDuty,
	"hold":    holdDuty,
	"succeed": succeedDuty,
	"tasks":   tasksDuty,
	"rates":   ratesDuty,
	"grow":    growDuty,
	"leases":  leasesDuty,
	"order":   orderDuty,
	"blocked": blockedDuty,
	"enqueue": enqueueDuty,
}

// work is main for a worker process.
func work(spec string, in io.Reader, out io.Writer) int {
	m := &mate{out: json.NewEncoder(out)}
	m.listen(in)
	err := caught(func() {
		must(json.Unmarshal([]byte(spec), &m.job))
		duty := duties[m.Do]
		if duty == nil {
			panic(fmt.Errorf("bench: there is no duty %q", m.Do))
		}
		duty(context.Background(), m)
	})
	pprof.StopCPUProfile()
	if err != nil {
		// When nobody reads any more there is nobody to tell.
		_ = m.out.Encode(line{Err: err.Error()}) //nolint:errchkjson // see above
		return 1
	}
	return 0
}

// ready says that preparations are over, and returns when the others are ready too.
func (m *mate) ready() {
	must(m.out.Encode(line{Ready: true}))
	if _, ok := <-m.in; !ok {
		panic(errors.New("bench: not told to begin"))
	}
	if m.Profile != "" {
		must(pprof.StartCPUProfile(get(os.Create(m.Profile)))) // written at the end, closed by the end of the process
	}
}

// tell hands a result over.
func (m *mate) tell(value any) { must(m.out.Encode(line{Result: get(json.Marshal(value))})) }

// stay returns when the worker is dismissed.
func (m *mate) stay() {
	m.staying.Store(true)
	<-m.in // its end is the only thing to come
}

// open opens the job's contender.
func (m *mate) open() locker {
	c := contenderNamed(m.Contender)
	if c == nil {
		panic(fmt.Errorf("bench: there is no contender %q", m.Contender))
	}
	return get(c.open(m.Conf))
}

// openWarm is open, with the connections of N goroutines made, when the others
// are ready too.
func (m *mate) openWarm(ctx context.Context) locker {
	l := m.open()
	warm(ctx, l, m.N)
	m.ready()
	return l
}
