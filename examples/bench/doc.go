/*
Package bench measures this library beside its peers, and beside what the commands alone cost, on a redis-server of
its own. A benchmark is a cell of one table, a contender at a scenario:

	go run ./bench -bench Lock                              # locks: a take and a release, a hand-off, a try in vain
	go run ./bench -bench Task                              # tasks of asynq
	go run ./bench -bench Tenant/scenario=noisy -benchtime 1000x   # B behind A's backlog; sift: 3000x, shares: 2500x
	go run ./bench -bench Lock/scenario=free:64/            # one row of the table
	go run ./bench -bench Task/scenario=parked -benchtime 10000x

The package has tests only, and go run ./bench is go test -run '^$' -bench . for it; further flags of go test follow.
What was measured is read by benchstat, which sets the contenders side by side:

	for i in 1 2 3 4 5 6; do go run ./bench -bench Lock; done >lock.txt
	go run golang.org/x/perf/cmd/benchstat@latest -row /scenario -col /contender -filter /scenario:/free/ lock.txt

Two commits are compared as with any benchmark: benchstat old.txt new.txt. Server and client share the cores, so what
counts is the ratio of two contenders in one run.

The units, beside those of every benchmark:

	redis-us/op       Redis' own time for the contender's commands, by INFO commandstats
	redis-cmds/op     how many commands that were
	redis-cpu-us/op   CPU time of Redis' main thread, reading and writing included
	cpu-us/op         CPU time of the client, which is this process
	handoffs/s        turns that follow on somebody else's: who takes the key again at once lets nobody in
	gap-p50-us        from the beginning of a release to the start of another holder
	longest-wait-ms   from an ask to its turn
	x-ideal           time of a load, of its shortest possible one
	runs/op           how often a task was taken out of its queue
	B-p50-ms          how long B's tasks wait
	A-last-ms         when A's last task began; left/op: those that had not after a minute
	B-20-ms           when B's twentieth began
	least-share       see shares
*/
package bench
