/*
Package automutextest is for tests of programs that use automutex. It needs no
Redis: everything runs on one in memory, of each test's own.

	func TestVerify(t *testing.T) {
		guard := automutextest.New(t, automutex.Config{Rules: rules})

		first, again, other := verifyTask(1, "a"), verifyTask(1, "b"), verifyTask(2, "a")
		automutextest.ShareKey(t, guard, first, again)
		automutextest.ShareNoKey(t, guard, first, other)

		server := automutextest.Serve(t, guard, newMux(guard.Guard))
		release := automutextest.Hold(t, guard, first)
		task := server.Enqueue(t, again)
		task.Becomes(t, automutextest.HandedBack)
		release()
		task.Again(t)
		task.Becomes(t, automutextest.Done)
	}

[ShareKey] and [ShareNoKey] are about rules alone. [Hold] makes a key busy,
[Pause] pauses a scope or key.
[Serve] is a real asynq server, on which [Task.Becomes] says what became of a
task, and [Watch] a handler that knows what ran at once.

Whatever is begun ends with the test. What goes wrong fails it, with the rule, the
key and its holder where there are any; nothing waits for longer than ten seconds
and the longest Wait of the rules.

miniredis is only built into tests that import this package.
*/
package automutextest
