package trust

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

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
	key := &linKey{world: w, name: redistest.Name(w.t), limit: []int{1, 1, 1, 2, 3}[dice.IntN(5)]} // no other history has it
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

// run plays until so many steps are checked, or the time is over, or a history is not as it should be: then it says which.
// So many histories are made at once. kinds are those of the steps.
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
