package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// hottest is how many keys of a kind the Overview shows.
	hottest = 6
	// topKeys is how many keys of a rule are named.
	topKeys = 3
	// perPage is how many locks a page of the list has.
	perPage = 50
)

// overview is the first page: what is hot now, and the way to the list behind it.
type overview struct {
	frame
	Totals                 totals
	Waited, Longest, Gates []row // the longest lines; held longest, of those with one holder; the first gates to open
	Orders                 []control.Order
	Plot                   string // of the last hour, as JSON
}

func (p *page) overview(r *http.Request) *overview {
	v := &overview{frame: p.frame(r, "overview", "Overview", "")}
	v.View, v.Here = "", ""
	ctx, cancel := context.WithTimeout(r.Context(), p.within.redis)
	defer cancel()
	s, err := p.snapshot(ctx)
	if v.lacks(err); s == nil {
		return v
	}
	v.Orders, err = p.controls(ctx)
	v.lacks(err)
	for i, r := range s.rows {
		if r.Line > 0 && i < hottest {
			v.Waited = append(v.Waited, r)
		}
		if r.held() > 0 {
			v.Longest = keepFirst(v.Longest, r, hottest, func(a, b row) int { return cmp.Compare(b.held(), a.held()) })
		}
		if r.Gate != nil {
			v.Gates = keepFirst(v.Gates, r, hottest, func(a, b row) int { return a.Gate.Opens.Compare(b.Gate.Opens) })
		}
	}
	v.Totals, v.Age = s.totals, s.age()
	v.Plot = p.hour.json()
	return v
}

// keysQuery is what the list is narrowed to, as the form sends it.
type keysQuery struct {
	Search          string
	Rule            string
	Waiting, Closed bool
	Longer          string // as typed
	Sort            string // key, held or ends; otherwise the most contended come first
	longer          time.Duration
	Page            int
	typed           url.Values
}

// parseKeysQuery reads the form. The error is for the viewer.
func parseKeysQuery(v url.Values) (q keysQuery, err error) {
	q = keysQuery{Search: v.Get("q"), Rule: v.Get("rule"), Waiting: v.Get("waiting") != "", Closed: v.Get("closed") != "",
		Longer: v.Get("longer"), Sort: v.Get("sort"), Page: 1, typed: v}
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

func (q keysQuery) values(page int) string {
	v := url.Values{}
	for _, name := range []string{"q", "rule", "longer", "waiting", "closed", "sort"} {
		if value := q.typed.Get(name); value != "" {
			v.Set(name, value)
		}
	}
	if page > 1 {
		v.Set("page", strconv.Itoa(page))
	}
	return v.Encode()
}

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
	Prev, Next string      // links; empty without one
	Tasks      []foundTask // those whose ID is what was searched for
}

type keysRow struct {
	row
	Rule   string
	Paused bool // by an operator
}

func (p *page) keys(w http.ResponseWriter, r *http.Request) {
	v := p.keysView(r)
	v.Tasks = p.findTask(r.Context(), v.Query.Search)
	p.render(w, http.StatusOK, "keys", v)
}

func (p *page) keysView(r *http.Request) *keysView {
	q, wrong := parseKeysQuery(r.URL.Query())
	v := &keysView{frame: p.frame(r, "keys", "Keys", q.values(q.Page)), Query: q}
	if wrong != nil {
		v.Wrong = wrong.Error()
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.within.redis)
	defer cancel()
	s, err := p.snapshot(ctx)
	if v.lacks(err); s == nil {
		return v
	}
	known := p.rulesNow(ctx)
	for _, rule := range known.rules {
		v.Rules = append(v.Rules, rule.Name)
	}
	controls, err := p.controls(ctx)
	v.lacks(err)
	v.Totals, v.Age = s.totals, s.age()
	if len(s.rows) < s.Locks {
		v.Kept = len(s.rows)
	}
	found := q.find(s.rows, known)
	skip := min((q.Page-1)*perPage, len(found))
	v.Found, v.From = len(found), skip+1
	if v.Found > skip+perPage {
		v.Next = v.Base + "keys?" + q.values(q.Page+1)
	}
	if q.Page > 1 {
		v.Prev = v.Base + "keys?" + q.values(q.Page-1)
	}
	for _, r := range found[skip:min(skip+perPage, len(found))] {
		line := keysRow{row: r, Rule: p.rulesOf(r.Key)}
		_, in := control.For(controls, r.Key)
		line.Paused = in.Paused
		v.Rows = append(v.Rows, line)
	}
	return v
}

// find gives the rows that the form lets pass; they may be those of the snapshot.
func (q keysQuery) find(rows []row, k *known) (found []row) {
	if q.values(1) == "" {
		return rows
	}
	for _, r := range rows {
		if q.Waiting && r.Line == 0 || q.Closed && r.Gate == nil || q.Search != "" && !r.matches(q.Search) {
			continue
		}
		if q.longer > 0 && r.Held <= 1 && r.held() <= q.longer { // of several holders any may be as old
			continue
		}
		if q.Rule != "" && !slices.Contains(k.namesFor(inspect.ScopeOf(r.Key)), q.Rule) {
			continue
		}
		found = append(found, r)
	}
	switch q.Sort {
	case "key":
		slices.SortFunc(found, func(a, b row) int { return strings.Compare(a.Key, b.Key) })
	case "held":
		slices.SortStableFunc(found, func(a, b row) int { return cmp.Compare(b.held(), a.held()) })
	case "ends":
		slices.SortStableFunc(found, func(a, b row) int { return cmp.Compare(a.endsIn(), b.endsIn()) })
	}
	return found
}

func (r row) matches(pattern string) bool {
	return inspect.Matches(pattern, control.Bare(r.Key)) || inspect.Matches(pattern, r.Key) || r.IsHeldBy(pattern) ||
		r.Next != nil && inspect.Matches(pattern, r.Next.Task)
}

// blockedView lists ordered keys whose next task does not run and keeps others waiting.
type blockedView struct {
	frame
	Sort string // behind, of those shown; otherwise as earlierHead has it
	Rows []blockedRow
	More int // blocked keys that are not shown
}

func (p *page) blockedView(r *http.Request) *blockedView {
	sort, query := sortOf(r)
	v := &blockedView{frame: p.frame(r, "blocked", "Blocked", query), Sort: sort}
	ctx, cancel := context.WithTimeout(r.Context(), p.within.redis)
	defer cancel()
	s, err := p.snapshot(ctx)
	if v.lacks(err); s == nil {
		return v
	}
	p.rulesNow(ctx)
	var heads []row
	for _, r := range s.rows {
		if r.mayBlock() {
			heads = keepFirst(heads, r, mostHeads, earlierHead)
		}
	}
	v.More = max(0, s.Blocked-len(heads))
	v.Rows = p.blockedOf(ctx, heads)
	if sort == "behind" {
		behind := func(a, b blockedRow) int { return cmp.Compare(b.Next.Head.Queued, a.Next.Head.Queued) }
		slices.SortStableFunc(v.Rows, behind)
	}
	v.Age = s.age()
	return v
}

// sortOf returns by which column a table sorts, and the query that says so.
func sortOf(r *http.Request) (sort, query string) {
	if sort = r.URL.Query().Get("sort"); sort == "behind" || ruleSorts[sort] != nil {
		return sort, "sort=" + sort
	}
	return "", ""
}

// ruleSorts are the columns by which the list of rules sorts.
var ruleSorts = map[string]func(a, b ruleRow) int{
	"held":    func(a, b ruleRow) int { return cmp.Compare(b.Now.Held, a.Now.Held) },
	"line":    func(a, b ruleRow) int { return cmp.Compare(b.Now.Line, a.Now.Line) },
	"longest": func(a, b ruleRow) int { return cmp.Compare(b.Oldest.held(), a.Oldest.held()) },
}

// rulesView is what each rule says, and what its locks do now.
type rulesView struct {
	frame
	Sort    string // of ruleSorts; otherwise in the order of the program or the file
	Rules   []ruleRow
	Orders  []control.Order
	Buttons []button // of orders for what is typed
}

type ruleRow struct {
	fleet.Rule
	Limit   string
	Scope   string // the target of orders
	Now     totals
	Oldest  row   // that one holder has had longest
	Top     []row // its keys with a line, the most contended first
	Limited bool  // by an operator
	IsPause bool
	Buttons []button // of orders for Scope
}

func (p *page) rulesView(r *http.Request) *rulesView {
	sort, query := sortOf(r)
	v := &rulesView{frame: p.frame(r, "rules", "Rules", query), Sort: sort, Buttons: buttonsFor("", nil)}
	ctx, cancel := context.WithTimeout(r.Context(), p.within.redis)
	defer cancel()
	var err error
	v.Orders, err = p.controls(ctx)
	v.lacks(err)
	known := p.rulesNow(ctx)
	byName := map[string]*ruleRow{}
	v.Rules = make([]ruleRow, len(known.rules)) // filled in place: byName points into it
	for i, rule := range known.rules {
		v.Rules[i] = p.newRuleRow(rule, v.Orders)
		byName[rule.Name] = &v.Rules[i]
	}
	s, err := p.snapshot(ctx)
	if v.lacks(err); s == nil {
		return v
	}
	v.Age = s.age()
	for _, r := range s.rows {
		for _, name := range known.namesFor(inspect.ScopeOf(r.Key)) {
			its := byName[name]
			its.Now = its.Now.with(r)
			if r.held() > its.Oldest.held() {
				its.Oldest = r
			}
			if r.Line > 0 && len(its.Top) < topKeys {
				its.Top = append(its.Top, r)
			}
		}
	}
	if order := ruleSorts[sort]; order != nil {
		slices.SortStableFunc(v.Rules, order)
	}
	return v
}

func (p *page) newRuleRow(rule fleet.Rule, orders []control.Order) ruleRow {
	r := ruleRow{Rule: rule, Limit: rule.Limit}
	// if each type has its own, that of the type that the rule names, or "report:" for all of them
	r.Scope, _ = rule.ScopeText()
	its, now := control.For(orders, inspect.Key(p.o.Prefix, r.Scope))
	if r.IsPause = now.Paused; now.Limit > 0 && !rule.InOrder { // ordered keys have one at a time in any case
		r.Limit, r.Limited = strconv.Itoa(now.Limit), true
	}
	if r.Scope != "" {
		r.Buttons = buttonsFor(p.engine.Controls().Typed(r.Scope), its)
	}
	return r
}
