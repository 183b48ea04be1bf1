package trust

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// networkFault is something that a network does.
type networkFault struct {
	name  string
	begin func(p *redistest.Proxy)
	again func(p *redistest.Proxy) // over and over while it lasts; nil: nothing
	cuts  bool                     // no command gets through, so leases behind it are lost
	deaf  bool                     // the subscription is dead, and to be replaced
}

func swallow(c redistest.Connections, ds ...redistest.Direction) func(*redistest.Proxy) {
	return func(p *redistest.Proxy) {
		for _, d := range ds {
			p.Swallow(d, c, true)
		}
	}
}

var networkFaults = []networkFault{
	{name: "replies delayed by 200 ms", begin: func(p *redistest.Proxy) { p.Delay(200 * time.Millisecond) }},
	{name: "replies delayed by two TTLs", begin: func(p *redistest.Proxy) { p.Delay(2 * networkTTL) }},
	{name: "replies lost", again: func(p *redistest.Proxy) { p.DropReplies(1) }},
	{name: "messages lost", begin: func(p *redistest.Proxy) { p.DropMessages(true) }},
	{name: "connections cut", again: (*redistest.Proxy).Cut},
	{name: "no connections", begin: func(p *redistest.Proxy) { p.Refuse(true) }, again: (*redistest.Proxy).Cut, cuts: true},
	{name: "a black hole", begin: func(p *redistest.Proxy) { p.Blackhole(true) }, cuts: true, deaf: true},
	{name: "commands vanish on their way", begin: swallow(redistest.Commands, redistest.ToServer), cuts: true},
	{name: "replies vanish on their way", begin: swallow(redistest.Commands, redistest.ToClient), cuts: true},
	{name: "what a subscription sends vanishes", begin: swallow(redistest.Subscriptions, redistest.ToServer)},
	{name: "what a subscription is sent vanishes", begin: swallow(redistest.Subscriptions, redistest.ToClient), deaf: true},
	{name: "a subscription is a black hole", begin: swallow(redistest.Subscriptions, redistest.ToServer, redistest.ToClient), deaf: true},
	{name: "commands arrive late, after their clients gave up", begin: func(p *redistest.Proxy) {
		p.Hold(func(command []string) bool { return command[0] == "EVALSHA" }, 1<<30)
	}, cuts: true},
}

// lasts has the fault for that long.
func (f networkFault) lasts(r *networkRig, d time.Duration) {
	if f.begin != nil {
		f.begin(r.proxy)
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for began := time.Now(); time.Since(began) < d; <-ticker.C {
		if f.again != nil {
			f.again(r.proxy)
		}
	}
}

// Each fault comes and goes while three processes' worth of callers take turns,
// two of them behind it. Whatever it is: at most one believes to hold a lock, no
// call hangs, those beside it go on, and all go on when it is over.
func TestNetwork(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, f := range networkFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			row := found(t, "network", f.name)
			networkMeets(t, row, f, size(3*time.Second, 30*time.Second))
		})
	}
}

func networkMeets(t *testing.T, row *row, f networkFault, lasts time.Duration) {
	r := newNetworkRig(t, rand.New(rand.NewPCG(seed(t), 3)))
	r.goesRound("before the fault")
	messages, subscribed := r.proxy.Messages(), r.subscribed()
	if messages == 0 {
		redistest.Eventually(t, networkBack, func() bool { return r.proxy.Messages() > 0 }, "a message")
	}
	beside, all := r.count(false), r.count(true)
	f.lasts(r, lasts)
	if f.deaf && !f.cuts { // else a new one is not seen before the fault is over
		redistest.Eventually(t, networkBack, func() bool { return r.subscribed() > subscribed }, "a dead subscription being replaced")
	}
	if n := r.count(false) - beside; n == 0 {
		t.Errorf("nobody beside the fault had a turn in %s", lasts)
	}
	if n := r.count(true) - all; n == 0 {
		t.Errorf("nobody had a turn in %s", lasts)
	}
	r.proxy.Heal()
	back := r.goesRound("after the fault")
	// Woken by messages again: without these everything would go on, slowly.
	messages = r.proxy.Messages()
	redistest.Eventually(t, networkBack, func() bool { return r.proxy.Messages() > messages+2 }, "messages after the fault")
	r.end(row)
	replaced := r.subscribed() - subscribed
	if f.deaf && replaced == 0 {
		t.Error("a dead subscription was not replaced")
	}
	if f.cuts && r.lost == 0 {
		t.Error("no lease was lost: not what this test is about")
	}
	row.notef("subscriptions replaced %d", replaced)
	row.notef("all back after %s", back.Round(10*time.Millisecond))
}

// Faults at random, some at once, one lot after the other, from a seed.
func TestNetwork_random(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	rounds := size(3, 30)
	row := found(t, "network", "lots of faults at random")
	random := rand.New(rand.NewPCG(seed(t), 4))
	r := newNetworkRig(t, random)
	var longest time.Duration
	for range rounds {
		lot := make([]networkFault, 1+random.IntN(3))
		var names []string
		for i := range lot {
			lot[i] = networkFaults[random.IntN(len(networkFaults))]
			names = append(names, lot[i].name)
		}
		lasts := time.Duration(200+random.IntN(size(1000, 8000))) * time.Millisecond
		var wg sync.WaitGroup
		for _, f := range lot {
			wg.Go(func() { f.lasts(r, lasts) })
		}
		wg.Wait()
		r.proxy.Heal()
		longest = max(longest, r.goesRound("after "+strings.Join(names, " and ")))
	}
	r.end(row)
	row.notef("lots %d", rounds)
	row.notef("all back after %s at most", longest.Round(10*time.Millisecond))
}
