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
	// sameTransport: the best peer is looked for among those over the same transport.
	sameTransport bool
	// native: the goal counts only on a server that compares and deletes by itself; scripted: only on another one.
	native, scripted bool
	// cause is what is known of why it is short. Shown only where it is.
	cause string
}

const ourDefault = "automutex, default"

var (
	raw        = raws[0].String()
	rawNative  = rawNatives[0].String()
	blpop      = floors[1].String()
	ourDuplex  = namesOf(ours[:1], ours[2:])
	parkPolicy = []string{guardedBy + "Park"}
	ordered    = []string{guardedBy + inOrder, guardedBy + inOrder + atFront}
)

// What is known to make figures short.
const (
	pairCost      = "Redis takes up to a third longer than for raw, for a longer value and a longer script; the client spends about 3 µs more a pair: on the token, on the books of the renewer, on bounds for each exchange, and on twice the bytes to collect"
	transportCost = "each argument looks at the stack, to tell whether it is being written or only measured; each command has a future and a bound on its wait, where raw waits in the transport"
	taskCost      = "the Guard's own work for a task: keying, contexts, events and the lease's books"
	hotKeysCost   = "no task parks here, and Wait takes as long: two busy cores pay for each lock, and raw that polls is hardly faster. An ask that joins the line and a release that grants take Redis 17 µs, raw's pair 4 to 6"
	refreshCost   = "each waiter asks once a second, and two such rounds fall into the 1.3 to 2 s that the dead holder's lease still lasts"
	lateStart     = "Redis grants no more; a worker that gets no CPU for a moment starts late, and so beside those that come after it"
	grantCost     = "the release that grants takes Redis 10 µs, the ask before it 7.5; BLPOP and RPUSH take 3 together. In one process the reply wakes the next holder, with one goroutine more to pass; from process to process a message does"
)

// goals are in the order of the scenarios.
var goals = []goal{
	{what: "Redis' time of a pair, of raw's", s: &pairsScenario, metric: "redis", to: raw, limit: 1.15, digits: 2, scripted: true},
	{what: "Redis' time of a pair, of raw's with its script", s: &pairsScenario, metric: "redis", to: raw, limit: 0.4, digits: 2, native: true},
	{what: "Redis' time of a pair, of raw's with DELEX", s: &pairsScenario, metric: "redis", to: rawNative, limit: 1.15, digits: 2, native: true},
	{what: "pairs/s, of raw with its script", s: &pairsScenario, metric: "rate", to: raw, atLeast: true, limit: 1, digits: 2, native: true, cause: pairCost},
	{what: "pairs/s, of raw", s: &pairsScenario, point: "1 goroutine", metric: "rate", to: raw, atLeast: true, limit: 0.95, digits: 2, cause: pairCost, scripted: true},
	{what: "pairs/s, of raw", s: &pairsScenario, point: "16 ", metric: "rate", to: raw, atLeast: true, limit: 0.95, digits: 2, cause: pairCost, scripted: true},
	{what: "pairs/s, of raw", s: &pairsScenario, point: "64 ", metric: "rate", to: raw, atLeast: true, limit: 0.95, digits: 2, cause: pairCost, scripted: true},
	{what: "pairs/s, of raw", s: &pairsScenario, point: "256 ", metric: "rate", to: raw, atLeast: true, limit: 0.95, digits: 2, cause: pairCost, scripted: true},
	ofRawOver("auto-pipeline", "16 "),
	ofRawOver("auto-pipeline", "64 "),
	ofRawOver("auto-pipeline", "256 "),
	ofRawOver("auto-pipeline, full duplex", "16 "),
	ofRawOver("auto-pipeline, full duplex", "64 "),
	ofRawOver("auto-pipeline, full duplex", "256 "),
	{what: "allocations per pair", s: &pairsScenario, point: "1 goroutine", metric: "allocs", limit: 22.5, digits: 0},

	{what: "hand-offs/s, of BLPOP", s: &turnsScenario, metric: "rate", to: blpop, entries: ourDuplex, atLeast: true, limit: 0.93, digits: 3, cause: grantCost},
	{what: "gap p50, of BLPOP's", s: &turnsScenario, metric: "gap50", to: blpop, entries: ourDuplex, limit: 1.6, digits: 2, cause: grantCost},
	{what: "commands per turn", s: &turnsScenario, metric: "commands", limit: 2.1, digits: 2},
	{what: "Jain's index", s: &turnsScenario, metric: "jain", atLeast: true, limit: 0.99, digits: 3},

	{what: "hand-offs/s, of BLPOP", s: &processesScenario, metric: "rate", to: blpop, entries: ourDuplex, atLeast: true, limit: 0.93, digits: 3, cause: grantCost},
	{what: "gap p50, of BLPOP's", s: &processesScenario, metric: "gap50", to: blpop, entries: ourDuplex, limit: 1.6, digits: 2, cause: grantCost},
	{what: "commands per turn", s: &processesScenario, metric: "commands", limit: 2.1, digits: 2},
	{what: "Jain's index", s: &processesScenario, metric: "jain", atLeast: true, limit: 0.99, digits: 3},
	{what: "longest wait, in rounds", s: &processesScenario, metric: "rounds", limit: 1.5, digits: 2},

	{what: "time to drain, of BLPOP's", s: &drainScenario, metric: "took", to: blpop, entries: ourDuplex, limit: 1.05, digits: 2, cause: grantCost},

	{what: "client CPU of a task, of raw's", s: &asynqScenario, metric: "cpu", to: raw + returns, entries: []string{guardedBy + "Retry"}, limit: 1.08, digits: 2, cause: taskCost},
	{what: "Redis' time of a task, of raw's", s: &asynqScenario, metric: "redis", to: raw + returns, entries: []string{guardedBy + "Retry"}, limit: 1.08, digits: 2},
	{what: "tasks/s, of raw's", s: &asynqScenario, metric: "rate", to: raw + returns, entries: []string{guardedBy + "Retry"}, atLeast: true, limit: 0.96, digits: 2, cause: taskCost},

	{what: "Park, of the ideal time", s: &mixedScenario, point: "hot among cold", metric: "ideal", entries: parkPolicy, limit: 1.15, digits: 2},
	{what: "Park, of the time without locks", s: &mixedScenario, point: "20 hot keys", metric: "took", to: noLocks, entries: parkPolicy, limit: 1.35, digits: 2, cause: hotKeysCost},

	{what: "Redis bytes per held lock", s: &footprintScenario, metric: "key", limit: 260, digits: 0},
	{what: "Redis bytes per held lock", s: &footprintScenario, metric: "key", entries: []string{asTasks.String()}, limit: 260, digits: 0},
	{what: "goroutines per held lock", s: &footprintScenario, metric: "goroutines", limit: 0.01, digits: 2},

	{what: "ms after the deadline", s: &deathScenario, metric: "late", limit: 10, digits: 1},
	{what: "commands/s per waiter", s: &deathScenario, metric: "commands", limit: 1.5, digits: 2, cause: refreshCost},

	{what: "Redis' time, of that with one", s: &growthScenario, metric: "redis", toBase: true, limit: 1.5, digits: 2},

	{what: "bytes per lease", s: &leasesScenario, metric: "heap", limit: 2048, digits: 0},
	{what: "CPU of renewing, % of a core", s: &leasesScenario, metric: "cpu", limit: 2, digits: 2},

	{what: "share of the rate, Wait", s: &ratesScenario, metric: "share", entries: []string{guardedBy + "Wait"}, atLeast: true, limit: 0.97, digits: 3},
	{what: "share of the rate, Park", s: &ratesScenario, metric: "share", entries: parkPolicy, atLeast: true, limit: 0.97, digits: 3},
	{what: "starts in the busiest second, Wait", s: &ratesScenario, metric: "busiest", entries: []string{guardedBy + "Wait"}, limit: rateStarts + rateBurst, digits: 0, cause: lateStart},
	{what: "starts in the busiest second, Park", s: &ratesScenario, metric: "busiest", entries: parkPolicy, limit: rateStarts + rateBurst, digits: 0, cause: lateStart},

	{what: "tasks/s in order, of Park's", s: &orderScenario, point: "one key", metric: "rate", to: parkPolicy[0], entries: ordered, atLeast: true, limit: 0.9, digits: 2},
	{what: "tasks/s in order, of Park's", s: &orderScenario, point: "failing", metric: "rate", to: parkPolicy[0], entries: ordered, atLeast: true, limit: 0.8, digits: 2},
	{what: "gap p95, in poll intervals", s: &orderScenario, point: "failing", metric: "intervals", entries: ordered, limit: 2, digits: 2},
	{what: "tasks/s of other keys, of those without a blocked one", s: &orderScenario, point: "blocked", metric: "rate", to: ordered[0] + unblocked, entries: ordered, atLeast: true, limit: 0.95, digits: 2},
	{what: "commands/s for 10,000 blocked tasks", s: &orderScenario, point: "blocked", metric: "commands", entries: ordered, limit: 5, digits: 2},
	{what: "time of an Enqueue, of asynq's", s: &orderScenario, point: "Enqueue", metric: "of", entries: ordered, limit: 2.2, digits: 2},
	{what: "Redis bytes per queued task", s: &orderScenario, point: "Enqueue", metric: "bytes", entries: ordered, limit: 200, digits: 0},
}

// ofRawOver is the goal for pairs over an auto-pipeline of that setting.
func ofRawOver(setting, point string) goal {
	return goal{
		what: "pairs/s, of raw over the same " + setting, s: &pairsScenario, point: point, metric: "rate", to: raws[0].name + ", " + setting,
		entries: []string{"automutex, " + setting}, sameTransport: true, atLeast: true, limit: 0.9, digits: 2, cause: transportCost,
	}
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
	native := r.has(&pairsScenario, rawNative)
	for _, g := range goals {
		if native && g.scripted || !native && g.native {
			continue
		}
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
				c := contenderNamed(name)
				return strings.HasPrefix(name, "automutex") || name == noLocks || name == g.to ||
					c != nil && (c.floor || g.sameTransport && !strings.HasSuffix(g.to, ", "+c.setting))
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
