package simulate

import (
	"slices"
	"time"
)

// shrink makes a plan smaller for as long as it still fails in the same way. fails
// plays a plan, as often as it takes. It gives up when its time is over.
func shrink(p *plan, within time.Duration, fails func(*plan) bool) *plan {
	deadline := time.Now().Add(within)
	try := func(change func(*plan)) bool {
		if time.Now().After(deadline) {
			return false
		}
		c := p.clone()
		change(c)
		if !fails(c) {
			return false
		}
		p = c
		return true
	}
	for again := true; again; {
		again = false
		for _, size := range []int{16, 4, 1} {
			again = cutList(&p, size, try, func(q *plan) *[]faultPlan { return &q.Faults }) || again
			again = cutList(&p, size, try, func(q *plan) *[]opPlan { return &q.Ops }) || again
			again = cutTasks(&p, size, try) || again
		}
		again = cutList(&p, 1, try, func(q *plan) *[]rulePlan { return &q.Rules }) || again
		if p.Quiet > 0 {
			try(func(q *plan) { q.Quiet = 0 })
		}
		if p.Latency > 0 {
			try(func(q *plan) { q.Latency = 0 })
		}
		if p.Lead > 0 {
			try(func(q *plan) { q.Lead = 0 })
		}
		if p.Groups != nil {
			try(func(q *plan) {
				q.Groups = nil
				for i := range q.Tasks {
					q.Tasks[i].Group = ""
				}
			})
		}
		if p.History > 0 {
			try(func(q *plan) { q.History = 0 })
		}
		if p.Losing > 0 {
			try(func(q *plan) { q.Losing = 0 })
		}
		if n := len(p.Procs); n > 1 && !slices.ContainsFunc(p.Faults, func(f faultPlan) bool { return f.Proc == n-1 }) {
			again = try(func(q *plan) { q.Procs = q.Procs[:n-1] }) || again
		}
		again = again && time.Now().Before(deadline)
	}
	return p
}

// cutList takes out so many elements at a time.
func cutList[T any](p **plan, size int, try func(func(*plan)) bool, list func(*plan) *[]T) (cut bool) {
	for at := 0; at < len(*list(*p)); {
		gone := try(func(q *plan) {
			l := list(q)
			*l = slices.Delete(*l, at, min(at+size, len(*l)))
		})
		if !gone {
			at += size
		}
		cut = cut || gone
	}
	return cut
}

// cutTasks takes out tasks. Those who refer to them by number go on to do so: a task
// that is not to be enqueued by anybody is none.
func cutTasks(p **plan, size int, try func(func(*plan)) bool) (cut bool) {
	for at := 0; at < len((*p).Tasks); at += size {
		here := (*p).Tasks[at:min(at+size, len((*p).Tasks))]
		if !slices.ContainsFunc(here, func(t taskPlan) bool { return t.At >= 0 }) {
			continue
		}
		cut = try(func(q *plan) {
			for i := at; i < min(at+size, len(q.Tasks)); i++ {
				q.Tasks[i] = taskPlan{At: -1, Task: q.Tasks[i].Task}
			}
		}) || cut
	}
	return cut
}
