// Package trust breaks automutex on purpose and shows that it holds. It has only
// tests: every fault that Redis knows, failovers, and the model of the protocol.
//
//	go test ./examples/trust                              # the short forms, as in go test work
//	go test ./examples/trust -long -timeout 3h -v         # the long ones, with figures
//	go test ./examples/trust -long -seed 42 -run Master    # one of them again, as it went
//
// Package simulate, in a folder of its own, runs whole systems in virtual time.
//
// RESULTS.md has what long runs found, docs/guarantees.md what each promise rests on.
package trust
