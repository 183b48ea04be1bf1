// Package trust breaks automutex on purpose and shows that it holds. It has only
// tests: histories of many clients checked against a model, processes killed, every
// fault that Redis knows, and failovers.
//
//	go test ./examples/trust                              # the short forms, as in go test work
//	go test ./examples/trust -long -timeout 3h -v         # the long ones, with figures
//	go test ./examples/trust -long -seed 42 -run Linear   # one of them again, as it went
//
// Package simulate, in a folder of its own, runs whole systems in virtual time.
//
// RESULTS.md has what long runs found, docs/guarantees.md what each promise rests on.
package trust
