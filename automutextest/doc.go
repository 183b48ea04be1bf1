/*
Package automutextest is for tests of programs that use automutex. It needs no Redis: each
test has one of its own in memory.

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

[ShareKey] and [ShareNoKey] check rules, without a server. [Hold] makes a key busy, and [Pause]
pauses a scope or key. [Serve] starts a real asynq server: [Task.Becomes] checks what happened
to a task there, and [Watch] records which runs of a handler overlapped.

Everything ends with the test. A failure is reported with the rule, the key and its holder, if
there are any. Nothing waits for longer than ten seconds plus the longest Wait of the rules.

miniredis is built only into tests that import this package.
*/
package automutextest
