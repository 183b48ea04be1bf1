/*
Package unique enqueues tasks for the same entity once.

A rule names the task type and the payload fields that make the key, as a rule
of package automutex does, and says until when a task stands in the way of the
next one for its key, and what becomes of that next one:

	tasks, err := unique.New(client, inspector, rdb, unique.Config{
		Rules: []unique.Rule{
			// One verification of a transaction, until it is done.
			{Task: "itunes:verify", On: []string{"transaction_id"}},
			// One reindexing runs, at most one waits.
			{Task: "reindex", On: []string{"document_id"}, Until: unique.UntilStart, Duplicate: unique.Join},
			// A digest for a user every ten minutes at most.
			{Task: "digest", On: []string{"user_id"}, Until: unique.For(10 * time.Minute)},
			// When a user has typed nothing for five seconds; within a minute anyway.
			{Task: "autosave", On: []string{"draft_id"}, Until: unique.UntilStart,
				Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute},
		},
	})
	info, err := tasks.Enqueue(asynq.NewTask("reindex", payload))

It complements the lock and does not replace it: the lock of package automutex
decides who runs, this package how often that is asked for. A task that was
accepted always runs.

# Until

[UntilDone], the default: a live task for each key at most. The ID of the task is
made from the key, so asynq itself keeps a second one out, in the enqueue and
without another round trip. [UntilStart]: one may run while one waits. The
producer sets a claim beside the lock's key, and the worker's Guard takes it away
when it holds the lock, right before the handler; that needs a rule there with
an equal Task, Scope and On. [For]: a fixed window.

# Duplicate

[Reject] answers with a [*DuplicateError], which says which task is in the way
and is asynq.ErrDuplicateTask. [Join] answers with that task. Where the task in the way is
one that another producer is just enqueuing, the call waits for that enqueue, for 5
seconds at most; then it fails with another error. [Replace] lets the
newest payload win while the task has not started. [Postpone] puts the task off
at each call, within a bound.

What is in the way is found out by looking at the task, at the time of the next
call; there is no reaper. Archived and completed tasks make room, unless the rule
says KeepArchived. A claim whose task is gone is taken over, at once where it is
certain that the task will not come, else 15 seconds after the claim: until then
its producer may still be enqueuing it.

# What is promised

Under UntilDone never two live tasks for a key, under UntilStart never two that
have not started, whatever producers, workers and Redis do, as long as Redis
keeps what it said. No accepted task is lost to a duplicate: only a task that has
not started is superseded, and only when the new one is in Redis. No key stays
blocked by a task that has ended, but for the 15 seconds above. "Has not started"
excludes a task whose handler has failed, also where asynq.Config.IsFailure does not
count that. It includes one that a server put back into its queue because its handler
had not ended by the ShutdownTimeout: asynq leaves no trace of that run, and under
UntilDone and For the new task takes its place. A producer that
dies in the middle of Replace or Postpone leaves the old task, the new one, or
both; the next call for the key makes it one.

# What is not

Read, decide and delete are several commands: producers keep out of each other's
way by a lock of their own, an operator is not kept out. Who runs an archived
task again (RunTask) in the very moment in which the next one makes room has it
deleted. A task that a worker runs, and whose handler fails, between the look at it and its
deletion is superseded all the same. A command that arrives seconds late, when go-redis has sent it again and the
call has gone on, can undo what came after it: under UntilDone tasks that supersede each
other take turns at two IDs, so a late deletion can delete the task of a later call, and a
late enqueue can bring back a task that was taken back. When the reply to the deletion of a
superseded task is lost under For, and the task had ended just then, the new one runs too.

Replace and Postpone take the new task back when the old one begins in that moment. They
archive the new task first, so that a reply which is lost leaves no doubt. Where a doubt is
left all the same (the task had been archived and is gone: deleted, or run by an operator),
the call fails with an error that says so.

All producers of a key use rules with the same Queue, Until, Duplicate, MaxPostpone and
KeepArchived. New checks that for the rules of one Client only. Producers that differ do not
see all of each other's tasks: under UntilDone Replace and Postpone use two task IDs for a
key, and Reject and Join know one of them, so that a key can have two live tasks. Stop the
old producers, and let the tasks of their rules end, before a rule changes.

Tasks enqueued with asynq's own client are not seen, nor are keys of another Prefix or
Redis. Redis must not evict (maxmemory-policy noeviction): a claim that is gone lets a
second task in.

asynq's Scheduler enqueues with a client of its own. Schedulers that run twice
are made harmless in the worker, by automutex.Rule.Cooldown with the policy
automutex.Skip.
*/
package unique
