package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// StartReplica starts a redis-server for this test alone that is a replica of
// master, a server from StartReal, and returns when it has what its master has.
func StartReplica(t testing.TB, master *Server) *Server {
	t.Helper()
	of := master.own(t)
	// Else the master waits five seconds for further replicas before it sends its data.
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
	inStep := poll(ownWithin, func() bool {
		// A message is replicated, so that there is something to acknowledge.
		_, _ = ask(master, "PUBLISH", "redistest", "in step?")
		info, _ = ask(p.addr(), "INFO", "replication")
		seen, _ = ask(master, "INFO", "replication")
		return strings.Contains(seen, online) && !strings.Contains(seen, online+"offset=0,") &&
			strings.Contains(info, "role:slave\r\n") && strings.Contains(info, "master_link_status:up\r\n")
	})
	if !inStep {
		t.Fatalf("redistest: a replica is not in step: %s%s", info, seen)
	}
}

// Forget has a replica lose its master: what that does from now on never gets
// here. It stays a replica until Promote.
func (s *Server) Forget(t testing.TB) {
	t.Helper()
	s.own(t).tell(t, "REPLICAOF", "127.0.0.1", "1") // where nobody listens
}

// Promote makes a replica a master, as an operator would by hand.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.own(t).tell(t, "REPLICAOF", "NO", "ONE")
}

// Follow makes a server a replica of master, whose data takes the place of its
// own, and returns when it has it.
func (s *Server) Follow(t testing.TB, master *Server) {
	t.Helper()
	s.own(t).tell(t, "REPLICAOF", "127.0.0.1", strconv.Itoa(master.own(t).port))
	s.nodes[0].linked(t, master.Addr())
}

// MasterName is what sentinels from StartSentinels call the master.
const MasterName = "trusted"

// Sentinels are three that watch over a master and its replicas.
type Sentinels struct{ nodes []*process }

// StartSentinels starts three sentinels for this test alone that watch over
// master and its replicas, all from StartReal. A master that is gone for half a
// second is succeeded by a replica.
func StartSentinels(t testing.TB, master *Server, replicas int) *Sentinels {
	t.Helper()
	s := &Sentinels{}
	for range 3 {
		node, err := startProcess(20000, busOffset, func(p *process) []string {
			file := filepath.Join(p.dir, "sentinel.conf") // which it writes itself, too
			Must(t, os.WriteFile(file, fmt.Appendf(nil, `bind 127.0.0.1
port %d
dir %s
sentinel monitor %[3]s 127.0.0.1 %[4]d 2
sentinel down-after-milliseconds %[3]s 500
sentinel failover-timeout %[3]s 3000
`, p.port, p.dir, MasterName, master.own(t).port), 0o600))
			return []string{file, "--sentinel"}
		})
		Must(t, err)
		t.Cleanup(node.remove)
		s.nodes = append(s.nodes, node)
	}
	s.Whole(t, replicas)
	return s
}

// Whole waits until every sentinel knows the two others, a master and so many
// replicas of it that are in step.
func (s *Sentinels) Whole(t testing.TB, replicas int) {
	t.Helper()
	for _, node := range s.nodes {
		rdb := redis.NewSentinelClient(&redis.Options{Addr: node.addr()})
		var seen string
		whole := poll(ownWithin, func() bool {
			m, err1 := rdb.Master(t.Context(), MasterName).Result()
			list, err2 := rdb.Replicas(t.Context(), MasterName).Result()
			seen = fmt.Sprint(m, err1, list, err2)
			inStep := 0
			for _, r := range list {
				if r["flags"] == "slave" && r["master-link-status"] == "ok" && r["master-port"] == m["port"] {
					inStep++
				}
			}
			return m["flags"] == "master" && m["num-other-sentinels"] == "2" && inStep == replicas
		})
		if !whole {
			t.Fatalf("redistest: a sentinel does not know the others: %s", seen)
		}
		_ = rdb.Close()
	}
}

// Client makes a client that asks the sentinels who the master is, and is closed
// when the test ends.
func (s *Sentinels) Client(t testing.TB) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName}
	for _, node := range s.nodes {
		o.SentinelAddrs = append(o.SentinelAddrs, node.addr())
	}
	rdb := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it itself
	return rdb
}

// Master gives host:port of the master as the sentinels have it; empty when they
// cannot be asked.
func (s *Sentinels) Master(t testing.TB) string {
	t.Helper()
	rdb := redis.NewSentinelClient(&redis.Options{Addr: s.nodes[0].addr()})
	defer func() { _ = rdb.Close() }()
	addr, _ := rdb.GetMasterAddrByName(t.Context(), MasterName).Result()
	return strings.Join(addr, ":")
}
