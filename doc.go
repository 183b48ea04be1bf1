/*
Package automutex lets asynq tasks for the same entity take turns.

One rule wraps the handler of a task type in a distributed lock, by the payload fields named
in On. A policy says what happens to a task that finds it taken:

	guard, err := automutex.New(rdb, automutex.Config{
		Rules: []automutex.Rule{
			// One of a transaction at a time.
			{Task: "itunes:verify", On: []string{"transaction_id"}},
			// Three of a tenant at once.
			{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3},
		},
	})
	mux := asynq.NewServeMux()
	srv := asynq.NewServer(redisOpt, guard.ServerConfig(asynq.Config{Concurrency: 10}))
	err = guard.Run(srv, mux)

A rule makes keys; one key is one lock. A lock has at most Limit holders: one is a mutex, more
is a semaphore. A holder has a lease with a deadline, which is renewed while the handler runs.
Waiters stand in the lock's line, first come, first served. On names payload fields by dotted
paths ("user.id", "items.0.sku"); see [Fields]. A task without a key is archived with a message
that names the field: but under [Allow] and [Rule].Optional it never runs without its lock.

When the lock is taken, [Park], the default, keeps the task's place in line without a worker, and runs
it when its turn comes; [Policy] has the others. With [Rule].Wait the task first waits in line, in
its worker; on its last attempt it waits there too, since asynq would archive it.

A handler that runs holds its key, or its context has ended, with cause [lock.ErrLost]. The keys of a
process that dies are free after a TTL at most. But asynq delivers a task at least once, and a
program that is stopped for longer than a TTL learns only afterwards that it has lost its lease:
set [Rule].Fence, send [Fence] with each write, and have the receiver refuse lower numbers. A
failover can forget a lease; see [Config].MinReplicas.
docs/guarantees.md has all that is promised.
*/
package automutex
