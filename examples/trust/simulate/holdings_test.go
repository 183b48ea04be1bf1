package simulate

import (
	"slices"
	"time"
)

// holdings are the leases of one key between Acquired and Released, by process, task and
// rule, the oldest first. Each has one lease at least. A task has two for a moment when
// its earlier attempt, which ran past its timeout, hands the key over to its retry in the
// same process: the retry may tell that it has the key before the earlier attempt tells
// that it has released it.
type holdings map[string][]*holding

// holding is a lease between Acquired and Released.
type holding struct {
	proc  *process
	since time.Time
	wait  time.Duration
	task  int

	started bool // a handler has begun under it
}

// took notes a lease.
func (k *keyBook) took(id string, h *holding) { k.held[id] = append(k.held[id], h) }

// latest is the lease that was taken last; nil: there is none.
func (k *keyBook) latest(id string) *holding {
	if all := k.held[id]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// holdingOf is the lease that an event is about, by how long the event says that it was
// held; the zero holding: there is none.
func (k *keyBook) holdingOf(id string, held time.Duration) holding {
	if i := k.indexOf(id, held); i >= 0 {
		return *k.held[id][i]
	}
	return holding{}
}

// gives is holdingOf, and takes the lease out of the books.
func (k *keyBook) gives(id string, held time.Duration) holding {
	i := k.indexOf(id, held)
	if i < 0 {
		return holding{}
	}
	h := *k.held[id][i]
	if k.held[id] = slices.Delete(k.held[id], i, i+1); len(k.held[id]) == 0 {
		delete(k.held, id)
	}
	return h
}

// indexOf finds the lease whose beginning is the nearest to what an event says; -1: there
// is none.
func (k *keyBook) indexOf(id string, held time.Duration) int {
	began, nearest := time.Now().Add(-held), -1
	for i, h := range k.held[id] {
		if nearest < 0 || h.since.Sub(began).Abs() < k.held[id][nearest].since.Sub(began).Abs() {
			nearest = i
		}
	}
	return nearest
}

// lapses notes that a lease was lost. If the handler had ended by then, its success, which is
// noted already, begins no cooldown: a lease that is lost keeps nothing taken. The cooldown may
// have begun all the same, if Redis lost the reply to the release. Callers hold mu.
func (b *ledger) lapses(p *process, n int, key string, h holding) {
	for _, r := range b.runs {
		if r.p == p && r.n == n && r.taken[key].Equal(h.since) && !r.ended.IsZero() && r.released[key].IsZero() {
			if r.lapsed == nil {
				r.lapsed = map[string]bool{}
			}
			r.lapsed[key] = true
		}
	}
}
