/*
Package automutex lets asynq tasks for the same entity take turns.

One rule wraps the handler of a task type in a distributed lock. The key consists of
the task type and the payload fields named in On. A policy says what happens to a task
that finds the lock taken:

	guard, err := automutex.New(rdb, automutex.Config{
		Rules: []automutex.Rule{
			// One verification of a transaction at a time.
			{Task: "itunes:verify", On: []string{"transaction_id"}},
			// At most three reports of a tenant at once, of any report: type.
			{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3, Busy: automutex.Park},
			// One cache warm-up in all; the others are dropped.
			{Task: "cache:warm", Busy: automutex.Skip},
		},
	})
	mux := asynq.NewServeMux()
	srv := asynq.NewServer(redisOpt, guard.ServerConfig(asynq.Config{Concurrency: 10}))
	err = guard.Run(srv, mux)

# Words

A rule makes keys; one key is one lock. A lock has at most Limit holders: one is
a mutex, more is a semaphore. A holder has a lease: a unique token, a fence, and
a deadline that is renewed while the handler runs. Waiters stand in the lock's line,
first come, first served. A release grants the slot to the head of the line in the same
step. A parked task keeps its place in line without a waiting goroutine.

# Keys

On names payload fields by dotted paths ("user.id", "items.0.sku"). The values
become part of the key, escaped, so that different values never share a key;
the numbers 1, 1.0 and 1e0 and the string "1" are the same value, whoever
produced them. A task whose key cannot be made (a field is missing, null or
empty, or the payload is not JSON) is archived with a message that names the
field. It is never run unguarded, nor under a wider key. See [Rule] and [Fields].

# What becomes of a busy task

[Retry] (the default) returns it to asynq for 1 to 5 seconds without spending
an attempt; [RetryIn] for a time of your own. [Skip] ends it as done, [Archive]
archives it, [Fail] spends an attempt, [AfterFailure] asks a function of yours,
[Replace] stops the older task for it, [Allow] runs it all the same and reports.
With [Rule].Wait it first stands in line, in its worker, and gets the lock the
moment it is released. [Park] lets it keep its place in line without a worker
that another task could use: it comes back when its turn comes.

A task without attempts left, which asynq would archive for any error, waits in
its worker instead of returning to asynq. A task whose own earlier attempt is
still running (a handler that ignored its timeout) is retried whatever the
policy: it is not a duplicate.

# What is promised

While a lease is valid nobody else holds the slot. A lease is valid until its
handler returns, as long as it can be renewed: one renewal in a TTL must get
through to Redis. When that fails the handler's context is cancelled, with cause
[lock.ErrLost], before anybody else is let in. A process that dies keeps its
keys for at most a TTL. The Guard drops or archives a task in three cases only: its
policy says so, no key can be made from it, or it is on its last attempt and its
deadline comes before its lock.

# What is not

asynq delivers at least once, and so do we: a task may run again after a crash.
A program that is stopped for longer than a TTL (a suspended machine) finds out
only when it goes on; between these moments another may have run. If that must
not matter, hand [Fence] to what the handler writes to and refuse lower numbers
there. Redis replicates asynchronously: a failover can forget a lease. Redis
must not evict (maxmemory-policy noeviction). docs/guarantees.md says all this
at length, with what to do.

# Shutdown

[Guard.Run] does it on a signal. A program with signals of its own calls srv.Start
with [Guard.Middleware] around the mux, or in mux.Use, and at the end:

	go guard.Close(ctx)
	srv.Shutdown()

Close ends the waits, so that Shutdown need not sit them out, and renews the
leases of running handlers until these return.
*/
package automutex
