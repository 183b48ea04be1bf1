/*
Package unique enqueues tasks for the same entity once.

A rule names the task type and the payload fields that make the key, as a rule of package
automutex does. It also says for how long a task blocks its key, and what happens meanwhile to
the next task for that key:

	tasks, err := unique.New(client, inspector, rdb, unique.Config{
		Rules: []unique.Rule{
			// One verification of a transaction, until it is done.
			{Task: "itunes:verify", On: []string{"transaction_id"}},
			// One reindexing runs, at most one waits.
			{Task: "reindex", On: []string{"document_id"}, Until: unique.UntilStart, Duplicate: unique.Join},
			// A digest for a user every ten minutes at most.
			{Task: "digest", On: []string{"user_id"}, Until: unique.For(10 * time.Minute)},
			// When a user has typed nothing for five seconds, but after a minute at the latest.
			{Task: "autosave", On: []string{"draft_id"}, Until: unique.UntilStart,
				Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute},
		},
	})
	info, err := tasks.Enqueue(asynq.NewTask("reindex", payload))

This package decides which tasks are enqueued; the lock of package automutex decides which of
them run at once. Neither replaces the other. A task that was accepted runs, unless a later
task supersedes it before it has started.

# Until

  - [UntilDone], the default: at most one live task for each key. The ID of the task is made
    from the key, so asynq itself refuses a second one, without another round trip.
  - [UntilStart]: one task may run while one waits. The producer sets a claim beside the
    lock's key. The worker's Guard ends the claim when the task holds the lock, right before
    the handler. That needs a rule of the Guard with an equal Task, Scope and On.
  - [For]: a fixed time from the enqueue.

# Duplicate

  - [Reject] returns a [*DuplicateError], which names the task that blocks the key and Is
    asynq.ErrDuplicateTask.
  - [Join] returns the asynq.TaskInfo of that task.
  - [Replace] lets the newest payload win while that task has not started.
  - [Postpone] does the same, and puts the task off at each call, within a bound.

If another producer is just enqueuing the task that blocks the key, the call waits for that
enqueue. After 5 seconds it fails with an error that is not a *DuplicateError.

Each call looks at the task to see whether the key is still blocked; nothing cleans up in the
background. Archived and completed tasks do not block the key, unless the rule has
KeepArchived. A call takes over a claim whose task does not exist: at once if it is certain
that the task will not come, otherwise 15 seconds after the claim, since its producer may still
be enqueuing the task.

# What is promised

Whatever producers and workers do, a key never has two live tasks under UntilDone, and never
two tasks that have not started under UntilStart, as long as Redis does not lose data. (Under
UntilStart a task has started when the Guard has ended its claim. If its lease or Timeout ends
at that moment, the task runs later, while the next one is already in the queue.) No accepted
task is lost to a duplicate: only a task that has not started is superseded, and only when the
new one is in Redis. A task that has ended does not block its key, except for the 15 seconds
above. A producer that dies in the middle of Replace or Postpone leaves the old task, the new
one, or both; the next call for the key leaves one.

A task whose handler has failed counts as started, even if asynq.Config.IsFailure does not
count the failure. A task that a server returned to its queue, because its handler did not end
within the ShutdownTimeout, counts as not started: asynq leaves no trace of that run. Under
UntilDone and For the new task then takes its place.

# What is not promised

A call reads, decides and deletes in several commands. A lock keeps other producers out
meanwhile, but not operators and workers:

  - If an operator runs an archived task again (RunTask) at the moment when the next task
    takes its place, the archived task is deleted.
  - If a task's handler runs and fails after the call has read the task, and before the call
    deletes it, the task is superseded.
  - A command may arrive seconds late, after go-redis has sent it again and the call has gone
    on. Under UntilDone, tasks that supersede each other use two IDs in turn, so a late
    deletion can delete the task of a later call, and a late enqueue can bring back a task
    that was taken back.
  - If, under For, the reply to the deletion of a superseded task is lost, and that task had
    just ended, the new task runs too.
  - Replace and Postpone take the new task back if the old one starts at that moment. They
    archive the new task before they delete it, so that a lost reply leaves no doubt. If the
    archived task is gone all the same (deleted, or run by an operator), the call fails with an
    error that says so.

All producers of a key must use rules with the same Queue, Until, Duplicate, MaxPostpone and
KeepArchived. New checks that only for the rules of one Client. Producers with different rules
do not find all of each other's tasks, so a key can have two live tasks: under UntilDone,
Replace and Postpone use two task IDs for a key, and Reject and Join know one of them. Before
you change a rule, stop the old producers and let the tasks of their rules end.

The package does not find tasks that asynq's own client enqueued, nor keys with another Prefix
or in another Redis. Redis must not evict keys (maxmemory-policy noeviction): if it evicts a
claim, a second task for the key is accepted.

asynq's Scheduler enqueues with its own client. If two Schedulers run, drop the second task in
the worker, with automutex.Rule.Cooldown and the policy automutex.Skip.
*/
package unique
