package web

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasknote"
)

// row is one lock in the list of all. There may be 100,000 of them, so it keeps what
// the list shows and nothing else. Times are by the clock of this process.
type row struct {
	Key     string
	Held    int
	Waiting int
	Parked  int       // the called ones included
	Queued  int       // tasks in order that do not hold it
	Since   time.Time // when it was taken; zero: nobody holds it, or several do, of whom only the newest one's time is known
	Until   time.Time // of the first holder; zero without one
	Owner   string    // of the first holder
	Note    string    // of the first holder
	Closed  string    // why nobody starts: rate, hold or cooldown; empty: the gate is open
	Opens   time.Time // Closed: when it opens

	Head *inside.Head // of an ordered key, if it may keep others waiting; nil otherwise
}

// newRow makes a row of what package lock tells, asked at that time.
func newRow(info inside.Info, at time.Time) row {
	r := row{Key: info.Key, Held: info.Held, Waiting: info.Waiting, Parked: info.Parked + info.Called, Queued: info.Queued}
	if info.Head.MayBlock() {
		r.Head = &info.Head
	}
	if info.Held == 1 && info.Granted > 0 {
		r.Since = at.Add(-info.Granted)
	}
	if info.Gate.OpensIn > 0 {
		r.Closed, r.Opens = info.Gate.Reason, at.Add(info.Gate.OpensIn)
	}
	if len(info.Holders) > 0 {
		h := info.Holders[0]
		r.Until, r.Owner, r.Note = at.Add(h.ExpiresIn), h.Owner, h.Note
	}
	return r
}

// Line is how many are in line: those that wait in workers, that are parked, and that are in order.
func (r row) Line() int { return r.line() }

func (r row) line() int { return r.Waiting + r.Parked + r.Queued }

// Blocked reports whether a task of the key has failed or is archived, and keeps others waiting.
func (r row) Blocked() bool { return r.Head != nil && r.Head.Blocks() }

// busier orders rows by contention: the longest line first, then what is held for the
// longest time, then by key, so that rows keep their places.
func busier(a, b row) int {
	return cmp.Or(cmp.Compare(b.line(), a.line()), earlier(a.Since, b.Since), strings.Compare(a.Key, b.Key))
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// task is what a note of the middleware names. Other notes have no ID.
type task struct {
	Queue, ID string
	Text      string // what is shown
	URL       string // asynqmon's page of the task; empty without one
}

// taskOf reads a note: <queue, escaped>/<task ID>.
func (p *page) taskOf(note string) task {
	queue, id, ok := tasknote.Parse(note)
	if !ok || id == "" {
		return task{Text: printable.Short(note)}
	}
	t := task{Queue: queue, ID: id, Text: printable.Short(queue + "/" + id)}
	if p.o.AsynqmonPath != "" {
		t.URL = p.o.AsynqmonPath + "/queues/" + url.PathEscape(queue) + "/tasks/" + url.PathEscape(id)
	}
	return t
}
