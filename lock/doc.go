/*
Package lock is a distributed mutex and semaphore on Redis,

	with a fair line. It does not depend on asynq: package automutex uses it to lock

tasks.

	locker := lock.New(rdb, lock.Options{})
	defer locker.Close()

	m := locker.Mutex("room:123")
	lease, err := m.TryLock(ctx) // *BusyError at once
	lease, err = m.Lock(ctx)     // in line until ctx ends
	defer lease.Unlock(ctx)

	err = m.Do(ctx, func(ctx context.Context) error { // lock, call, unlock
		return enter(ctx)
	})

	s := locker.Semaphore("gpu", 4) // four holders at a time
	free, err := s.Available(ctx)

Leases are renewed until they are released; [NoRenew] and [MaxHold] end them sooner. [Locker.For] returns the lock of a
value with an ID.

A failed call leaves nothing behind unless its comment says otherwise. Test errors with errors.Is: [ErrBusy],

	[ErrNotHeld], [ErrLost],

[ErrClosed], [ErrBackend], [ErrNotReplicated].

# What is promised

A lock has at most N holders at any moment,

	by Redis' clock. Only the holder's own release and renewal have an effect. Waiters are served

first come, first served,

	and nobody overtakes a line. The slot of a holder that dies is free at the holder's deadline. A waiter that dies

unnoticed delays the line by at most three seconds, several by at most six.

The context of [Lease.Bind] and [Lock.Do] ends before another holder can have the slot,

	if the local clock and Redis' clock run at the same

speed and the program is not stopped for longer than the lease. Where that is not enough,

	use [Fenced] and [Lease.Fence].

The package needs Redis 6.2 or later: a single server, Sentinel, or a Cluster. It refuses a [*redis.Ring].
*/
package lock
