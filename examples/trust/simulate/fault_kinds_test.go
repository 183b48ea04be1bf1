package simulate

// faultKind is what goes wrong.
type faultKind string

const (
	// One command.
	refused   faultKind = "refused"    // an error reply, not executed
	replyLost faultKind = "reply lost" // executed, and the connection breaks before the reply
	swallowed faultKind = "swallowed"  // executed, and no reply ever comes
	late      faultKind = "late"       // executed when its caller has given up
	noScript  faultKind = "NOSCRIPT"
	noPerm    faultKind = "NOPERM"
	cut       faultKind = "cut" // the connection breaks before it is executed

	// Everything that the client sends for a time.
	hung        faultKind = "hung"               // vanishes
	loading     faultKind = "LOADING"            //
	readOnly    faultKind = "READONLY"           //
	wrapped     faultKind = "READONLY, wrapped"  // as a script of Redis 6.2 has it
	misconf     faultKind = "MISCONF"            // it cannot write to its disk; go-redis does not try that again
	outOfMemory faultKind = "OOM"                // commands that may need memory are refused
	setup       faultKind = "set-up refused"     // connections break, and new ones are refused by an error reply
	apart       faultKind = "partition"          // connections break, and there are no new ones
	frozen      faultKind = "Redis stands still" // everything waits for its end: for all clients

	// split has the locks' master replaced for all but this process. See split_test.go.
	split faultKind = "split brain"

	// Not of a client.
	// noReplicas has replicas acknowledge nothing for For.
	noReplicas faultKind = "replicas away"
	// arrival is when what was late is executed. No plan has it.
	arrival faultKind = "late arrival"
	// suspended has the process stand still for For. See suspended_test.go.
	suspended faultKind = "suspended"
	stops     faultKind = "stops" // the process: Close beside Shutdown, then it exits
	dies      faultKind = "dies"  // the process
	starts    faultKind = "starts"
)

// spansTime tells whether a fault of the kind lasts, and is no single command's.
func (k faultKind) spansTime() bool {
	switch k {
	case hung, loading, readOnly, wrapped, misconf, outOfMemory, setup, apart, frozen:
		return true
	}
	return false
}

// reply is what a client is answered in place of an execution; empty: nothing.
func (k faultKind) reply() string {
	switch k {
	case refused:
		return "-ERR the simulation refuses this command\r\n"
	case noScript:
		return "-NOSCRIPT No matching script. Please use EVAL.\r\n"
	case noPerm:
		return "-NOPERM this user has no permissions to run this command\r\n"
	case loading:
		return "-LOADING Redis is loading the dataset in memory\r\n"
	case misconf:
		return "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.\r\n"
	case readOnly:
		return "-READONLY You can't write against a read only replica.\r\n"
	case wrapped:
		return "-ERR Error running script (call to f_2d7a5c7a): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.\r\n"
	}
	return ""
}
