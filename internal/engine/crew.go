package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// crew decides which waits of a server's workers end, so that no wait takes a worker that another key's task could
// have. Its methods are functions of what comes and of the time, see testdata/crew.txt. Workers.mu guards it.
//
// A server is full when all its workers have been busy for BehindAfter, gaps included. Then the newest wait is told to
// end. If tasks come that nobody called, asynq has more tasks than the server can take: the server is behind, and all
// waits are told to end. A server is full until a worker has been free for gap and no task has come meanwhile: asynq
// hands tasks out one after the other while its queue has some, and pauses for longer than gap when it has none.
//
// Some waits are kept: those that feed keys whose slots turn over faster than a parked task is called and comes. While
// the server is behind, they hold at most half of the workers, and leave one that neither works nor waits. A server of
// ten workers, five of which work for ten minutes, keeps four waits: the tenth worker goes through the queue. While the
// server is full and not behind, what comes are called tasks; then kept waits end one each BehindAfter.
type crew struct {
	limit      int
	gap, usual time.Duration

	busy    int
	working int             // of these, those that work, or wait for as long as they like
	waiting []*WorkerWait   // in the order in which they began to wait
	paces   map[string]pace // by key

	since   time.Time                    // all are busy since then, gaps included; zero: they are not
	free    time.Time                    // since when one is free and no task has come; zero: none is
	leaving int                          // waits that were told to end, and whose workers are not free yet
	tellAt  time.Time                    // while the server is full: when the next kept wait may be told to end
	shares  map[string]map[string]*share // by scope and key: who borrows
	coming  int                          // called work that is on its way to this server
	lends   bool                         // a worker has become idle since it was last lent

	fresh   int       // how many tasks that nobody called have come since the server is full, less called ones
	freshAt time.Time // when the last of these came
}

// pace is how fast the slots of a key turn over on this server, and how fast what is parked comes.
type pace struct {
	last  time.Time     // the last grant
	every time.Duration // from grant to grant, a moving average; 0: none was measured
	comes time.Duration // from call to arrival, a moving average; 0: none was measured
}

// average moves a moving average on.
func average(before, measured time.Duration) time.Duration {
	if before == 0 {
		return max(measured, 1)
	}
	return before + (measured-before)/8
}

func (c *crew) started(now time.Time) {
	c.busy++
	c.free = now
}

func (c *crew) ended(worked bool, now time.Time) {
	if c.busy--; c.free.IsZero() {
		c.free = now
	}
	c.lends = true
	if worked {
		c.working--
	} else {
		c.leaving = max(0, c.leaving-1)
	}
}

// endWait removes a wait; granted: it has the lock.
func (c *crew) endWait(me *WorkerWait, granted bool) {
	c.waiting = slices.DeleteFunc(c.waiting, func(other *WorkerWait) bool { return other == me })
	if granted && me.told {
		c.leaving = max(0, c.leaving-1)
	}
}

// came: a fresh task has the next wait of a full server end at once, and several, called ones between them or not, say
// that the server is behind.
func (c *crew) came(key string, sinceCall time.Duration, now time.Time) {
	switch {
	case sinceCall >= 0:
		c.fresh = max(0, c.fresh-1)
		if p, known := c.paces[key]; known {
			p.comes = average(p.comes, sinceCall)
			c.paces[key] = p
		}
	case c.isFull(now):
		c.fresh, c.freshAt, c.tellAt = min(c.fresh+2, maxFresh), now, now
	}
}

func (c *crew) granted(key string, now time.Time) {
	p, known := c.paces[key]
	if every := now.Sub(p.last); known && every < paceLasts {
		p.every = average(p.every, every)
	} else {
		p.every = 0
		maps.DeleteFunc(c.paces, func(_ string, old pace) bool { return now.Sub(old.last) >= paceLasts })
	}
	if c.paces == nil {
		c.paces = make(map[string]pace)
	}
	p.last = now
	c.paces[key] = p
}

func (c *crew) mayWait(key string, place int64, now time.Time) bool {
	if !c.isBehind(now) || c.keeps(key, now) == 0 {
		return !c.isBehind(now)
	}
	me := &WorkerWait{Key: key, Place: place}
	return slices.Contains(c.kept(append(slices.Clone(c.waiting), me), c.room(), now), me)
}

// settle ends the time in which all workers are busy if one has been free for long enough. It comes before all else.
func (c *crew) settle(now time.Time) {
	if !c.since.IsZero() && !c.free.IsZero() && now.Sub(c.free) >= c.gap {
		c.since, c.tellAt, c.fresh, c.lends = time.Time{}, time.Time{}, 0, true
	}
}

func (c *crew) isFull(now time.Time) bool {
	return !c.since.IsZero() && now.Sub(c.since) >= BehindAfter
}

func (c *crew) isBehind(now time.Time) bool { return c.fresh > 2 && now.Sub(c.freshAt) < BehindAfter }

// follows returns the waits that are to be told to end, those that are to ask again, and a key whose parked work may
// borrow.
func (c *crew) follows(now time.Time) (leave, ask []*WorkerWait, check string) {
	if c.busy >= c.limit {
		c.free = time.Time{}
		if c.since.IsZero() {
			c.since = now
		}
	}
	if c.isFull(now) && len(c.waiting) > 0 {
		leave = c.giveWay(now)
	}
	if c.lends && len(c.shares) > 0 && !c.isBehind(now) {
		ask, check = c.borrowers()
	}
	c.lends = false
	return leave, ask, check
}

// giveWay returns the waits of a full server that are to end.
func (c *crew) giveWay(now time.Time) []*WorkerWait {
	leave := c.without(c.kept(c.waiting, c.room(), now))
	if len(leave) > 0 && !c.isBehind(now) {
		leave = c.oneOf(leave, now)
	}
	leave = slices.DeleteFunc(leave, func(wait *WorkerWait) bool { return wait.told })
	for _, wait := range leave {
		wait.told = true
	}
	c.leaving += len(leave)
	return leave
}

// oneOf returns the newest of the waits that no key needs. If there is none, it returns the newest of leave, one each
// BehindAfter. Nobody is told while a worker is free, or will be.
func (c *crew) oneOf(leave []*WorkerWait, now time.Time) []*WorkerWait {
	if !c.free.IsZero() || c.leaving > 0 {
		return nil
	}
	if needless := c.without(c.kept(c.waiting, c.limit, now)); len(needless) > 0 {
		leave = needless
	} else if c.tellAt.After(now) {
		return nil
	}
	c.tellAt = now.Add(BehindAfter)
	newest := leave[len(leave)-1]
	for _, wait := range leave {
		// If another one of an ordered key parked, those behind it would wait in their workers until it is back.
		if wait.Key == newest.Key && wait.Place > newest.Place {
			newest = wait
		}
	}
	return []*WorkerWait{newest}
}

// room is how many waits are kept at most while the server is behind.
func (c *crew) room() int { return min(c.limit/2, c.limit-1-c.working) }

// kept returns those of the waits that need not end, so many at most. Of a key they are those that come first.
func (c *crew) kept(waits []*WorkerWait, most int, now time.Time) (kept []*WorkerWait) {
	left := map[string]int{} // by key: how many more it keeps
	byPlace := func(a, b *WorkerWait) int { return cmp.Compare(a.Place, b.Place) }
	for _, wait := range slices.SortedStableFunc(slices.Values(waits), byPlace) {
		if _, known := left[wait.Key]; !known {
			left[wait.Key] = c.keeps(wait.Key, now)
		}
		if !wait.told && left[wait.Key] > 0 && len(kept) < most {
			left[wait.Key]--
			kept = append(kept, wait)
		}
	}
	return kept
}

// without returns the waits that are not kept, in the order in which they began.
func (c *crew) without(kept []*WorkerWait) []*WorkerWait {
	return slices.DeleteFunc(slices.Clone(c.waiting), func(wait *WorkerWait) bool { return slices.Contains(kept, wait) })
}

// keeps returns how many waits feed the key's slots while a parked task is called and comes. A slot that has not turned
// over for that long is behind a task that runs long: then the key keeps none.
func (c *crew) keeps(key string, now time.Time) int {
	p := c.paces[key]
	every, comes := max(p.every, now.Sub(p.last)), cmp.Or(p.comes, c.usual)
	if p.every == 0 || every >= comes {
		return 0
	}
	return int((comes + every - 1) / every)
}

// next returns after how long time alone changes something: the server is full, or is so no more, or a kept wait has
// lasted too long. 0: it does not.
func (c *crew) next(now time.Time) time.Duration {
	switch {
	case c.since.IsZero() || len(c.waiting) == 0:
		return 0
	case !c.free.IsZero():
		return c.free.Add(c.gap).Sub(now)
	case !c.isFull(now):
		return c.since.Add(BehindAfter).Sub(now)
	}
	return BehindAfter
}
