/*
Package unique enqueues tasks for the same entity once.

A rule names the task type and the payload fields that make the key, as a rule
of package automutex does. It says for how long a task blocks its key, and what happens to
the next task for that key meanwhile:

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

It complements the lock and does not replace it: this package decides which tasks are
enqueued, and the lock of package automutex which of them run at once. A task that was
accepted runs, unless a later task supersedes it before it has started.

# Until

  - [UntilDone], the default: at most one live task for each key. The ID of the task is made
    from the key, so asynq itself refuses a second one, without another round trip.
  - [UntilStart]: one may run while one waits. The producer sets a claim beside the lock's
    key. The worker's Guard ends it when it holds the lock, right before the handler; that
    needs a rule there with an equal Task, Scope and On.
  - [For]: a fixed time from the enqueue.

# Duplicate

  - [Reject] returns a [*DuplicateError], which names the task that blocks the key and Is
    asynq.ErrDuplicateTask.
  - [Join] returns the asynq.TaskInfo of that task.
  - [Replace] lets the newest payload win while that task has not started.
  - [Postpone] does the same, and puts the task off at each call, within a bound.

If another producer is just enqueuing the task that blocks the key, the call waits for that
enqueue, for 5 seconds at most; then it fails with another error.

Whether a key is blocked is found out at the next call, which looks at the task; there is no
reaper. Archived and completed tasks do not block the key, unless the rule says KeepArchived.
A claim whose task does not exist is taken over: at once if it is certain that the task will
not come, otherwise 15 seconds after the claim, since its producer may still be enqueuing it.

# What is promised

There are never two live tasks for a key under UntilDone, and never two that have not started
under UntilStart, whatever producers and workers do, as long as Redis does not lose data. (A
task has started when the Guard has ended its claim. If its lease or its Timeout ends in that
moment, it runs later, beside the next one in the queue.) No
accepted task is lost to a duplicate: only a task that has not started is superseded, and only
when the new one is in Redis. A task that has ended does not block its key, except for the 15
seconds above. A producer that dies in the middle of Replace or Postpone leaves the old task,
the new one, or both; the next call for the key leaves one.

A task has started if its handler has failed, even if asynq.Config.IsFailure does not count
that. It has not started if a server returned it to its queue because its handler did not end
within the ShutdownTimeout: asynq leaves no trace of that run, so under UntilDone and For the
new task takes its place.

# What is not promised

To read, decide and delete takes several commands. A lock keeps producers from each other, but
not operators or workers:

  - If an operator runs an archived task again (RunTask) at the moment when the next task
    takes its place, the archived task is deleted.
  - If a worker runs a task, and its handler fails, between the look at the task and its
    deletion, the task is superseded.
  - A command may arrive seconds late, after go-redis has sent it again and the call has gone
    on. Under UntilDone, tasks that supersede each other use two IDs in turn, so a late
    deletion can delete the task of a later call, and a late enqueue can bring back a task
    that was taken back.
  - If the reply to the deletion of a superseded task is lost under For, and the task had just
    ended, the new one runs too.
  - Replace and Postpone take the new task back if the old one starts at that moment. They
    archive the new task before they delete it, so that a lost reply leaves no doubt. If a
    doubt remains (the archived task is gone: deleted, or run by an operator), the call fails
    with an error that says so.

All producers of a key must use rules with the same Queue, Until, Duplicate, MaxPostpone and
KeepArchived. New checks that for the rules of one Client only. Producers with different rules
do not find all of each other's tasks: under UntilDone, Replace and Postpone use two task IDs
for a key, and Reject and Join know one of them, so a key can have two live tasks. Before you
change a rule, stop the old producers and let the tasks of their rules end.

The package does not find tasks that asynq's own client enqueued, nor keys with another Prefix
or in another Redis. Redis must not evict keys (maxmemory-policy noeviction): without its claim
a second task for the key is accepted.

asynq's Scheduler enqueues with its own client. If two Schedulers run, drop the second task in
the worker, with automutex.Rule.Cooldown and the policy automutex.Skip.
*/
package unique
