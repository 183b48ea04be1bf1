package web

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
)

// processesView is who runs what.
type processesView struct {
	frame
	Rows             []processRow
	Findings         []inspect.Misfit
	Running, Stopped int
	Found, From      int
	Prev, Next       string
	Cut              bool
	Err              string
}

type processRow struct {
	fleet.Process
	Short   string // of the hash of its rules
	Rules   int    // -1: not known, since no live process runs them
	Differs bool   // others of its kind run other rules
	Stopped bool
}

// fleetTotals are numbers of processes.
type fleetTotals struct {
	Running, Stopped int
	Differ           bool
}

func totalsOf(f *fleet.Fleet) (t fleetTotals) {
	if f == nil {
		return t
	}
	for _, p := range f.Processes {
		if p.Stopped(f.At) {
			t.Stopped++
		} else {
			t.Running++
		}
	}
	t.Differ = slices.ContainsFunc(inspect.Misfits(f), func(m inspect.Misfit) bool { return m.Kind == inspect.MisfitDiffer })
	return t
}

// processesPerPage is how many processes a page of the list has.
const processesPerPage = 100

func (p *page) processesView(r *http.Request) *processesView {
	q, _ := parseKeysQuery(r.URL.Query()) // its page alone
	v := &processesView{frame: p.frame(r, "processes", "Processes"), From: 1}
	v.Here, v.Live = "processes?"+keysQuery{}.values(q.Page), p.liveURL("processes", keysQuery{}.values(q.Page))
	ctx, cancel := context.WithTimeout(r.Context(), firstLook)
	defer cancel()
	all, err := p.fleetNow(ctx)
	if err != nil {
		v.Err = trouble(err, triesAgain)
	}
	if all == nil {
		return v
	}
	v.Now, v.Cut, v.Found = time.Now(), all.Cut, len(all.Processes)
	v.Findings = inspect.Misfits(all)
	differ := map[string]bool{}
	sizes := map[string]int{}
	sets := map[string]int{}
	for _, set := range all.Sets {
		sizes[set.Kind+set.Hash] = len(set.Rules)
		sets[set.Kind]++
	}
	for _, m := range v.Findings {
		for _, hash := range m.Hashes {
			differ[hash] = true
		}
	}
	skip := (q.Page - 1) * processesPerPage
	for i, process := range all.Processes {
		stopped := process.Stopped(all.At)
		if stopped {
			v.Stopped++
		} else {
			v.Running++
		}
		if i < skip || len(v.Rows) == processesPerPage {
			continue
		}
		rules, known := sizes[process.Kind+process.Hash]
		if !known {
			rules = -1
		}
		v.Rows = append(v.Rows, processRow{
			Process: process, Short: process.Hash[:min(6, len(process.Hash))], Rules: rules,
			Differs: differ[process.Hash], Stopped: stopped,
		})
	}
	v.From = skip + 1
	if v.Found > skip+processesPerPage {
		v.Next = v.Base + "processes?" + keysQuery{}.values(q.Page+1)
	}
	if q.Page > 1 {
		v.Prev = v.Base + "processes?" + keysQuery{}.values(q.Page-1)
	}
	slices.SortStableFunc(v.Rows, func(a, b processRow) int { return cmp.Compare(boolInt(b.Stopped), boolInt(a.Stopped)) })
	return v
}
