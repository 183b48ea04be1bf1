package main

import (
	"slices"
	"strings"
)

// goal is a figure that this library is to reach.
type goal struct {
	what    string
	s       *scenario
	point   string // the point's label begins so; empty: each point
	metric  string
	to      string   // the figure is the ratio to this entry's
	toBase  bool     // or to the same entry's at the point's base
	entries []string // the best of these counts; empty: ourDefault
	atLeast bool     // else at most
	limit   float64
	digits  int
	// cause is what is known of why it is short. Shown only where it is.
	cause string
}

const ourDefault = "automutex, default"

var (
	raw        = raws[0].String()
	blpop      = floors[1].String()
	anyOfOurs  = namesOf(ours)
	ourDuplex  = namesOf(ours[:1], ours[2:])
	parkPolicy = []string{guardedBy + "Park"}
)

// What is known to make figures short.
const (
	scriptCost    = "two scripts cost Redis 3.4 and 1.9 µs where raw has a SET of 0.35 and a script of 1.4"
	transportCost = "a pair costs Redis 6 µs where raw has 2, and each argument asks the stack whether it is being written or only measured"
	taskCost      = "the Guard's own work (keying, contexts, the lease's books) takes 8 µs of client CPU a task, and its scripts 3.6 µs more of Redis than raw's"
	memberCost    = "a member of more than 64 bytes (token, owner, note) makes Redis keep the set in its large form; with zset-max-listpack-value 512 it is 230"
	lateStart     = "Redis grants no more; a worker that gets no CPU for a moment starts late, and so beside those that come after it"
	grantCost     = "the release that grants takes Redis 10 µs, the ask before it 7.5; BLPOP and RPUSH take 3 together. In one process the reply wakes the next holder, with one goroutine more to pass; from process to process a message does"
)

// goals are in the order of the scenarios.
var goals = []goal{
	{what: "pairs/s, of raw", s: &pairsScenario, point: "1 goroutine", metric: "rate", to: raw, atLeast: true, limit: 0.9, digits: 2, cause: scriptCost},
	{what: "pairs/s, of raw", s: &pairsScenario, point: "16 ", metric: "rate", to: raw, entries: anyOfOurs, atLeast: true, limit: 1.0, digits: 2, cause: scriptCost},
	{what: "pairs/s, of raw", s: &pairsScenario, point: "64 ", metric: "rate", to: raw, entries: anyOfOurs, atLeast: true, limit: 1.5, digits: 2, cause: transportCost},
	{what: "pairs/s, of raw", s: &pairsScenario, point: "256 ", metric: "rate", to: raw, entries: anyOfOurs, atLeast: true, limit: 1.5, digits: 2, cause: transportCost},

	{what: "hand-offs/s, of BLPOP", s: &turnsScenario, metric: "rate", to: blpop, entries: ourDuplex, atLeast: true, limit: 0.93, digits: 3, cause: grantCost},
	{what: "gap p50, of BLPOP's", s: &turnsScenario, metric: "gap50", to: blpop, entries: ourDuplex, limit: 1.6, digits: 2, cause: grantCost},
	{what: "commands per turn", s: &turnsScenario, metric: "commands", limit: 2.2, digits: 2},
	{what: "Jain's index", s: &turnsScenario, metric: "jain", atLeast: true, limit: 0.99, digits: 3},

	{what: "hand-offs/s, of BLPOP", s: &processesScenario, metric: "rate", to: blpop, entries: ourDuplex, atLeast: true, limit: 0.93, digits: 3, cause: grantCost},
	{what: "gap p50, of BLPOP's", s: &processesScenario, metric: "gap50", to: blpop, entries: ourDuplex, limit: 1.6, digits: 2, cause: grantCost},
	{what: "commands per turn", s: &processesScenario, metric: "commands", limit: 2.2, digits: 2},
	{what: "Jain's index", s: &processesScenario, metric: "jain", atLeast: true, limit: 0.99, digits: 3},
	{what: "longest wait, in rounds", s: &processesScenario, metric: "rounds", limit: 1.5, digits: 2},

	{what: "time to drain, of BLPOP's", s: &drainScenario, metric: "took", to: blpop, entries: ourDuplex, limit: 1.05, digits: 2, cause: grantCost},

	{what: "tasks/s, of raw's", s: &asynqScenario, metric: "rate", to: raw + returns, entries: []string{guardedBy + "Retry"}, atLeast: true, limit: 1, digits: 2, cause: taskCost},

	{what: "Park, of the ideal time", s: &mixedScenario, point: "hot among cold", metric: "ideal", entries: parkPolicy, limit: 1.15, digits: 2},
	{what: "Park, of the time without locks", s: &mixedScenario, point: "20 hot keys", metric: "took", to: noLocks, entries: parkPolicy, limit: 1.6, digits: 2},

	{what: "Redis bytes per held lock", s: &footprintScenario, metric: "key", limit: 200, digits: 0},
	{what: "Redis bytes per held lock", s: &footprintScenario, metric: "key", entries: []string{asTasks.String()}, limit: 200, digits: 0, cause: memberCost},
	{what: "goroutines per held lock", s: &footprintScenario, metric: "goroutines", limit: 0.01, digits: 2},
	{what: "allocations per pair", s: &footprintScenario, metric: "allocs", limit: 30.5, digits: 0},

	{what: "ms after the deadline", s: &deathScenario, metric: "late", limit: 10, digits: 1},
	{what: "commands/s per waiter", s: &deathScenario, metric: "commands", limit: 1.5, digits: 2},

	{what: "Redis' time, of that with one", s: &growthScenario, metric: "redis", toBase: true, limit: 1.5, digits: 2},

	{what: "bytes per lease", s: &leasesScenario, metric: "heap", limit: 2048, digits: 0},
	{what: "CPU of renewing, % of a core", s: &leasesScenario, metric: "cpu", limit: 2, digits: 2},

	{what: "share of the rate, Wait", s: &ratesScenario, metric: "share", entries: []string{guardedBy + "Wait"}, atLeast: true, limit: 0.97, digits: 3},
	{what: "share of the rate, Park", s: &ratesScenario, metric: "share", entries: parkPolicy, atLeast: true, limit: 0.97, digits: 3},
	{what: "starts in the busiest second, Wait", s: &ratesScenario, metric: "busiest", entries: []string{guardedBy + "Wait"}, limit: rateStarts + rateBurst, digits: 0, cause: lateStart},
	{what: "starts in the busiest second, Park", s: &ratesScenario, metric: "busiest", entries: parkPolicy, limit: rateStarts + rateBurst, digits: 0, cause: lateStart},
}

// verdict is a goal at one point.
type verdict struct {
	goal    goal
	point   string
	by      string // the entry of ours that came best
	got     spread
	reached bool
	peer    string // the best of the others that were measured there
	peerGot spread
}

// judge holds the goals against what was measured.
func (r *record) judge() []verdict {
	var verdicts []verdict
	b := &bench{quick: r.Quick}
	for _, g := range goals {
		for _, p := range g.s.points(b) {
			if !strings.HasPrefix(p.label, g.point) || p.label == p.base {
				continue
			}
			mine := g.entries
			if mine == nil {
				mine = []string{ourDefault}
			}
			v := verdict{goal: g, point: p.label}
			var ok bool
			if v.by, v.got, ok = r.best(g, p, mine); !ok {
				continue
			}
			if g.atLeast {
				v.reached = v.got.median >= g.limit
			} else {
				v.reached = v.got.median <= g.limit
			}
			others := slices.DeleteFunc(slices.Clone(g.s.entries(p)), func(name string) bool {
				c, err := contenderNamed(name)
				return strings.HasPrefix(name, "automutex") || name == noLocks || err == nil && c.floor
			})
			v.peer, v.peerGot, _ = r.best(g, p, others)
			verdicts = append(verdicts, v)
		}
	}
	return verdicts
}

// best is which of the entries comes best by the goal's figure. What was not
// done in time is none.
func (r *record) best(g goal, p point, entries []string) (name string, got spread, ok bool) {
	for _, entry := range entries {
		var f spread
		var unfinished, has bool
		switch {
		case g.toBase:
			f, unfinished, has = r.ratio(g.s, p.label, entry, g.metric, p.base, entry)
		case g.to != "":
			f, unfinished, has = r.ratio(g.s, p.label, entry, g.metric, p.label, g.to)
		default:
			f, unfinished, has = r.figure(g.s, p.label, entry, g.metric)
		}
		if !has || unfinished {
			continue
		}
		if !ok || g.atLeast && f.median > got.median || !g.atLeast && f.median < got.median {
			name, got, ok = entry, f, true
		}
	}
	return name, got, ok
}
