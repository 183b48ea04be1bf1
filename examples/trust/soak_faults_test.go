package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
)

// soakConductor has the plan's faults happen, each once so many tasks were
// enqueued. Those of one server come one after the other, so that no lease meets
// more than one at a time; servers have theirs beside each other.
type soakConductor struct {
	world    *soakWorld
	books    *soakBooks
	enqueued *atomic.Int64 // calls made
	happened atomic.Int64
}

// run returns when all faults are over. Each of its goroutines ends with the
// last fault that it has to make; producers count calls until all are made.
func (c *soakConductor) run(faults []soakFault) {
	byVictim := map[string][]soakFault{}
	for _, f := range faults {
		victim := f.What // what befalls nobody by itself comes one of a kind at a time
		switch {
		case strings.HasPrefix(f.What, "operator"):
			victim = "operator"
		case soakVictim(f) >= 0:
			victim = fmt.Sprint("server ", soakVictim(f))
		}
		byVictim[victim] = append(byVictim[victim], f)
	}
	var wg sync.WaitGroup
	for _, faults := range byVictim {
		wg.Go(func() {
			look := time.NewTicker(5 * time.Millisecond)
			defer look.Stop()
			for _, f := range faults {
				for c.enqueued.Load() < int64(f.At) {
					<-look.C
				}
				c.make(f)
				c.happened.Add(1)
			}
		})
	}
	wg.Wait()
}

// soakVictim is the server that a fault hits; -1: none by itself.
func soakVictim(f soakFault) int {
	switch f.What {
	case "SIGKILL", "SIGSTOP":
		return soakInside + f.Target
	case "cut claims", "SCRIPT FLUSH", "CLIENT KILL guards", "CLIENT KILL asynq", "pause queue",
		"operator deletes", "operator archives", "operator runs":
		return -1
	}
	return f.Target
}

func (c *soakConductor) make(f soakFault) {
	w := c.world
	lasting := func(begin, end func()) {
		begin()
		<-time.After(f.Length)
		end()
	}
	var s *soakServer
	if victim := soakVictim(f); victim >= 0 {
		s = w.servers[victim]
	}
	queue := soakQueues[f.Target%len(soakQueues)]
	switch f.What {
	case "cut guard":
		s.guard.Cut()
	case "delay guard":
		lasting(func() { s.guard.Delay(time.Duration(f.Count) * time.Millisecond) }, func() { s.guard.Delay(0) })
	case "lose replies to guard":
		s.guard.DropReplies(1 + f.Count%3)
	case "lose messages":
		lasting(func() { s.guard.DropMessages(true) }, func() { s.guard.DropMessages(false) })
	case "black hole for guard":
		lasting(func() { s.guard.Blackhole(true) }, func() { s.guard.Blackhole(false) })
	case "black hole for messages":
		lasting(func() { s.guard.BlackholePubSub(true) }, func() { s.guard.BlackholePubSub(false) })
	case "cut asynq":
		w.unheard.Add(1)
		s.asynq.Cut()
	case "delay asynq":
		lasting(func() { s.asynq.Delay(time.Duration(f.Count) * time.Millisecond) }, func() { s.asynq.Delay(0) })
	case "cut claims":
		w.claims.Cut()
	case "SCRIPT FLUSH":
		if err := w.rdb.ScriptFlush(context.Background()).Err(); err != nil {
			w.fail(err)
		}
	case "CLIENT KILL guards":
		w.killClients("guard")
	case "CLIENT KILL asynq":
		w.unheard.Add(1)
		w.killClients("asynq")
	case "shut down and start":
		w.restarted.Add(1)
		s.stop()
		s.start()
	case "SIGKILL":
		s.kill()
	case "SIGSTOP":
		c.signal(s, syscall.SIGSTOP)
		<-time.After(f.Length)
		c.signal(s, syscall.SIGCONT)
	case "pause queue":
		if err := w.inspector.PauseQueue(queue); err != nil {
			w.fail(err)
		}
		<-time.After(f.Length)
		if err := w.inspector.UnpauseQueue(queue); err != nil {
			w.fail(err)
		}
	default:
		c.operate(f, queue)
	}
}

func (c *soakConductor) signal(s *soakServer, sig syscall.Signal) {
	if s.child == nil { // it did not start, as the test was told
		return
	}
	if err := s.child.cmd.Process.Signal(sig); err != nil {
		c.world.fail(err)
	}
}

// killClients has Redis close all connections of that name.
func (w *soakWorld) killClients(name string) {
	list, err := w.rdb.ClientList(context.Background()).Result()
	if err != nil {
		w.fail(err)
	}
	for line := range strings.Lines(list) {
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		if strings.Contains(line, " name="+name+" ") {
			// It may have gone by itself.
			_ = w.rdb.ClientKillByFilter(context.Background(), "ID", id).Err()
		}
	}
}

// operate does to a task what an operator may, and has it written down. The dice
// say which deed and which place in which list; what stands there is a matter of
// time.
func (c *soakConductor) operate(f soakFault, queue string) {
	i := c.world.inspector
	lists := []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		i.ListPendingTasks, i.ListRetryTasks, i.ListScheduledTasks, i.ListArchivedTasks,
	}
	for turn := range lists { // the next one where there is none
		infos, err := lists[(f.Count+turn)%len(lists)](queue, asynq.PageSize(50))
		if err != nil {
			if !errors.Is(err, asynq.ErrQueueNotFound) {
				c.world.fail(err)
			}
			return
		}
		if len(infos) == 0 || f.What == "operator archives" && infos[0].State == asynq.TaskStateArchived {
			continue
		}
		info := infos[f.Count%len(infos)]
		var task soakTask
		if err := json.Unmarshal(info.Payload, &task); err != nil {
			c.world.fail(err)
			return
		}
		// An error means that it is not there any more, or at work.
		switch f.What {
		case "operator deletes":
			if i.DeleteTask(queue, info.ID) == nil {
				c.books.operated(task.N, "deleted")
			}
		case "operator archives":
			if i.ArchiveTask(queue, info.ID) == nil {
				c.books.operated(task.N, "archived")
			}
		case "operator runs":
			if i.RunTask(queue, info.ID) == nil {
				c.books.operated(task.N, "run")
			}
		default:
			c.world.fail(fmt.Errorf("nobody knows the fault %q", f.What))
		}
		return
	}
}
