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
task supersedes it before its handler begins.

# How it is done

Under UntilDone with Reject or Join the ID of the task is made from the key, so asynq itself refuses a
second one. Otherwise a claim beside the lock's key says whose task the key is. Producers set it, and
the worker's Guard writes in it that the task waits for its lock, that its handler begins, and that it has
ended. So Replace and Postpone need the Guard's Middleware in the workers, too.

Each call looks whether the task still blocks the key; nothing cleans up in the background.
Archived and completed tasks do not, unless the rule has KeepArchived. A call takes over a claim whose
task does not exist: at once if the task was enqueued, otherwise 15 seconds after the claim, since its
producer may still be enqueuing it.
A producer that dies in the middle of Replace or Postpone is waited for as long; the old task runs meanwhile.

# What is promised

Whatever producers and workers do, a key never has two live tasks under UntilDone, and never
two tasks that have not begun under UntilStart, as long as Redis does not lose data. (A task has begun
when the Guard has written that in its claim, and counts as begun when it is due past MaxPostpone. If its
lease or Timeout ends as it begins, it runs later, under UntilStart with the next one in the queue.)
No accepted task is lost to a duplicate: only a task that has not begun is superseded, and only when the
new one is in Redis. A superseded task never begins; if it waits in a worker, the Guard drops it there.
A task that has ended does not block its key. A producer that dies in the middle of Replace or Postpone
leaves the old task, the new one, or both; a call for the key 15 seconds later leaves one.

# What is not promised

  - An archived task that an operator runs again (RunTask) may live beside the next one, or
    under UntilDone with Reject or Join be deleted as that takes its place.
  - Without the Guard's Middleware in a worker nobody writes that a handler has begun. Replace and Postpone
    then take a task that failed for one that has not begun, and reject the new one while asynq has the old
    one as active.
  - A claim lasts 30 days from the last enqueue or start of its task (100 with KeepArchived), and longer for
    a task scheduled further ahead. Superseded tasks are refused for as long, under For too.
  - asynq enqueues the task that it makes of a Group before it deletes the group's tasks. A call at that moment
    is rejected for one of these, joins or supersedes it, although the task made of it may have run.
    If the aggregation fails, the tasks wait, and block their keys, until the Group gets its next one.
  - Under UntilDone with Reject or Join a key's tasks have one ID, and what go-redis sends again after a lost
    reply may meet the next one, seconds late: the command by which asynq ends a task then removes that.
    Replace gives each task its own ID.

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
