package web

import (
	"context"
	"net/http"
	"time"

	"github.com/automutex/automutex/lock"
)

// overview is the first page: what is hot now, and the way to the list behind it.
type overview struct {
	frame
	Totals               totals
	Hot                  hot
	Orders, FirstOrders  []lock.Control // each a pause or a limit
	Pauses, MoreOrders   int
	Fleet                fleetTotals
	HeldSpark, LineSpark chartLine
	Chart                chart
	freshness
	Err  string
	Done *Action
}

// firstOrders is how many orders the Overview shows.
const firstOrders = 5

func (p *page) overview(r *http.Request) *overview {
	v := &overview{frame: p.frame(r, "", "Overview"), Done: p.done(r)}
	v.Live = p.liveURL("overview", "")
	ctx, cancel := context.WithTimeout(r.Context(), firstLook)
	defer cancel()
	snap := p.sampler.get(ctx)
	if v.Err = snap.failure(); snap == nil {
		return v
	}
	v.Totals, v.Hot = snap.totals, snap.hot
	controls, err := p.controls(ctx)
	if err != nil && v.Err == "" {
		v.Err = trouble(err, triesAgain)
	}
	v.Orders = inner.Orders(controls)
	for _, c := range v.Orders {
		if c.Paused {
			v.Pauses++
		}
	}
	v.FirstOrders = v.Orders[:min(len(v.Orders), firstOrders)]
	v.MoreOrders = len(v.Orders) - len(v.FirstOrders)
	all, _ := p.fleetNow(ctx) // Processes says what is wrong with it
	v.Fleet = totalsOf(all)
	v.Now = time.Now()
	v.freshness = snap.freshness(v.Now)
	slot := slotOf(v.Now)
	if points := p.sampler.lastHour("", slot); points != nil {
		v.LineSpark = spark(points, 120, 20, func(p point) int { return p.Waiting + p.Parked })
		v.HeldSpark = spark(points, 120, 20, func(p point) int { return p.Held })
		v.HeldSpark.Class = "held"
	}
	v.Chart = newChart("All locks", p.sampler.lastHour("", slot), slot, 600, 100)
	return v
}
