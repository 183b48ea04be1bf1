package web

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/doctor"
)

const (
	// examineWithin bounds an examination.
	examineWithin = 30 * time.Second
	// examineEvery is how old an examination is before there is another one.
	examineEvery = 10 * time.Second
	// tasksExamined is how many tasks of each queue and state are read.
	tasksExamined = 200
)

// checkup is the last examination, for all viewers.
type checkup struct {
	running sync.Mutex // held during an examination: there is one at a time
	mu      sync.Mutex // guards the rest; nobody does I/O under it
	at      time.Time
	found   []doctor.Finding
	err     error
}

// doctorView is what doctor said last.
type doctorView struct {
	frame
	At       time.Time
	Findings []doctor.Finding
	Bad      int
	Err      string
}

func (p *page) doctorPage(w http.ResponseWriter, r *http.Request) {
	v := &doctorView{frame: p.frame(r, "doctor", "Doctor")}
	c := &p.checkup
	c.mu.Lock()
	v.At, v.Findings = c.at, c.found
	if c.err != nil {
		v.Err = trouble(c.err, "examine again")
	}
	c.mu.Unlock()
	v.Bad = doctor.CountBad(v.Findings)
	p.render(w, http.StatusOK, "doctor", v)
}

// examine looks anew, and shows it. It takes nothing from anybody: what it writes are keys
// of its own, to try the rights.
func (p *page) examine(w http.ResponseWriter, r *http.Request) {
	c := &p.checkup
	c.running.Lock()
	defer c.running.Unlock()
	c.mu.Lock()
	fresh := time.Since(c.at) < examineEvery
	c.mu.Unlock()
	if !fresh {
		// What it finds is for all viewers: it goes on when this one goes away.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), examineWithin)
		defer cancel()
		options := doctor.Options{
			Prefix: p.o.Prefix, Timeout: lookWithin, Tasks: tasksExamined, TaskCheckInterval: time.Second, Assumed: true,
		}
		if len(p.o.Rules) > 0 { // otherwise doctor asks what workers run
			options.Config = &automutex.Config{
				Rules: p.o.Rules, Prefix: p.o.Prefix, HashKeys: p.o.HashKeys, Decode: p.o.Decode,
			}
		}
		found, err := doctor.Examine(ctx, p.rdb, options)
		c.mu.Lock()
		c.at, c.found, c.err = time.Now(), found, err
		c.mu.Unlock()
	}
	w.Header().Set("Location", p.base+"doctor")
	w.WriteHeader(http.StatusSeeOther)
}
