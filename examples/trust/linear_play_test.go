package trust

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

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

// newLinKey gives a lock that no other history has.
func (w *linWorld) newLinKey(limit int) *linKey {
	return &linKey{world: w, name: redistest.Name(w.t), limit: limit}
}

func (k *linKey) client(number int, seed uint64) *linClient {
	return &linClient{key: k, number: number, dice: rand.New(rand.NewPCG(seed, uint64(number)))}
}

// play has some clients take turns at random, each so many steps.
func (w *linWorld) play(seed uint64, steps int) (*linKey, []*linRecord) {
	dice := rand.New(rand.NewPCG(seed, 0))
	key := w.newLinKey([]int{1, 1, 1, 2, 3}[dice.IntN(5)])
	records := make([]*linRecord, 3+dice.IntN(4))
	var wg sync.WaitGroup // ends when all have made their steps; each is bounded
	for i := range records {
		c := key.client(i, seed)
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

// linDeadTTL is the length of the lease that a waiter in deathwatch asks for.
const linDeadTTL = time.Second

// deathwatch has one die in line, and the lock held for so long that nobody may
// take the dead for waiting any more: what is free then is free.
func (w *linWorld) deathwatch(seed uint64) (*linKey, []*linRecord) {
	key := w.newLinKey(1)
	holder, victim, other := key.client(0, seed), key.client(1, seed), key.client(2, seed)
	taken := holder.try(w.lasting[0], linTerms{ttl: time.Second, renew: true})
	site, inLine, over := w.newMortal(), make(chan struct{}), make(chan struct{})
	victim.onWait = sync.OnceFunc(func() { close(inLine) })
	go func() { // ends when the site dies, which is below
		defer close(over)
		victim.wait(site, linTerms{ttl: linDeadTTL, renew: true}, time.Minute)
	}()
	select {
	case <-inLine:
	case <-over: // it has the lock, or has failed: there is nothing to see here
	}
	w.crash(site)
	<-over
	<-site.gone
	if taken != nil {
		stale := site.died.Load() + linStay + int64(linDeadTTL) + linLate
		holder.work(taken, time.Duration(stale-linNow())+10*time.Millisecond)
		holder.release(taken)
	}
	for range 5 {
		if taken := other.try(w.lasting[1], linTerms{ttl: time.Second, renew: true}); taken != nil {
			other.release(taken)
		}
	}
	return key, []*linRecord{&holder.linRecord, &victim.linRecord, &other.linRecord}
}

// raid breaks a lease whose process is not listening, so that it is not told: it
// finds out when it wants more of it, or when it gives it back, and others have the lock
// meanwhile.
func (w *linWorld) raid(seed uint64) (*linKey, []*linRecord) {
	key := w.newLinKey(1)
	holder, raider := key.client(0, seed), key.client(1, seed)
	site := w.newMortal()
	terms := linTerms{ttl: 10 * time.Second, renew: true}
	for _, wantsMore := range []bool{true, false} {
		taken := holder.try(site, terms)
		if taken == nil {
			break
		}
		raider.breakOne(w.lasting[0])
		next := raider.try(w.lasting[1], terms)
		if wantsMore {
			holder.extend(taken, terms.ttl)
		}
		holder.release(taken)
		if next != nil {
			raider.release(next)
		}
	}
	w.crash(site)
	return key, []*linRecord{&holder.linRecord, &raider.linRecord}
}

// check holds the history of a lock against the model. A verdict other than ""
// comes with a picture, if show is set.
func (k *linKey) check(records []*linRecord, show bool) (linFigures, string) {
	for _, s := range k.stays {
		if s.dead() {
			<-s.site.gone // its deadline moves no more
		}
	}
	history, f := linHistory(records)
	verdict, info, model := linVerdict(k.limit, history)
	if verdict == "" {
		return f, ""
	}
	verdict = fmt.Sprintf("a lock of %d, %d clients: %s", k.limit, len(records), verdict)
	if show {
		verdict += k.picture(model, info)
	}
	return f, verdict
}

// picture draws a history that is not as it should be, and says where it is.
func (k *linKey) picture(model porcupine.Model, info porcupine.LinearizationInfo) string {
	file, err := os.CreateTemp("", "not-linearizable-*.html")
	if err != nil {
		return fmt.Sprintf("\n(no picture: %v)", err)
	}
	defer file.Close()
	if err := porcupine.Visualize(model, info, file); err != nil {
		return fmt.Sprintf("\n(no picture: %v)", err)
	}
	path, err := filepath.Abs(file.Name())
	if err != nil {
		path = file.Name()
	}
	return "\nthe history: " + path
}

// linPlan is how much of what.
type linPlan struct {
	operations   int           // to be checked
	within       time.Duration // in that time
	atOnce       int           // histories that are made at once
	steps        int           // of each client in one history
	deathwatches int           // besides
	raids        int           // besides
	picture      bool          // draw a history that is not as it should be
}

// run plays until enough is checked, or the time is over, or a history is not as
// it should be: then it says which.
func (w *linWorld) run(seed uint64, p linPlan) (linFigures, string) {
	var (
		mu      sync.Mutex // guards the fields below
		total   linFigures
		verdict string
		next    uint64
	)
	done := func(f linFigures, v string) {
		mu.Lock()
		defer mu.Unlock()
		total.add(f)
		if v != "" && verdict == "" {
			verdict = v
		}
	}
	end := time.Now().Add(p.within)
	more := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return seed + next<<20, verdict == "" && total.operations < p.operations && time.Now().Before(end)
	}
	var wg sync.WaitGroup // ends when there is no more to do; a history takes seconds
	besides := func(n int, play func(seed uint64) (*linKey, []*linRecord)) {
		for i := range n {
			wg.Go(func() {
				key, records := play(seed + uint64(i))
				done(key.check(records, p.picture))
			})
		}
	}
	besides(p.deathwatches, w.deathwatch)
	besides(p.raids, w.raid)
	for range p.atOnce {
		wg.Go(func() {
			for {
				seed, ok := more()
				if !ok {
					return
				}
				key, records := w.play(seed, p.steps)
				done(key.check(records, p.picture))
			}
		})
	}
	wg.Wait()
	total.crashes = int(w.crashes.Load())
	return total, verdict
}
