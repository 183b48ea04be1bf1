package web

import (
	"context"
	"net/http"
	"time"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// blockedView lists ordered keys whose next task does not run and keeps others waiting.
type blockedView struct {
	frame
	Rows []blockedRow
	More int // blocked keys that are not shown
	freshness
	Err  string
	Done *Action
}

type blockedRow struct {
	Key, Name, Rule string
	Task            task
	Note            string // the task, for a skip
	Ticket          int64  // of Note: another task may get its ID
	Why             string
	Since           time.Time
	Behind          int
	Held            bool
}

func (p *page) blockedView(r *http.Request) *blockedView {
	v := &blockedView{frame: p.frame(r, "blocked", "Blocked"), Done: p.done(r)}
	v.Live = p.liveURL("blocked", "")
	ctx, cancel := context.WithTimeout(r.Context(), firstLook)
	defer cancel()
	snap := p.sampler.get(ctx)
	if v.Err = snap.failure(); snap == nil {
		return v
	}
	_, _ = p.fleetNow(ctx) // without its answer the keys have no rules
	v.Rows = p.blockedRows(ctx, p.sampler.refresh(ctx, snap.hot.Heads, snap.at))
	v.More = max(0, snap.totals.Blocked-len(snap.hot.Heads))
	v.Now = time.Now()
	v.freshness = snap.freshness(v.Now)
	return v
}

// blockedRows asks asynq for the next task of each of those keys, and leaves out those that go on by themselves.
func (p *page) blockedRows(ctx context.Context, rows []row) (all []blockedRow) {
	heads := map[taskID]row{}
	var tasks []taskID
	for _, r := range rows {
		if t := p.taskOf(headNote(r)); t.ID != "" {
			of := taskID{t.Queue, t.ID}
			heads[of], tasks = r, append(tasks, of)
		}
	}
	asynq := blocked.In(p.states.inspector)
	seen := askEach(ctx, p.states, tasks, "", func(of taskID) string {
		return blocked.Why(asynq.Look(*heads[of].Head))
	})
	for _, of := range tasks {
		r := heads[of]
		why := seen[of]
		if why == "" && r.Head.Held() { // asynq did not say in time
			why = "is archived"
		}
		if why == "" {
			continue
		}
		all = append(all, blockedRow{
			Key: r.Key, Name: inspect.InBraces(r.Key), Rule: p.namesFor(inspect.ScopeOf(r.Key)), Task: p.taskOf(r.Head.Note), Note: r.Head.Note, Ticket: r.Head.Ticket,
			Why: printable.Short(why), Since: r.Head.Since, Behind: r.Head.Queued - 1, Held: r.Head.Held(),
		})
	}
	return all
}

func headNote(r row) string {
	if r.Head == nil {
		return ""
	}
	return r.Head.Note
}
