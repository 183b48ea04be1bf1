package redistest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterSlots = 16384
	clusterNodes = 3
	// calmNode is a cluster-node-timeout (ms) that no busy machine makes a node
	// miss, hurried is one with which a master that was killed is soon succeeded.
	calmNode, hurried = "15000", "1000"
	// ownWithin is how long nodes may take to do or to learn something, on a machine
	// whose cores are busy with other things.
	ownWithin = 2 * Patience
)

// startNode starts a node of a cluster. Its pings are all that a master of a cluster replicates while nothing
// happens (see linked), so they come each second.
func startNode() (*process, error) {
	return startServer(true, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-announce-ip", "127.0.0.1",
		"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
}

// startCluster starts a Redis Cluster of three masters, and returns when it serves.
func startCluster() (_ *Server, err error) {
	s := &Server{kind: KindCluster}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for i := range clusterNodes {
		node, err := startNode()
		if err != nil {
			return nil, err
		}
		s.nodes, s.addrs = append(s.nodes, node), append(s.addrs, node.addr())
		slots := []string{"CLUSTER", "ADDSLOTS"} // Redis 6.2 has no ADDSLOTSRANGE
		for slot := i * clusterSlots / clusterNodes; slot < (i+1)*clusterSlots/clusterNodes; slot++ {
			slots = append(slots, strconv.Itoa(slot))
		}
		// Different epochs from the start: else the nodes would have to settle a conflict first.
		commands := [][]string{slots, {"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)}}
		for _, other := range s.nodes[:i] { // everyone meets everyone, which is quicker than to let them gossip
			commands = append(commands, other.meet())
		}
		for _, command := range commands {
			if _, err := ask(node.addr(), command...); err != nil {
				return nil, err
			}
		}
	}
	if !poll(Patience, s.agree) {
		return nil, errors.New("redistest: the nodes of a cluster do not agree on who has which slots")
	}
	return s, nil
}

// meet is the command that has another node meet this one.
func (p *process) meet() []string {
	return []string{"CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(p.port), strconv.Itoa(p.port + busOffset)}
}

// agree reports whether every node that runs has the same picture of who has which
// slots, and finds it complete, and replicas have what their masters have.
func (s *Server) agree() bool {
	var picture []string
	for _, node := range s.nodes {
		if !node.runs() {
			continue
		}
		info, err1 := ask(node.addr(), "CLUSTER", "INFO")
		role, err2 := ask(node.addr(), "INFO", "replication")
		nodes, err3 := ask(node.addr(), "CLUSTER", "NODES")
		if errors.Join(err1, err2, err3) != nil || !strings.Contains(info, "cluster_state:ok\r\n") ||
			strings.Contains(role, "role:slave\r\n") && !strings.Contains(role, "master_link_status:up\r\n") {
			return false
		}
		var seen []string
		for line := range strings.Lines(nodes) { // id address flags master ping pong epoch link slots...
			f := strings.Fields(line)
			if len(f) < 8 || strings.Contains(f[2], "handshake") {
				return false
			}
			seen = append(seen, fmt.Sprint(f[0], strings.TrimPrefix(f[2], "myself,"), f[3], f[8:]))
		}
		slices.Sort(seen)
		if picture == nil {
			picture = seen
		}
		if len(seen) != len(s.nodes) || !slices.Equal(picture, seen) {
			return false
		}
	}
	return true
}

// StartCluster starts a Redis Cluster of three masters for this test alone, each
// with so many replicas.
func StartCluster(t testing.TB, replicas int) *Server {
	t.Helper()
	needBinary(t)
	s, err := startCluster()
	s = private(t, s, err)
	for range replicas {
		for _, master := range s.nodes[:clusterNodes] {
			s.addReplica(t, master)
		}
	}
	s.nodeTimeout(t, calmNode)
	return s
}

// nodeTimeout has all nodes that run call a node failed after so long (ms).
func (s *Server) nodeTimeout(t testing.TB, ms string) {
	t.Helper()
	for _, node := range s.nodes {
		if node.runs() {
			node.tell(t, "CONFIG", "SET", "cluster-node-timeout", ms)
		}
	}
}

// tell has the process do something, and gives the answer. It may be too busy to
// accept, or not be ready for it yet.
func (p *process) tell(t testing.TB, command ...string) (answer string) {
	t.Helper()
	var err error
	if !poll(ownWithin, func() bool { answer, err = ask(p.addr(), command...); return err == nil }) {
		t.Fatal(err)
	}
	return answer
}

// addReplica starts a replica of one of the cluster's masters, and returns when
// every node knows it and it is in step.
func (s *Server) addReplica(t testing.TB, master *process) {
	t.Helper()
	node, err := startNode()
	Must(t, err)
	s.nodes, s.addrs = append(s.nodes, node), append(s.addrs, node.addr())
	id := master.tell(t, "CLUSTER", "MYID")
	var met time.Time
	replicates := poll(ownWithin, func() bool {
		// Nodes that were too busy to shake hands in time have not met.
		if time.Since(met) > 3*time.Second {
			for _, other := range s.nodes[:len(s.nodes)-1] {
				node.tell(t, other.meet()...)
			}
			met = time.Now()
		}
		_, err = ask(node.addr(), "CLUSTER", "REPLICATE", id) // refused until it knows that master
		return err == nil
	})
	if !replicates {
		t.Fatal(err)
	}
	node.linked(t, master.addr())
	Eventually(t, ownWithin, s.agree, "all nodes agree")
}

// client is one of this process alone, until the end of the test.
func (p *process) client(t testing.TB) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: p.addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// masters are the nodes with slots, as the first node that runs has it, the one with the slot of key first.
func (s *Server) masters(t testing.TB, key string) (nodes []*process, slot int) {
	t.Helper()
	rdb := s.nodes[slices.IndexFunc(s.nodes, (*process).runs)].client(t)
	n, err := rdb.ClusterKeySlot(t.Context(), key).Result()
	Must(t, err)
	ranges, err := rdb.ClusterSlots(t.Context()).Result() //nolint:staticcheck // Redis 6.2 has no CLUSTER SHARDS
	Must(t, err)
	slot = int(n)
	for _, r := range ranges {
		master := s.nodes[slices.IndexFunc(s.nodes, func(node *process) bool { return node.addr() == r.Nodes[0].Addr })]
		if r.Start <= slot && slot <= r.End {
			nodes = append([]*process{master}, slices.DeleteFunc(nodes, func(node *process) bool { return node == master })...)
		} else if !slices.Contains(nodes, master) {
			nodes = append(nodes, master)
		}
	}
	return nodes, slot
}

// owner is the node that has the slot of key.
func (s *Server) owner(t testing.TB, key string) *process {
	t.Helper()
	nodes, _ := s.masters(t, key)
	return nodes[0]
}

// MasterOf gives host:port of the master that has the slot of key.
func (s *Server) MasterOf(t testing.TB, key string) string { t.Helper(); return s.owner(t, key).addr() }

// KillMaster ends the master that has the slot of key at once (SIGKILL). A replica
// succeeds it after about a second.
func (s *Server) KillMaster(t testing.TB, key string) {
	t.Helper()
	node := s.owner(t, key)
	s.nodeTimeout(t, hurried)
	Must(t, node.stop(os.Kill))
}

// PauseMaster freezes the process of the key's master (SIGSTOP): it keeps its
// connections and answers nothing, until resume or the end of the test. For a
// cluster from StartCluster.
func (s *Server) PauseMaster(t testing.TB, key string) (resume func()) {
	t.Helper()
	n := s.owner(t, key)
	Must(t, n.pause())
	resume = sync.OnceFunc(func() {
		if err := n.resume(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(resume)
	return resume
}

// Revive starts what KillMaster ended, which then is a replica of whoever took
// its place, and returns when the cluster is whole again.
func (s *Server) Revive(t testing.TB) {
	t.Helper()
	for _, node := range s.nodes {
		if !node.runs() {
			Must(t, node.start())
		}
	}
	s.nodeTimeout(t, calmNode)
	Eventually(t, ownWithin, s.agree, "all nodes agree")
}

// MoveSlot moves the slot of key to the next master, as resharding tools do:
// open at both ends, key by key, then closed. while runs when it is open.
func (s *Server) MoveSlot(t testing.TB, key string, while func()) {
	t.Helper()
	ctx := t.Context()
	nodes, slot := s.masters(t, key)
	from, to := nodes[0].client(t), nodes[1].client(t)
	fromID, toID := nodes[0].tell(t, "CLUSTER", "MYID"), nodes[1].tell(t, "CLUSTER", "MYID")
	Must(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err())
	Must(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err())
	while()
	for {
		keys, err := from.ClusterGetKeysInSlot(ctx, slot, 100).Result()
		Must(t, err)
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", "127.0.0.1", nodes[1].port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		Must(t, from.Do(ctx, args...).Err()) // a key that has gone meanwhile is no error
		while()
	}
	// The one that gets it first: else nobody would have it for a moment.
	for _, node := range append([]*process{nodes[1]}, nodes...) {
		Must(t, node.client(t).Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err())
	}
}
