package redistest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterSlots   = 16384
	clusterMasters = 3
	// calm is a cluster-node-timeout (ms) that no busy machine makes a node miss. hurried is one with which nodes are soon
	// together, and a master that was killed is soon succeeded.
	calm, hurried = "15000", "2000"
	// ownWithin is how long nodes may take to do or to learn something, on a machine whose cores are busy with other
	// things.
	ownWithin = 2 * Patience
)

// StartCluster starts a Redis Cluster of three masters for this test alone, each with so many replicas.
func StartCluster(t testing.TB, replicas int) *Server {
	t.Helper()
	needBinary(t)
	return private(t, startCluster(t, replicas))
}

func startCluster(t testing.TB, replicas int) *Server {
	t.Helper()
	s := &Server{kind: KindCluster}
	for i := range clusterMasters {
		n := s.addNode(t)
		Must(t, n.client(t).ClusterAddSlotsRange(t.Context(), i*clusterSlots/clusterMasters,
			(i+1)*clusterSlots/clusterMasters-1).Err())
	}
	for i := range clusterMasters * replicas {
		n, master := s.addNode(t), s.nodes[i%clusterMasters]
		s.whole(t)
		n.tell(t, "CLUSTER", "REPLICATE", master.tell(t, "CLUSTER", "MYID"))
		n.linked(t, master)
	}
	s.whole(t)
	s.nodeTimeout(t, calm)
	return s
}

// addNode starts a node of a cluster. Its pings are all that a master of a cluster replicates while nothing happens
// (see linked), so they come each second.
func (s *Server) addNode(t testing.TB) *node {
	t.Helper()
	n := startServer(t, nodePorts, nil, "--cluster-enabled", "yes", "--cluster-node-timeout", hurried,
		"--cluster-announce-ip", "127.0.0.1", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	s.nodes = append(s.nodes, n)
	// Different epochs from the start: else the nodes would have to settle a conflict first.
	n.tell(t, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(len(s.nodes)))
	return n
}

// whole waits until every node that runs knows all others, and finds the cluster complete, and replicas have what their
// masters have.
func (s *Server) whole(t testing.TB) {
	t.Helper()
	var met time.Time
	Eventually(t, ownWithin, func() bool {
		if time.Since(met) > 3*time.Second { // nodes that were too busy to shake hands in time have not met
			for i, n := range s.nodes {
				for _, other := range s.nodes[:i] { // everyone meets everyone, which is quicker than to let them gossip
					n.tell(t, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port))
				}
			}
			met = time.Now()
		}
		masters := map[int]bool{} // how many nodes take which number of nodes for masters
		for _, n := range s.nodes {
			info, _ := n.ask("CLUSTER", "INFO")
			known, _ := n.ask("CLUSTER", "NODES")
			role, _ := n.ask("INFO", "replication")
			masters[strings.Count(known, "master")] = true
			if !strings.Contains(info, "cluster_state:ok\r\n") || strings.Count(known, "\n") != len(s.nodes) ||
				strings.Contains(known, "handshake") || strings.Contains(known, "fail") || !strings.Contains(role, "role:") ||
				strings.Contains(role, "master_link_status:down") {
				return false
			}
		}
		return len(masters) == 1
	}, "all nodes agree")
}

// nodeTimeout has all nodes that run call a node failed after so long (ms).
func (s *Server) nodeTimeout(t testing.TB, ms string) {
	t.Helper()
	for _, n := range s.nodes {
		if n.runs() {
			n.tell(t, "CONFIG", "SET", "cluster-node-timeout", ms)
		}
	}
}

// client is one of this process alone, until the end of the test.
func (n *node) client(t testing.TB) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: n.addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// owner is the index of the master that has the slot of key.
func (s *Server) owner(t testing.TB, key string) int {
	t.Helper()
	rdb := redis.NewClusterClient(s.Options().Cluster())
	defer func() { _ = rdb.Close() }()
	master, err := rdb.MasterForKey(t.Context(), key)
	Must(t, err)
	return slices.Index(s.Addrs(), master.Options().Addr)
}

// MasterOf gives the master that has the slot of key. That of a cluster from StartCluster can be paused.
func (s *Server) MasterOf(t testing.TB, key string) *Server {
	t.Helper()
	return &Server{kind: KindReal, private: s.private, nodes: []*node{s.nodes[s.owner(t, key)]}}
}

// KillMaster ends the master that has the slot of key at once (SIGKILL). A replica succeeds it after some seconds.
func (s *Server) KillMaster(t testing.TB, key string) {
	t.Helper()
	s.nodeTimeout(t, hurried)
	s.MasterOf(t, key).Kill(t)
}

// Revive starts the master that KillMaster ended, now a replica of its successor, and returns when the cluster is whole
// again.
func (s *Server) Revive(t testing.TB) {
	t.Helper()
	for _, n := range s.nodes {
		if !n.runs() {
			Must(t, n.start())
		}
	}
	s.whole(t)
	s.nodeTimeout(t, calm)
}

// MoveSlot moves the slot of key from its master to the next one of the three that the cluster began with, as
// resharding tools do: open at both ends, key by key, then closed. while runs when it is open.
func (s *Server) MoveSlot(t testing.TB, key string, while func()) {
	t.Helper()
	ctx, i := t.Context(), s.owner(t, key)
	source, target := s.nodes[i], s.nodes[(i+1)%clusterMasters]
	from, to := source.client(t), target.client(t)
	slot, err := from.ClusterKeySlot(ctx, key).Result()
	Must(t, err)
	toID := target.tell(t, "CLUSTER", "MYID")
	Must(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", source.tell(t, "CLUSTER", "MYID")).Err())
	Must(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err())
	while()
	for {
		keys, err := from.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
		Must(t, err)
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		Must(t, from.Do(ctx, args...).Err()) // a key that has gone meanwhile is no error
		while()
	}
	// The one that gets it first: else nobody would have it for a moment.
	for _, n := range append([]*node{target}, s.nodes[:clusterMasters]...) {
		Must(t, n.client(t).Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
	}
}
