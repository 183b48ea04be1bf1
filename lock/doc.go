/*
Package lock is a distributed mutex and semaphore on Redis, with a fair line.

	locker := lock.New(rdb, lock.Options{})
	defer locker.Close()

	m := locker.Mutex("room:123")
	lease, err := m.TryLock(ctx) // *BusyError at once
	lease, err = m.Lock(ctx)     // in line until ctx ends
	defer lease.Unlock(ctx)

	err = m.Do(ctx, func(ctx context.Context) error { // all of it in one call
		return enter(ctx)
	})

	s := locker.Semaphore("gpu", 4) // four holders at a time
	free, err := s.Available(ctx)

	p := locker.Pool("ports") // named values, each for one holder
	added, err := p.Put(ctx, "8001", "8002")
	lease, err = p.Take(ctx) // lease.Value() is one of them

# Which call

To wait: [Lock.Lock] until ctx ends, [Lock.TryLock] not at all, [Lock.Acquire]
for a time, with a boolean. To hold while a function runs: [Lock.Do],
[Lock.DoWithin], [Lock.TryDo], or [With] for a function with a value. A lock named by a
value and its ID: [Locker.For].

To give back: [Lease.Unlock]; [Lease.Release] tells what is free then,
[Lease.Cooldown] keeps the slot taken for a while. To hold longer than the TTL
do nothing: leases are renewed; [NoRenew] turns that off and [Lease.Extend] does
it by hand. [MaxHold] bounds a stay.

To look: [Lock.Locked], [Lock.Available], [Lock.Holders], [Lock.Waiting]. To step in:
[Lock.Break], [Lock.BreakAll], [Lock.Delete].

Every failed call says what it left behind, which is nothing unless its comment
says otherwise. Errors are told apart with errors.Is: [ErrBusy], [ErrNotHeld],
[ErrLost], [ErrClosed], [ErrBackend].

It stands on its own: nothing here knows of tasks. The middleware in the parent
package is one user of it.

# How it works

A lock is one sorted set in Redis that holds its holders by deadline and its
line by ticket. Three scripts change it: ask takes a slot or joins the line,
release gives the slot back and grants it to the head of the line in the same
step, renew moves a deadline on. Only Redis' own clock counts, and a deadline is
a number that is compared with it, never the expiry of a key.

A waiter is woken by a message on the one subscription of its Locker. Messages
are hints: one that is lost costs at most about a second, since every waiter
asks again that often, all of a process in one pipeline.

Taking and releasing a free lock costs two round trips and no goroutine. Leases
are renewed after a third of their length, all that are due in one pipeline.

# What is promised

At most N holders at any moment, by Redis' clock; a release or renewal by
anybody but the holder changes nothing; whoever is in line is served first come,
first served, and nobody overtakes a line. A holder that dies frees its slot at
its deadline, a waiter that dies unnoticed costs the line at most three seconds.
The holder's context (see [Lease.Bind]) ends before anybody else can hold the
slot, as long as local and Redis' clock run at the same speed and the program is
not stopped; [Lease.Fence] serves where that is not enough.

Redis 6.2 or later, alone, with Sentinel or as a Cluster. A [*redis.Ring] is
refused.
*/
package lock
