// Package simulate runs whole systems in one process and in virtual time: asynq
// servers and Guards, a Redis, and a network between them. It has only tests.
//
// A plan says everything that happens in one world: rules, tasks, what the handlers do, faults, and what operators do.
// A world is one plan in a testing/synctest bubble. Processes stop and die; the network delays, cuts, loses replies and
// delivers late; Redis refuses and hangs. An oracle, which is docs/guarantees.md in code, judges what happened from
// outside: it knows the plan, what handlers saw, the public events, what asynq stored, and which keys are in Redis.
//
//	go test ./examples/trust/simulate                             # as in go test work: no faults
//	go test ./examples/trust/simulate -worlds 400 -one-in 41      # what CI plays
//	# about 150 worlds in order, as the workflow for GitHub does
//	go test ./examples/trust/simulate -run Worlds -in-order -first 20001 -worlds 440
//	go test ./examples/trust/simulate -run Worlds -seed 42        # one world again
//	go test ./examples/trust/simulate -run Worlds -first 2001 -worlds 98000 -within 20h -timeout 24h
//	go test ./examples/trust/simulate -run Faults -one-in 1
//
// # What a seed decides
//
// The seed decides the plan, and with it every delay of the network and every fault: "the 7th command of process 1 is
// cut", "Redis is frozen from 00:31 to 00:36". Virtual time decides when timers fire. Not decided by the seed: which of
// two goroutines that are ready in the same virtual instant runs first, the tokens, and the jitter that the library and
// asynq take from math/rand/v2. So a seed gives the same world, and nearly always the same outcome; what depends on an
// order within one instant may need several runs, which -repeat does.
package simulate
