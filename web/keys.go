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
	// firstLook is how long a page waits for the first part of the first look.
	firstLook = 3 * time.Second
)

// keysQuery is what the list is narrowed to, as the form sends it.
type keysQuery struct {
	Search  string
	Rule    string
	Waiting bool
	Longer  string // as typed
	longer  time.Duration
	Page    int
}

// parseKeysQuery reads the form. The error is for the viewer.
func parseKeysQuery(v url.Values) (q keysQuery, err error) {
	q = keysQuery{Search: v.Get("q"), Rule: v.Get("rule"), Waiting: v.Get("waiting") != "", Longer: v.Get("longer"), Page: 1}
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
	for name, value := range map[string]string{"q": q.Search, "rule": q.Rule, "longer": q.Longer} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Waiting {
		v.Set("waiting", "1")
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
	Found      int // that the form lets pass
	Kept       int // that were kept of the look, if these are not all
	Rows       []keysRow
	From       int
	Prev, Next string // links; empty without one
	Age        time.Duration
	Old        bool // the list is older than a viewer expects
	Partial    bool
	Err        string
	Chart      chart
	Done       *Action // what the viewer has just done
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
	p.render(w, http.StatusOK, "keys", view)
}

func (p *page) keysView(r *http.Request) *keysView {
	q, wrong := parseKeysQuery(r.URL.Query())
	v := &keysView{frame: p.frame(r, "keys", "Keys"), Query: q, From: 1}
	v.Here = "?" + q.values(q.Page)
	v.Live = p.liveURL("keys", q.values(q.Page))
	v.Done = p.done(r)
	if wrong != nil {
		v.Wrong = wrong.Error()
	}
	for _, rule := range p.rules {
		v.Rules = append(v.Rules, rule.Name)
	}
	ctx, cancel := context.WithTimeout(r.Context(), firstLook)
	defer cancel()
	snap := p.sampler.get(ctx)
	if snap == nil {
		v.Err = errNoAnswer.Error()
		return v
	}
	v.Now = time.Now()
	v.Totals, v.Partial = snap.totals, !snap.complete
	if snap.err != nil {
		v.Err = printable.Short(snap.err.Error())
	}
	if !snap.at.IsZero() {
		v.Age = v.Now.Sub(snap.at)
		v.Old = v.Age > 2*minInterval && !v.Partial
	}
	if len(snap.rows) < snap.totals.Locks && snap.complete {
		v.Kept = len(snap.rows)
	}
	looking, done := context.WithTimeout(r.Context(), lookWithin)
	defer done()
	p.fill(looking, v, snap)
	return v
}

// fill takes the rows of one page out of the snapshot, and refreshes them.
func (p *page) fill(ctx context.Context, v *keysView, snap *snapshot) {
	q := v.Query
	skip := (q.Page - 1) * perPage
	shown, found := snap.find(q, v.Now, p.namesFor)
	v.From, v.Found = skip+1, found
	if v.Found > skip+perPage {
		v.Next = v.Base + "?" + q.values(q.Page+1)
	}
	if q.Page > 1 {
		v.Prev = v.Base + "?" + q.values(q.Page-1)
	}
	shown = p.sampler.refresh(ctx, shown, snap.at)
	controls, err := p.controls(ctx)
	if err != nil && v.Err == "" {
		v.Err = printable.Short(err.Error())
	}
	slot := slotOf(v.Now)
	for _, r := range shown {
		line := keysRow{row: r, ID: rowID(r.Key), Name: inspect.InBraces(r.Key), Rule: p.namesFor(scopeOf(r.Key)), Task: p.taskOf(r.Note)}
		if _, _, pause := inner.ControlsFor(controls, r.Key); pause != nil {
			line.Paused = true
		}
		if points := p.sampler.lastHour(r.Key, slot); points != nil {
			line.Spark = spark(points, 120, 20)
		}
		v.Rows = append(v.Rows, line)
	}
	v.Chart = newChart("All locks in the last hour", p.sampler.lastHour("", slot), slot, 600, 100)
}

// rowID is an attribute that is the same for a key as long as it is in the list, so
// that an update moves its row and keeps the focus.
func rowID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}
