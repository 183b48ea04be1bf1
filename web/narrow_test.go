package web

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// manyRows is a look that found so many locks, one in ten of them with a line.
func manyRows(n int, now time.Time) *snapshot {
	snap := &snapshot{at: now, complete: true}
	for i := range n {
		r := row{Key: fmt.Sprintf("automutex:{report:daily|tenant-%06d}", i), Held: 1, Owner: "worker-1:4242", Since: now.Add(-time.Duration(i) * time.Millisecond)}
		if i%10 == 0 {
			r.Waiting = 3
		}
		snap.rows = append(snap.rows, r)
	}
	snap.totals = totals{Locks: n, Held: n, Waiting: 3 * n / 10}
	snap.sort()
	return snap
}

// All viewers with the same filter share one walk over the locks of a snapshot, and see
// what passes, page by page.
func TestNarrowed_shared(t *testing.T) {
	t.Parallel()
	now := time.Now()
	snap := manyRows(1000, now)
	rules := &known{rules: ruleInfos([]fleet.Rule{{Name: "daily", Task: "r"}, {Name: "report:", Task: "r"}})}
	var viewers sync.WaitGroup
	for page := range 10 {
		viewers.Go(func() {
			q := keysQuery{Search: "tenant-0001", Rule: "report:", Page: page/5 + 1}
			for range 20 {
				shown, found, _ := snap.find(q, now, rules)
				if want := [2]int{perPage, 50}[q.Page-1]; found != 100 || len(shown) != want {
					t.Errorf("page %d has %d of %d, want %d of 100", q.Page, len(shown), found, want)
				}
			}
		})
	}
	viewers.Wait()
	if n := len(snap.narrowed.all); n != 1 {
		t.Errorf("%d walks over the locks, want one for all", n)
	}
}

// "Longer than" is decided anew each time, also where the snapshot stays the same.
func TestNarrowed_longer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	snap := manyRows(100, now)
	for _, waiting := range []bool{false, true} {
		q := keysQuery{Waiting: waiting, longer: time.Minute, Page: 1}
		if _, found, _ := snap.find(q, now, nil); found != 0 {
			t.Errorf("waiting %v: %d are held for longer than a minute, want none", waiting, found)
		}
		want := 100
		if waiting {
			want = 10
		}
		if _, found, _ := snap.find(q, now.Add(2*time.Minute), nil); found != want {
			t.Errorf("waiting %v: %d are held for longer two minutes later, want %d", waiting, found, want)
		}
	}
}

// Of several holders the newest one's age is known alone: the row tells none, and is not
// left out, since another holder may hang.
func TestNarrowed_severalHolders(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := newRow(inside.Info{Key: "k", Held: 2, Granted: time.Second}, now)
	if !r.Since.IsZero() {
		t.Errorf("two hold it since %s", r.Since)
	}
	snap := &snapshot{rows: []row{r}}
	if _, found, _ := snap.find(keysQuery{longer: time.Minute, Page: 1}, now, nil); found != 1 {
		t.Error("a lock with two holders is left out")
	}
}

// However many filters viewers type, a snapshot keeps a bounded part of what passes them.
func TestNarrowed_bounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	snap := manyRows(5000, now)
	const filters = 500
	var described []fleet.Rule
	for i := range filters {
		described = append(described, fleet.Rule{Name: "rule-" + strconv.Itoa(i), Task: "r"})
	}
	rules := &known{rules: ruleInfos(described)}
	for _, r := range described {
		if _, found, _ := snap.find(keysQuery{Rule: r.Name, Page: 1}, now, rules); found != len(snap.rows) {
			t.Fatalf("%d pass, want all", found)
		}
	}
	kept := 0
	for by, list := range snap.narrowed.all {
		kept += len(by.rule) + 4*cap(list.rows)
	}
	if most := maxNarrowed + 8*len(snap.rows); kept > most || kept == 0 {
		t.Errorf("%d bytes of %d lists are kept, want at most %d", kept, filters, most)
	}
}

// Each page of a list in another order has the rows that are its in that order, also one far back.
func TestNarrowed_sorted(t *testing.T) {
	t.Parallel()
	const n = 3*firstSorted + 1
	now := time.Now()
	snap := manyRows(n, now)
	place := func(i, by int) int { return i * by % n } // by has no divisor of n
	for i := range snap.rows {
		r := &snap.rows[i]
		r.Key, r.Owner = fmt.Sprintf("key-%04d", place(i, 7)), fmt.Sprintf("owner-%04d", place(i, 11))
		r.Since, r.Until = now.Add(time.Duration(place(i, 13))), now.Add(time.Duration(place(i, 17)))
		if place(i, 13) == n-1 {
			r.Since = time.Time{} // not known: the last
		}
	}
	for name, at := range map[string]func(r row, i int) bool{
		"key":    func(r row, i int) bool { return r.Key == fmt.Sprintf("key-%04d", i) },
		"holder": func(r row, i int) bool { return r.Owner == fmt.Sprintf("owner-%04d", i) },
		"held": func(r row, i int) bool {
			return r.Since.Equal(now.Add(time.Duration(i))) || i == n-1 && r.Since.IsZero()
		},
		"left": func(r row, i int) bool { return r.Until.Equal(now.Add(time.Duration(i))) },
	} {
		for page := 1; page <= n/perPage+1; page++ {
			shown, found, _ := snap.find(keysQuery{Sort: name, Page: page}, now, nil)
			if first := (page - 1) * perPage; found != n || len(shown) != min(perPage, n-first) {
				t.Fatalf("%s, page %d has %d of %d", name, page, len(shown), found)
			}
			for i, r := range shown {
				if !at(r, (page-1)*perPage+i) {
					t.Fatalf("%s, page %d: row %d is %+v", name, page, i, r)
				}
			}
		}
	}
}

// A viewer does not wait for a walk that takes long: it gets what was found so far, and all of it when the walk is over.
func TestNarrowed_partial(t *testing.T) {
	t.Parallel()
	list := &narrowedList{done: make(chan struct{})}
	snap := manyRows(narrowAtOnce+1, time.Now())
	by := narrowing{search: "tenant", sort: "key"}
	snap.narrowed.all = map[narrowing]*narrowedList{by: list}
	list.part = []int32{7, 3}
	q := keysQuery{Search: "tenant", Sort: "key", Page: 1}
	if shown, found, partial := snap.find(q, time.Now(), nil); !partial || found != 2 || len(shown) != 2 || shown[0].Key != snap.rows[7].Key {
		t.Errorf("%d found, partial %v, %+v", found, partial, shown)
	}
	go list.walk(snap.rows, by)
	<-list.done
	if shown, found, partial := snap.find(q, time.Now(), nil); partial || found != len(snap.rows) || len(shown) != perPage {
		t.Errorf("%d found, partial %v", found, partial)
	}
	snap.narrowed = &narrowed{} // and by a walk of its own
	redistest.Eventually(t, patience, func() bool {
		_, found, partial := snap.find(q, time.Now(), nil)
		return !partial && found == len(snap.rows)
	}, "all rows are found")
}

// BenchmarkNarrowed measures one second's update of one viewer of a narrowed list of 100,000
// locks, and of the Rules view, while the look at the locks stays the same.
func BenchmarkNarrowed(b *testing.B) {
	v := serve(b, redistest.Mini(b), Options{Rules: []automutex.Rule{{Task: "report:", On: []string{"tenant"}}, {Task: "mail:"}}})
	now := time.Now()
	snap := manyRows(maxRows, now)
	snap.at = now.Add(time.Hour) // so that no row is refreshed
	for _, form := range []string{"", "q=tenant-0999", "q=*tenant-*99", "rule=mail:", "waiting=1", "longer=1m"} {
		b.Run(form, func(b *testing.B) {
			values, err := url.ParseQuery(form)
			redistest.Must(b, err)
			q, err := parseKeysQuery(values)
			redistest.Must(b, err)
			b.ReportAllocs()
			for b.Loop() {
				view := &keysView{Query: q, frame: frame{Now: now}}
				v.page.fill(context.Background(), view, snap)
				if len(view.Rows) == 0 && form != "rule=mail:" {
					b.Fatal("no row passes")
				}
			}
		})
	}
}
