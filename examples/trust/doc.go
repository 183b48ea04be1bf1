// Package trust breaks automutex on purpose and shows that it holds. It has only
// tests: histories of many clients checked against a model, processes killed and
// stopped, networks that lose and delay, every fault that Redis knows, failovers,
// and a soak of the whole system with faults at random whose books must balance.
//
//	go test ./examples/trust                              # the short forms, as in go test work
//	go test ./examples/trust -long -timeout 3h            # the long ones, with a table of what they found
//	go test ./examples/trust -long -seed 42 -run Soak     # one of them again, as it went
//
// Package simulate, in a folder of its own, runs whole systems in virtual time.
//
// RESULTS.md has the table of a long run, docs/guarantees.md what each promise rests on.
package trust
