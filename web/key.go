package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

const mostShown = 30

type keyView struct {
	frame
	Key, Name, Rule string
	Looked          bool // Redis has told what Info and Line say
	Info            row
	Line            []inspect.Waiter
	Late            []string        // as many as Line: in what time that task is late; empty: it is not known to be
	More            int             // of the line that are not shown
	Orders          []control.Order // of operators, that are in force for this lock
	Buttons         []button        // of orders
	Behind          *blockedRow     // the next task of an ordered key, if it keeps others waiting
	Lends           fleet.Rule      // with LeaveIdle: under it the key may borrow workers of Servers
	Servers         []*asynq.ServerInfo

	Bars   *bars  // who ran when; nil: nothing is known
	Kept   bool   // workers keep the runs of the key
	Unread string // why these were not read
}

func (p *page) key(w http.ResponseWriter, r *http.Request) {
	key := p.keyOf(r.URL.Query().Get("key"))
	if wrong := p.noLock(key); wrong != "" {
		p.fail(w, http.StatusBadRequest, wrong)
		return
	}
	p.render(w, http.StatusOK, "key", p.keyView(r, key))
}

func (p *page) keyView(r *http.Request, key string) *keyView {
	name := control.Bare(key)
	v := &keyView{frame: p.frame(r, "key", printable.Short(name), url.Values{"key": {key}}.Encode()), Key: key, Name: name}
	ctx, cancel := context.WithTimeout(r.Context(), p.within.redis)
	defer cancel()
	kept, unread := within(ctx, func(ctx context.Context) ([]history.Run, error) {
		return history.Read(ctx, p.rdb, key, mostBars) // before the look: what goes on then is not in it
	})
	info, err := p.look(ctx, key)
	if v.Looked = err == nil; v.Looked {
		v.Now, v.Info = info.At, info
		v.Line = info.Waiters[:min(len(info.Waiters), mostShown)]
		v.More = max(0, info.Line-len(v.Line))
		if info.mayBlock() {
			for _, b := range p.blockedOf(ctx, []row{info}) { // one at most
				v.Behind = &b
			}
		}
		v.Bars, v.Kept, v.Unread = newBars(p.runsOf(kept, info), info.At), len(kept) > 0, trouble(unread, triesAgain)
		v.Late = p.lateOf(ctx, key, v.Line, v.Now)
	}
	v.Rule = p.rulesOf(key)
	if v.Lends = p.lends(key); v.Lends.LeaveIdle > 0 {
		v.Servers = askAsynq(ctx, p, func(asked *asynq.Inspector) []*asynq.ServerInfo {
			all, _ := asked.Servers() // none: the page says so
			return all
		})
	}
	controls, wrong := p.controls(ctx)
	v.Err = trouble(cmp.Or(err, wrong), triesAgain)
	v.Orders, _ = control.For(controls, key)
	v.Buttons = buttonsFor(p.engine.Controls().Typed(name), v.Orders)
	return v
}
