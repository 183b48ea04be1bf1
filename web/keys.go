package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// perPage is how many locks a page of the list has.
	perPage = 50
	// firstLook is how long a page waits for Redis: for the first part of the first look, and for what else it shows.
	firstLook = 3 * time.Second
)

// keysQuery is what the list is narrowed to, as the form sends it.
type keysQuery struct {
	Search  string
	Rule    string
	Waiting bool
	Closed  bool
	Sort    string // one of sorts
	Longer  string // as typed
	longer  time.Duration
	Page    int
}

// parseKeysQuery reads the form. The error is for the viewer.
func parseKeysQuery(v url.Values) (q keysQuery, err error) {
	q = keysQuery{Search: v.Get("q"), Rule: v.Get("rule"), Waiting: v.Get("waiting") != "", Closed: v.Get("closed") != "", Longer: v.Get("longer"), Page: 1}
	if _, ok := sorts[v.Get("sort")]; ok {
		q.Sort = v.Get("sort")
	}
	if q.Longer != "" {
		if q.longer, err = time.ParseDuration(q.Longer); err != nil || q.longer < 0 {
			q.longer = 0
			err = fmt.Errorf("%q is not a duration: write 30s, 5m or 1h", printable.Short(q.Longer))
		}
	}
	if n, wrong := strconv.Atoi(v.Get("page")); wrong == nil && n > 1 {
		q.Page = min(n, maxRows) // so that no product overflows
	}
	return q, err
}

// values is the form again, with another page.
func (q keysQuery) values(page int) string {
	v := url.Values{}
	for name, value := range map[string]string{"q": q.Search, "rule": q.Rule, "longer": q.Longer, "sort": q.Sort} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Waiting {
		v.Set("waiting", "1")
	}
	if q.Closed {
		v.Set("closed", "1")
	}
	if page > 1 {
		v.Set("page", strconv.Itoa(page))
	}
	return v.Encode()
}

// keysView is the list of locks.
type keysView struct {
	frame
	Query      keysQuery
	Wrong      string // what is wrong with the form
	Rules      []string
	Totals     totals
	Found      int  // that the form lets pass
	Walking    bool // Found is of a part of the locks
	Kept       int  // that were kept of the look, if these are not all
	Rows       []keysRow
	From       int
	Prev, Next string // links; empty without one
	freshness
	Err      string
	Chart    chart
	Done     *Action // what the viewer has just done
	Columns  []column
	SortedBy string
	Found1   []foundTask // tasks whose ID is what was searched for
}

// column is a heading of the list. One with a URL sorts.
type column struct {
	Name, URL, Order, Arrow string
	On                      bool
}

func (q keysQuery) columns(base string) (all []column) {
	for _, c := range []struct{ name, sort, order, arrow string }{
		{"Key", "key", "ascending", "↑"}, {"Rule", "-", "", ""}, {"In line", "", "descending", "↓"}, {"Holder", "holder", "ascending", "↑"}, {"Task", "-", "", ""},
		{"Held for", "held", "descending", "↓"}, {"Lease ends in", "left", "ascending", "↑"}, {"Line, last hour", "-", "", ""},
	} {
		made := column{Name: c.name}
		if c.sort != "-" {
			sorted := q
			sorted.Sort = c.sort
			made.URL, made.On, made.Order, made.Arrow = base+"keys?"+sorted.values(1), q.Sort == c.sort, c.order, c.arrow
		}
		all = append(all, made)
	}
	return all
}

type keysRow struct {
	row
	ID     string // of the row, for updates in place
	Name   string // between the braces
	Rule   string
	Task   task
	Paused bool // by an operator
	Spark  chartLine
}

// keys answers with the list.
func (p *page) keys(w http.ResponseWriter, r *http.Request) {
	view := p.keysView(r)
	view.Found1 = p.findTask(r.Context(), view.Query.Search)
	p.render(w, http.StatusOK, "keys", view)
}

func (p *page) keysView(r *http.Request) *keysView {
	q, wrong := parseKeysQuery(r.URL.Query())
	v := &keysView{frame: p.frame(r, "keys", "Keys"), Query: q, From: 1}
	v.Here = "keys?" + q.values(q.Page)
	v.Live = p.liveURL("keys", q.values(q.Page))
	v.Done = p.done(r)
	if wrong != nil {
		v.Wrong = wrong.Error()
	}
	ctx, cancel := context.WithTimeout(r.Context(), firstLook)
	defer cancel()
	snap := p.sampler.get(ctx)
	if v.Err = snap.failure(); snap == nil {
		return v
	}
	_, _ = p.fleetNow(ctx) // without its answer the list has no names of rules; Processes says why
	for _, rule := range p.known.Load().rules {
		v.Rules = append(v.Rules, rule.Name)
	}
	v.Columns, v.SortedBy = q.columns(v.Base), sorts[q.Sort].name
	v.Now = time.Now()
	v.Totals, v.freshness = snap.totals, snap.freshness(v.Now)
	if len(snap.rows) < snap.totals.Locks && snap.complete {
		v.Kept = len(snap.rows)
	}
	p.fill(ctx, v, snap)
	return v
}

// fill takes the rows of one page out of the snapshot, and refreshes them.
func (p *page) fill(ctx context.Context, v *keysView, snap *snapshot) {
	q := v.Query
	skip := (q.Page - 1) * perPage
	shown, found, partial := snap.find(q, v.Now, p.known.Load())
	v.From, v.Found, v.Walking = skip+1, found, partial
	if v.Found > skip+perPage {
		v.Next = v.Base + "keys?" + q.values(q.Page+1)
	}
	if q.Page > 1 {
		v.Prev = v.Base + "keys?" + q.values(q.Page-1)
	}
	shown = p.sampler.refresh(ctx, shown, snap.at)
	controls, err := p.controls(ctx)
	if err != nil && v.Err == "" {
		v.Err = trouble(err, triesAgain)
	}
	slot := slotOf(v.Now)
	for _, r := range shown {
		line := keysRow{row: r, ID: rowID(r.Key), Name: inspect.InBraces(r.Key), Rule: p.namesFor(inspect.ScopeOf(r.Key)), Task: p.taskOf(r.Note)}
		if _, _, pause := inner.ControlsFor(controls, r.Key); pause != nil {
			line.Paused = true
		}
		if points := p.sampler.lastHour(r.Key, slot); points != nil {
			line.Spark = spark(points, 120, 20, func(p point) int { return p.Waiting + p.Parked })
		}
		v.Rows = append(v.Rows, line)
	}
	v.Chart = newChart("All locks", p.sampler.lastHour("", slot), slot, 600, 100)
}

// rowID is an attribute that is the same for a key as long as it is in the list, so
// that an update moves its row and keeps the focus.
func rowID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}
