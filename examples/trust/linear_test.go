package trust

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/automutex/automutex/internal/redistest"
)

// Histories of many clients in several processes, of which some die and one hears
// everything late, are those of a lock that does one thing at a time: at most N
// hold it, whoever is told that he holds it does, fences grow, nobody overtakes
// the line, and busy is who finds no slot.
func TestLinear(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		// More at once takes longer: who waits for his goroutine to run has a lease that ends.
		plan := map[string]struct{ steps, atOnce int }{
			redistest.KindReal: {size(150_000, 700_000), 64}, redistest.KindCluster: {size(40_000, 250_000), 24},
			redistest.KindMini: {size(12_000, 50_000), 6},
		}[s.Kind()]
		if !redistest.All() && !*long {
			plan.steps /= 5
		}
		seed := seed(t)
		w := newLinWorld(t, s)
		kinds, verdict := w.run(seed, plan.steps, plan.atOnce, size(5*time.Minute, time.Hour))
		w.close()
		if verdict != "" {
			t.Fatal(verdict)
		}
		for _, kind := range []linKind{linTake, linJoin, linGranted, linBusy, linRelease, linExtend, linBreak, linEnd} {
			if kinds[kind] == 0 {
				t.Errorf("not one %q in these histories", kind)
			}
		}
		if w.crashes.Load() == 0 {
			t.Error("no process has died")
		}
		t.Log(kinds, "crashes", w.crashes.Load())
	})
}

// What the model does not allow: one step after the other, unless times say that
// they overlap. What it allows are the histories of TestLinear.
func TestLinear_model(t *testing.T) {
	t.Parallel()
	type step struct {
		from, to int64 // 0, 0: after all before it
		op       linOp
	}
	take := func(stay, rank int16) linOp { return linOp{kind: linTake, stay: stay, rank: rank} }
	op := func(kind linKind, stay int16) linOp { return linOp{kind: kind, stay: stay, rank: stay} }
	gives := func(stay int16, free int) linOp { return linOp{kind: linRelease, stay: stay, ok: true, free: free} }
	tell := func(kind linKind, stay int16, ok bool) linOp { return linOp{kind: kind, stay: stay, ok: ok} }
	busy := linOp{kind: linBusy}
	for _, c := range []struct {
		name  string
		limit int
		steps []step
		stuck string // the step that has no place
	}{
		{"two hold a mutex", 1, []step{{op: take(1, 1)}, {op: take(2, 2)}}, "take 2"},
		{"three of two", 2, []step{{op: take(1, 1)}, {op: take(2, 2)}, {op: take(3, 3)}}, "take 3"},
		{"a take before the release", 1, []step{{op: take(1, 1)}, {20, 24, take(2, 2)}, {25, 35, gives(1, 1)}}, "take 2"},

		{"busy with nobody there", 1, []step{{op: busy}}, "busy"},
		{"busy with one of two", 2, []step{{op: take(1, 1)}, {op: busy}}, "busy"},
		{"in line with a slot free", 1, []step{{op: op(linJoin, 1)}}, "join 1"},

		{"the second in line first", 1, []step{{op: take(1, 1)}, {op: op(linJoin, 3)}, {op: op(linJoin, 2)},
			{op: gives(1, 0)}, {op: op(linGranted, 2)}}, "granted 2"},
		{"overtaken by a newcomer", 1, []step{{op: take(1, 1)}, {op: op(linJoin, 3)}, {op: gives(1, 0)}, {op: take(2, 2)},
			{op: op(linGranted, 3)}}, "take 2"},
		{"a release that forgets the line", 1, []step{{op: take(1, 1)}, {op: op(linJoin, 2)}, {op: gives(1, 1)},
			{op: op(linGranted, 2)}}, "release 1"},

		{"a release by somebody else", 1, []step{{op: take(1, 1)}, {op: tell(linEnd, 1, false)}, {op: take(2, 2)},
			{op: gives(1, 1)}}, "release 1"},
		{"a release that finds nothing", 1, []step{{op: take(1, 1)}, {op: tell(linRelease, 1, false)}}, "release 1"},
		{"taken before its end", 1, []step{{op: take(1, 1)}, {op: take(2, 2)}, {30, 90, tell(linEnd, 1, false)}}, "take 2"},

		{"extended after its end", 1, []step{{op: take(1, 1)}, {op: tell(linEnd, 1, false)}, {op: tell(linExtend, 1, true)}},
			"extend 1"},
		{"extended after it was broken", 1, []step{{op: take(1, 1)}, {op: tell(linBreak, 1, true)},
			{op: tell(linExtend, 1, true)}}, "extend 1"},
		{"not extended though held", 1, []step{{op: take(1, 1)}, {op: tell(linExtend, 1, false)}}, "extend 1"},
		{"lost though held", 1, []step{{op: take(1, 1)}, {op: op(linLost, 1)}}, "lost 1"},
		{"broken twice", 1, []step{{op: take(1, 1)}, {op: tell(linBreak, 1, true)}, {op: tell(linBreak, 1, true)}},
			"break 1"},
		{"not broken though held", 1, []step{{op: take(1, 1)}, {op: tell(linBreak, 1, false)}}, "break 1"},

		{"a fence that falls", 1, []step{{op: take(1, 2)}, {op: gives(1, 1)}, {op: take(2, 1)}}, "take 1"},
		{"a fence that falls, in a semaphore", 3, []step{{op: take(1, 2)}, {op: take(2, 1)}}, "take 1"},

		{"one free too many", 3, []step{{op: take(1, 1)}, {op: linOp{kind: linAvailable, free: 3}}}, "available"},
		{"one free too few", 3, []step{{op: take(1, 1)}, {op: linOp{kind: linAvailable, free: 1}}}, "available"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var history []porcupine.Operation
			for i, s := range c.steps {
				if s.from == 0 {
					s.from = int64(10 * (i + 1))
					s.to = s.from + 5
				}
				history = append(history, porcupine.Operation{ClientId: i, Input: &s.op, Call: s.from, Return: s.to})
			}
			verdict := linVerdict(c.limit, history)
			if !strings.Contains(verdict, "not linearizable") || !strings.Contains(verdict, `no place for "`+c.stuck) {
				t.Errorf("%q is to have no place: %q", c.stuck, verdict)
			}
		})
	}
}

// step is one thing that a client does, and what comes of it.
func (c *linClient) step() {
	w := c.key.world
	at := w.lasting[c.dice.IntN(len(w.lasting))]
	switch n := c.dice.IntN(100); {
	case n < 4:
		c.look(at)
		return
	case n < 8:
		c.breakOne(at)
		return
	case n < 20:
		at = w.mortal.Load()
	case n < 23 && w.slow != nil:
		at = w.slow
	}
	// Those who stay away past their deadline have short leases, as have those
	// that die: others wait for their ends.
	terms, stay := linTerms{ttl: 10 * time.Second, renew: true}, c.dice.IntN(100)
	switch {
	case at.wire != nil:
		terms.ttl = 200 * time.Millisecond
	case at == w.slow:
		terms = linTerms{ttl: 200 * time.Millisecond}
		stay = stay * 6 / 100 // past its deadline, or away
	case stay < 6:
		terms = linTerms{ttl: 100 * time.Millisecond}
	case stay < 12:
		terms.ttl = 200 * time.Millisecond
	}
	// The two forms of a mutex meet on one key: each holder chooses its own.
	terms.fenced = c.key.limit > 1 || c.dice.IntN(2) == 0
	var taken *linStayed
	switch n := c.dice.IntN(100); {
	case n < 35 && at != w.slow:
		taken = c.try(at, terms)
	case n < 45:
		taken = c.wait(at, terms, time.Duration(1+c.dice.IntN(5))*time.Millisecond) // gives up
	default:
		taken = c.wait(at, terms, 20*time.Second)
	}
	if taken == nil {
		return
	}
	switch {
	case stay < 2: // never heard of again
		return
	case stay < 4: // too late, and it knows
		c.work(taken, 2*terms.ttl)
	case stay < 6: // about too late
		c.work(taken, terms.ttl-time.Duration(c.dice.IntN(3000))*time.Microsecond)
	case stay < 8: // long enough to be renewed
		c.work(taken, terms.ttl/2)
	case stay < 30:
		c.work(taken, time.Duration(c.dice.IntN(1500))*time.Microsecond)
	}
	if c.dice.IntN(10) < 2 {
		c.extend(taken, terms.ttl+time.Duration(c.dice.IntN(50))*time.Millisecond)
	}
	c.release(taken)
}

// play has some clients take turns at random, each so many steps.
func (w *linWorld) play(seed uint64, steps int) (*linKey, []*linRecord) {
	dice := rand.New(rand.NewPCG(seed, 0))
	// no other history has it
	key := &linKey{world: w, name: redistest.Name(w.t), limit: []int{1, 1, 1, 2, 3}[dice.IntN(5)]}
	records := make([]*linRecord, 3+dice.IntN(4))
	var wg sync.WaitGroup // ends when all have made their steps; each is bounded
	for i := range records {
		c := &linClient{key: key, number: i, dice: rand.New(rand.NewPCG(seed, uint64(i)))}
		records[i] = &c.linRecord
		wg.Go(func() {
			for range steps {
				c.step()
			}
		})
	}
	wg.Wait()
	return key, records
}

// check holds the history of a lock against the model, and gives the kinds of its steps.
func (k *linKey) check(records []*linRecord) (kinds map[linKind]int, verdict string) {
	for _, s := range k.stays {
		if s.dead() {
			<-s.site.gone // its deadline moves no more
		}
	}
	history, kinds := linHistory(records), map[linKind]int{}
	for _, op := range history {
		kinds[op.Input.(*linOp).kind]++
	}
	if verdict = linVerdict(k.limit, history); verdict != "" {
		verdict = fmt.Sprintf("a lock of %d, %d clients: %s", k.limit, len(records), verdict)
	}
	return kinds, verdict
}

// run plays until so many steps are checked, or the time is over, or a history is not as it should be: then it says
// which. So many histories are made at once. kinds are those of the steps.
func (w *linWorld) run(seed uint64, steps, atOnce int, within time.Duration) (kinds map[linKind]int, verdict string) {
	var mu sync.Mutex // guards kinds, verdict and what follows
	next, checked, end := seed, 0, time.Now().Add(within)
	kinds = map[linKind]int{}
	var wg sync.WaitGroup // ends when there is no more to do; a history takes seconds
	for range atOnce {
		wg.Go(func() {
			for {
				mu.Lock()
				next += 1 << 20
				seed, over := next, verdict != "" || checked >= steps || time.Now().After(end)
				mu.Unlock()
				if over {
					return
				}
				key, records := w.play(seed, 30)
				found, says := key.check(records)
				mu.Lock()
				verdict = cmp.Or(verdict, says)
				for kind, n := range found {
					kinds[kind] += n
					checked += n
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return kinds, verdict
}
