package lock

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

const (
	// pingEvery is how long the subscription may be silent before wake sends a ping. After as
	// long again without an answer the subscription is replaced. go-redis by itself does not
	// notice a connection that loses everything.
	pingEvery = time.Second
	// idleListen is how long a subscription outlives its last use.
	idleListen = 10 * time.Second
	// relisten is the pause before a broken subscription is replaced.
	relisten = 100 * time.Millisecond
	// subscribeTimeout bounds dialing for a subscription.
	subscribeTimeout = 3 * time.Second
)

// wake is the one subscription of a Locker, on its own channel and that of the
// controls. It exists while somebody waits or holds a lease with OnStop, and some seconds
// longer. Messages are hints: if one is lost, the next refresh makes up for it. After each
// new subscription all waiters ask again at once.
type wake struct {
	locker *Locker

	mu        sync.Mutex // guards listening
	listening bool
}

// listen makes sure that the subscription is there or on its way. Its goroutine
// ends by itself when nobody has used it for a while, or at Close.
func (k *wake) listen() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.listening {
		k.listening = k.locker.life.Spawn(k.run)
	}
}

func (k *wake) run() {
	l := k.locker
	lastUse := time.Now()
	for broken := 0; ; {
		idle, worked := k.receive(&lastUse)
		k.mu.Lock()
		// Decide under mu: a waiter that comes now either finds listening false and starts
		// another subscription, or used finds the waiter.
		if l.life.Closing.Err() != nil || (idle && !k.used()) {
			k.listening = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		if worked {
			broken = 0
		}
		if !idle {
			broken++
		}
		if broken == 1 { // once for each outage
			l.log.Warn("automutex: the wake-up subscription broke and is being replaced; waiters ask once a second meanwhile",
				"channel", l.prefix+":"+l.channel)
		}
		timer := time.NewTimer(relisten << min(broken, 4))
		select {
		case <-timer.C:
		case <-l.life.Closing.Done():
		}
		timer.Stop()
	}
}

// used reports whether anybody waits, or holds a lease with OnStop. It checks waiters first:
// a waiter that is granted the lock is a holder before it leaves the waiters.
func (k *wake) used() bool { return !k.locker.line.empty() || k.locker.renewer.stoppable() }

// receive subscribes and listens until the subscription fails, nobody has
// used it for idleListen (idle), or Close. worked: it was confirmed.
func (k *wake) receive(lastUse *time.Time) (idle, worked bool) {
	l := k.locker
	ctx, cancel := context.WithCancel(l.life.Closing)
	subscribing, subscribed := context.WithTimeout(ctx, subscribeTimeout)
	sub := l.rdb.Subscribe(subscribing, l.prefix+":"+l.channel, l.controls.Channel)
	subscribed()
	// Closing the subscription is what interrupts a receive when the Locker
	// closes; otherwise it is closed on return, by cancel.
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = sub.Close()
		close(closed)
	})
	defer func() {
		cancel()
		<-closed
	}()
	pinged := false
	for {
		got, err := sub.ReceiveTimeout(ctx, pingEvery)
		switch {
		case ctx.Err() != nil:
			return false, worked
		case err != nil && (!timedOut(err) || pinged):
			return false, worked
		case err != nil:
			pinged = true
			if sub.Ping(ctx) != nil {
				return false, worked
			}
		case worked:
			// Not before: Redis answers pings also on a connection on which the
			// SUBSCRIBE got lost.
			pinged = false
		}
		switch got := got.(type) {
		case *redis.Subscription:
			if got.Channel != l.controls.Channel {
				worked, pinged = true, false
				l.line.askAll()
			}
		case *redis.Message:
			if got.Channel == l.controls.Channel {
				l.controls.ReadSoon()
			} else if msg, ok := wire.ParseMessage(got.Payload); ok {
				l.line.onMessage(msg)
			}
		}
		if k.used() {
			*lastUse = time.Now()
		} else if time.Since(*lastUse) > idleListen {
			return true, worked
		}
	}
}

// onMessage handles a message: a grant to a waiter, or one of the other kinds that
// message.fence tells apart. Callers hold nothing.
func (n *line) onMessage(msg wire.Message) {
	switch msg.Fence {
	case wire.BrokenFence:
		n.locker.renewer.loseBroken(msg.Token)
		return
	case wire.StopFence:
		n.stop(msg.Token)
		return
	case wire.GateFence:
		n.watchGate(msg)
		return
	}
	n.mu.Lock()
	var next time.Time
	if w := n.waiters[msg.Token]; w != nil {
		n.act(w, w.turn.NoteGrant(msg, time.Now()), turn.Reply{})
		next = w.turn.Next()
	}
	n.mu.Unlock()
	n.alarm.Set(next)
}

// handleGrants handles the part of a release's reply that names grants to waiters of this
// same Locker. The script puts their messages into the reply instead of publishing them;
// they prove a grant in the same way. If the reply is lost, askAgainFor makes
// the waiters ask. handleGrants returns the rest of the reply. Callers hold nothing.
func (n *line) handleGrants(reply any) (rest any) {
	rest, grants := wire.ParseGrants(reply)
	if grants == nil {
		return rest
	}
	for _, msg := range grants {
		n.onMessage(msg)
	}
	// Let the goroutine of the next holder run before this one, which may go on for long.
	runtime.Gosched()
	return rest
}

// watchGate has the first waiter in line ask when the gate opens.
func (n *line) watchGate(msg wire.Message) {
	us, err := strconv.ParseInt(msg.Value, 10, 64)
	if err != nil || us < 0 || us > inside.MaxTTL.Microseconds() {
		return
	}
	n.mu.Lock()
	var next time.Time
	if w := n.waiters[msg.Token]; w != nil {
		w.turn.GateOpens(msg.ServerUS, time.Duration(us)*time.Microsecond, time.Now())
		next = w.turn.Next()
	}
	n.mu.Unlock()
	n.alarm.Set(next)
}
