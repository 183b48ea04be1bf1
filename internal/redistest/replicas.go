package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// StartReplica starts a redis-server for this test alone that is a replica of master, a server from StartReal, and
// returns when it has what its master has.
func StartReplica(t testing.TB, master *Server) *Server {
	t.Helper()
	// Else the master waits five seconds for further replicas before it sends its data.
	master.own(t).tell(t, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	s := StartReal(t, "--repl-diskless-sync-delay", "0")
	s.Follow(t, master)
	return s
}

// linked waits until the server, a replica, is in step with its master, as both of them see it: the master sends it
// nothing until it has heard of it once more, which takes up to a second.
func (n *node) linked(t testing.TB, master *node) {
	t.Helper()
	online := fmt.Sprintf("port=%d,state=online,", n.port)
	Eventually(t, ownWithin, func() bool {
		// A message is replicated, so that there is something to acknowledge.
		_, _ = master.ask("PUBLISH", "redistest", "in step?")
		info, _ := n.ask("INFO", "replication")
		seen, _ := master.ask("INFO", "replication")
		return strings.Contains(seen, online) && !strings.Contains(seen, online+"offset=0,") &&
			strings.Contains(info, "role:slave\r\n") && strings.Contains(info, "master_link_status:up\r\n")
	}, "a replica in step")
}

// Forget has a replica lose its master: what that does from now on never gets here. It stays a replica until Promote.
func (s *Server) Forget(t testing.TB) {
	t.Helper()
	s.own(t).tell(t, "REPLICAOF", "127.0.0.1", "1") // where nobody listens
}

// Promote makes a replica a master, as an operator would by hand.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.own(t).tell(t, "REPLICAOF", "NO", "ONE")
}

// Follow makes a server a replica of master, whose data takes the place of its own, and returns when it has it.
func (s *Server) Follow(t testing.TB, master *Server) {
	t.Helper()
	s.own(t).tell(t, "REPLICAOF", "127.0.0.1", strconv.Itoa(master.own(t).port))
	s.own(t).linked(t, master.own(t))
}

// MasterName is what sentinels from StartSentinels call the master.
const MasterName = "trusted"

// Sentinels are three that watch over a master and its replicas.
type Sentinels struct{ nodes []*node }

// StartSentinels starts three sentinels for this test alone that watch over master and its replicas, all from
// StartReal. A master that is gone for half a second is succeeded by a replica.
func StartSentinels(t testing.TB, master *Server, replicas int) *Sentinels {
	t.Helper()
	s := &Sentinels{}
	for range 3 {
		n := startNode(t, manyPorts, func(n *node) []string {
			file := filepath.Join(n.dir, "sentinel.conf") // which it writes itself, too
			Must(t, os.WriteFile(file, fmt.Appendf(nil, `bind 127.0.0.1
port %d
dir %s
sentinel monitor %[3]s 127.0.0.1 %[4]d 2
sentinel down-after-milliseconds %[3]s 500
sentinel failover-timeout %[3]s 3000
`, n.port, n.dir, MasterName, master.own(t).port), 0o600))
			return []string{file, "--sentinel"}
		})
		t.Cleanup(n.remove)
		s.nodes = append(s.nodes, n)
	}
	s.Whole(t, replicas)
	return s
}

// Whole waits until every sentinel knows the two others, a master and so many replicas of it that are in step.
func (s *Sentinels) Whole(t testing.TB, replicas int) {
	t.Helper()
	for _, n := range s.nodes {
		rdb := redis.NewSentinelClient(&redis.Options{Addr: n.addr()})
		Eventually(t, ownWithin, func() bool {
			m, _ := rdb.Master(t.Context(), MasterName).Result()
			list, _ := rdb.Replicas(t.Context(), MasterName).Result()
			list = slices.DeleteFunc(list, func(r map[string]string) bool {
				return r["flags"] != "slave" || r["master-link-status"] != "ok" || r["master-port"] != m["port"]
			})
			return m["flags"] == "master" && m["num-other-sentinels"] == "2" && len(list) == replicas
		}, "a sentinel knows the others")
		_ = rdb.Close()
	}
}

// Client makes a client that asks the sentinels who the master is, and is closed when the test ends.
func (s *Sentinels) Client(t testing.TB) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName}
	for _, n := range s.nodes {
		o.SentinelAddrs = append(o.SentinelAddrs, n.addr())
	}
	rdb := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it itself
	return rdb
}

// Master gives host:port of the master as the sentinels have it; empty when they cannot be asked.
func (s *Sentinels) Master(t testing.TB) string {
	t.Helper()
	rdb := redis.NewSentinelClient(&redis.Options{Addr: s.nodes[0].addr()})
	defer func() { _ = rdb.Close() }()
	addr, _ := rdb.GetMasterAddrByName(t.Context(), MasterName).Result()
	return strings.Join(addr, ":")
}
