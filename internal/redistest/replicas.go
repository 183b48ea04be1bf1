package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// StartReplica starts a redis-server for this test alone that is a replica of
// master, a server from StartReal, and returns when it has what its master has.
func StartReplica(t testing.TB, master *Server) *Server {
	t.Helper()
	of := master.own(t)
	// Else the master waits five seconds for further replicas before it sends
	// its data.
	of.tell(t, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	s := StartReal(t, "--replicaof", "127.0.0.1", strconv.Itoa(of.port), "--repl-diskless-sync-delay", "0")
	s.nodes[0].linked(t, of.addr())
	return s
}

// linked waits until the process, a replica, is in step with its master, as both
// of them see it: the master sends it nothing until it has heard of it once more,
// which takes up to a second.
func (p *process) linked(t testing.TB, master string) {
	t.Helper()
	var info, seen string
	online := fmt.Sprintf("port=%d,state=online,", p.port)
	Eventually(t, ownWithin, func() bool {
		// A message is replicated, so that there is something to acknowledge.
		_, _ = ask(master, "PUBLISH", "redistest", "in step?")
		var err1, err2 error
		info, err1 = ask(p.addr(), "INFO", "replication")
		seen, err2 = ask(master, "INFO", "replication")
		return err1 == nil && err2 == nil && strings.Contains(seen, online) && !strings.Contains(seen, online+"offset=0,") &&
			strings.Contains(info, "role:slave\r\n") && strings.Contains(info, "master_link_status:up\r\n")
	}, "a replica in step: %v", last(func() string { return info + seen }))
}

// last is text that is made when it is printed.
type last func() string

func (f last) String() string { return f() }

// Forget has a replica lose its master: what that does from now on never gets
// here. It stays a replica until Promote.
func (s *Server) Forget(t testing.TB) {
	t.Helper()
	s.replicaOf(t, "127.0.0.1", "1") // where nobody listens
}

// Promote makes a replica a master, as an operator would by hand.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.replicaOf(t, "NO", "ONE")
}

// Follow makes a server a replica of master, whose data takes the place of its
// own, and returns when it has it.
func (s *Server) Follow(t testing.TB, master *Server) {
	t.Helper()
	s.replicaOf(t, "127.0.0.1", strconv.Itoa(master.own(t).port))
	s.nodes[0].linked(t, master.Addr())
}

func (s *Server) replicaOf(t testing.TB, host, port string) {
	t.Helper()
	s.own(t).tell(t, "REPLICAOF", host, port)
}
