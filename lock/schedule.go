package lock

import "container/heap"

// schedule is a heap of leases by Lease.due. The renewer's mutex guards it, and the fields
// due and place of every lease in it.
type schedule []*Lease

// isScheduled reports whether le is in the schedule, and so a lease that the renewer knows.
func (le *Lease) isScheduled() bool { return le.place > 0 }

// set adds le, or moves it to where its due belongs.
func (s *schedule) set(le *Lease) {
	if le.isScheduled() {
		heap.Fix(s, le.place-1)
		return
	}
	heap.Push(s, le)
}

// remove removes le. It does nothing if le is not in the schedule.
func (s *schedule) remove(le *Lease) {
	if le.isScheduled() {
		heap.Remove(s, le.place-1)
	}
}

// Len implements heap.Interface, as do the methods below.
func (s *schedule) Len() int { return len(*s) }

func (s *schedule) Less(i, j int) bool { return (*s)[i].due.Before((*s)[j].due) }

func (s *schedule) Swap(i, j int) {
	q := *s
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i+1, j+1
}

// Push appends a *Lease, for package heap.
func (s *schedule) Push(x any) {
	le := x.(*Lease) //nolint:forcetypeassert // nothing else is pushed
	*s = append(*s, le)
	le.place = len(*s)
}

// Pop removes the last one, for package heap.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	le := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	le.place = 0
	return le
}
