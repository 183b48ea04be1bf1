/*
Package automutex lets asynq tasks for the same entity take turns.

One rule wraps the handler of a task type in a distributed lock. The key consists of
the task type and the payload fields named in On. A policy says what happens to a task
that finds the lock taken:

	guard, err := automutex.New(rdb, automutex.Config{
		Rules: []automutex.Rule{
			// One verification of a transaction at a time.
			{Task: "itunes:verify", On: []string{"transaction_id"}},
			// At most three reports of a tenant at once.
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
a mutex, more is a semaphore. A holder has a lease with a deadline, which is renewed while the
handler runs. Waiters stand in the lock's line, first come, first served; a release grants the lock to
the head of the line in the same step. A parked task keeps its place in line without a worker.

# Keys

On names payload fields by dotted paths ("user.id", "items.0.sku"); see [Fields]. If a field is missing,
null or empty, or the payload is not JSON, no key can be made. The task is then archived with a message
that names the field: except under [Allow] and [Rule].Optional it never runs without its lock.

# When the key is busy

  - [Park], the default, keeps the task's place in line, and runs it when its turn comes.
  - [Retry] returns the task to asynq for 1 to 5 seconds, [RetryIn] for a time of yours.
  - [Skip] ends the task as done, [Archive] archives it, [Fail] spends an attempt.
  - [Replace] stops the older task, so that the newer one runs.
  - [AfterFailure] calls a function of yours.
  - [Allow] runs the task without the lock, and reports that it did.

With [Rule].Wait, except under Park, the task first waits in line, in its worker. A task on its last
attempt waits there too: asynq would archive it.

# What is promised

A handler that runs holds its key, or its context has ended, with cause [lock.ErrLost]. The keys of a
process that dies are free after a TTL at most. docs/guarantees.md has what else is promised.

# What is not promised

asynq delivers a task at least once, so a task may run again after a crash. A program that is
stopped for longer than a TTL (a suspended machine) learns only afterwards that it has lost
its lease, and another task may have run meanwhile. Against that, set [Rule].Fence,
send [Fence] with each write of the handler, and have the receiver refuse lower numbers. A failover
can forget a lease; see [Config].MinReplicas. Redis must not evict keys (maxmemory-policy noeviction).
*/
package automutex
