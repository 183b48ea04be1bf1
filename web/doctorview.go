package web

import (
	"cmp"
	"context"
	"net/http"
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

// checkup is an examination.
type checkup struct {
	At       time.Time
	Findings []doctor.Finding // up to err
	err      error
}

// doctorView is what doctor said last.
type doctorView struct {
	frame
	checkup
	Bad int
	Err string
}

func (p *page) doctorPage(w http.ResponseWriter, r *http.Request) {
	v := &doctorView{frame: p.frame(r, "doctor", "Doctor")}
	var err error
	if v.checkup, err = p.checkup.last(); cmp.Or(err, v.err) != nil {
		v.Err = trouble(cmp.Or(err, v.err), "examine again")
	}
	v.Bad = doctor.CountBad(v.Findings)
	p.render(w, http.StatusOK, "doctor", v)
}

// examine looks anew, and shows it. It takes nothing from anybody: what it writes are keys
// of its own, to try the rights.
func (p *page) examine(w http.ResponseWriter, r *http.Request) {
	_, _ = p.checkup.get(context.WithoutCancel(r.Context()), examineEvery, func(ctx context.Context) (checkup, error) {
		ctx, cancel := context.WithTimeout(ctx, examineWithin)
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
		return checkup{time.Now(), found, err}, nil // with an error there are findings, too
	})
	w.Header().Set("Location", p.base+"doctor")
	w.WriteHeader(http.StatusSeeOther)
}
