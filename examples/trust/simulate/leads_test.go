package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/automutex/automutex/lock"
)

// What follows is about leadership: in some worlds each process is a candidate, by a client of its own.

// leadClient is the kind of that client.
const leadClient = "lead"

// leads draws candidates, how long a leader's function lasts, and faults of their client.
func (d *drawer) leads(length time.Duration) {
	s := d.aside("leads")
	if !s.chance(0.2) {
		return
	}
	s.p.Lead = s.span(1000, 60_000)
	if len(s.p.Faults) == 0 {
		return
	}
	for range s.IntN(3) {
		f := faultPlan{Kind: pick(s, refused, replyLost, swallowed, late, cut, hung, loading, readOnly, apart), Proc: s.IntN(len(s.p.Procs)), Client: leadClient}
		if f.Kind.spansTime() {
			f.At, f.For = s.span(0, int(length/time.Millisecond)), s.span(500, 20_000)
		} else {
			f.Nth, f.For = 1+s.IntN(60), s.span(4000, 20_000)
		}
		s.p.Faults = append(s.p.Faults, f)
	}
}

// candidate is what a process has to lead.
type candidate struct {
	end    *endpoint
	cancel context.CancelFunc
	over   chan struct{} // closed when it has given up, and closed its Locker
}

// campaigns has a process campaign until resigns, or nil.
func (p *process) campaigns() *candidate {
	if p.w.plan.Lead == 0 {
		return nil
	}
	c := &candidate{end: p.w.redis.endpoint(p.n, leadClient, p.w.plan.Seed+2, p.w.plan.Faults), over: make(chan struct{})}
	rdb := c.end.client()
	locker := lock.New(rdb, lock.Options{Owner: fmt.Sprintf("process-%d", p.n), TTL: 6 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() { // until resigns
		defer close(c.over)
		for ctx.Err() == nil {
			if err := locker.Lead(ctx, "leader", p.lead); err != nil && ctx.Err() == nil {
				p.w.book.violationf("lead: process %d gives up: %v", p.n, err)
				break
			}
		}
		_ = locker.Close() // an error is that Redis did not hear of it
		_ = rdb.Close()
	}()
	return c
}

// lead is the leader's function.
func (p *process) lead(ctx context.Context) error {
	t := p.w.book.leads(p, ctx)
	timer := time.NewTimer(p.w.plan.Lead)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	p.w.book.led(t)
	return nil
}

// resigns ends what campaigns began. It may be called twice.
func (c *candidate) resigns() {
	if c != nil {
		c.cancel()
		<-c.over
	}
}

// term is one time in which a process leads.
type term struct {
	p    *process
	ctx  context.Context // of its function, which ends when it has to stop
	over bool
}

// leads notes that a process leads, and judges whether it may.
func (b *ledger) leads(p *process, ctx context.Context) *term {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &term{p: p, ctx: ctx}
	if p.isEnded() {
		return t
	}
	b.addf("process %d leads", p.n)
	for _, o := range b.terms {
		if o.lives() && !b.w.forgot() {
			b.violatef("lead: process %d leads beside process %d", p.n, o.p.n)
		}
	}
	b.terms = append(b.terms, t)
	return t
}

func (b *ledger) led(t *term) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.over = true
	hit := slices.ContainsFunc(b.w.plan.Faults, func(f faultPlan) bool { return f.Client == leadClient })
	if cause := context.Cause(t.ctx); errors.Is(cause, lock.ErrLost) && b.calm && !hit && !b.w.forgot() && !t.p.isEnded() {
		b.violatef("lead: process %d loses its leadership, and nothing was wrong", t.p.n)
	}
}

func (t *term) lives() bool { return !t.over && t.ctx.Err() == nil && !t.p.isEnded() }

// endLeads looks, when nothing is wrong any more, whether somebody leads, and has all candidates resign.
func (w *world) endLeads() {
	if w.plan.Lead == 0 {
		return
	}
	lasts := 45 * time.Second // a pause of a campaign, and the lease of one that has died
	if w.forgot() {
		lasts += afterAStep
	}
	for began := time.Now(); !w.book.isLed(); time.Sleep(100 * ms) {
		if time.Since(began) > lasts {
			w.book.violationf("lead: nobody leads for %s", lasts)
			break
		}
	}
	for _, p := range w.all {
		if !p.isEnded() {
			p.candidate.resigns()
		}
	}
}

func (b *ledger) isLed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.terms, (*term).lives)
}
