package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// calmNode is a cluster-node-timeout (ms) that no busy machine makes a node
	// miss, hurried is one with which a master that was killed is soon succeeded.
	calmNode = "15000"
	hurried  = "1000"
	// ownWithin is how long nodes may take to do or to learn something, on a machine
	// whose cores are busy with other things.
	ownWithin = 60 * time.Second
)

// StartCluster starts a Redis Cluster of three masters for this test alone, each
// with so many replicas.
func StartCluster(t testing.TB, replicas int) *Server {
	t.Helper()
	needBinary(t)
	s, err := startCluster()
	s = private(t, s, err)
	masters := slices.Clone(s.nodes)
	for range replicas {
		for _, master := range masters {
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
	Eventually(t, ownWithin, func() bool {
		answer, err = ask(p.addr(), command...)
		return err == nil
	}, "an answer: %v", last(func() string { return fmt.Sprint(err) }))
	return answer
}

// addReplica starts a replica of one of the cluster's masters, and returns when
// every node knows it and it is in step.
func (s *Server) addReplica(t testing.TB, master *process) {
	t.Helper()
	node, err := startProcess(binary(), []string{
		"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-announce-ip", "127.0.0.1",
	})
	if err != nil {
		t.Fatal(err)
	}
	s.nodes, s.addrs = append(s.nodes, node), append(s.addrs, node.addr())
	for _, other := range s.nodes {
		other.tell(t, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
		// A master of a cluster replicates no messages (see linked), but its pings.
		other.tell(t, "CONFIG", "SET", "repl-ping-replica-period", "1")
	}
	id := master.tell(t, "CLUSTER", "MYID")
	var met time.Time
	Eventually(t, ownWithin, func() bool {
		// Nodes that were too busy to shake hands in time have not met.
		if time.Since(met) > 3*time.Second {
			for _, other := range s.nodes[:len(s.nodes)-1] {
				node.tell(t, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port), strconv.Itoa(other.bus))
			}
			met = time.Now()
		}
		_, err = ask(node.addr(), "CLUSTER", "REPLICATE", id) // refused until it knows that master
		return err == nil
	}, "a replica: %v", last(func() string { return fmt.Sprint(err) }))
	node.linked(t, master.addr())
	s.agreed(t)
}

// agreed waits until every node that runs has the same picture of who has which
// slots, and finds it complete, and replicas have what their masters have.
func (s *Server) agreed(t testing.TB) {
	t.Helper()
	Eventually(t, ownWithin, func() bool {
		var picture []string
		for _, node := range s.nodes {
			if !node.runs() {
				continue
			}
			info, err := ask(node.addr(), "CLUSTER", "INFO")
			if err != nil || !strings.Contains(info, "cluster_state:ok\r\n") {
				return false
			}
			role, err := ask(node.addr(), "INFO", "replication")
			if err != nil || strings.Contains(role, "role:slave\r\n") && !strings.Contains(role, "master_link_status:up\r\n") {
				return false
			}
			nodes, err := ask(node.addr(), "CLUSTER", "NODES")
			if err != nil {
				return false
			}
			var seen []string
			for line := range strings.Lines(nodes) {
				f := strings.Fields(line)
				if len(f) < 8 || strings.Contains(f[2], "handshake") {
					return false
				}
				flags := strings.TrimPrefix(f[2], "myself,")
				seen = append(seen, fmt.Sprint(f[0], flags, f[3], f[8:]))
			}
			slices.Sort(seen)
			if picture == nil {
				picture = seen
			}
			if len(s.nodes) == len(seen) && !slices.Equal(picture, seen) {
				return false
			}
		}
		return true
	}, "all nodes agree")
}

// runs tells whether the process was started and not stopped since.
func (p *process) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run != nil
}

// owner is the node that has the slot of key, as the first node that runs has it.
func (s *Server) owner(t testing.TB, key string) (*process, int) {
	t.Helper()
	for _, node := range s.nodes {
		if !node.runs() {
			continue
		}
		rdb := redis.NewClient(&redis.Options{Addr: node.addr()})
		slot, err := rdb.ClusterKeySlot(t.Context(), key).Result()
		_ = rdb.Close()
		if err != nil {
			t.Fatalf("redistest: which slot has %q: %v", key, err)
		}
		nodes := node.tell(t, "CLUSTER", "NODES")
		// id address flags master ping pong epoch link slots...
		for line := range strings.Lines(nodes) {
			f := strings.Fields(line)
			for _, slots := range f[min(8, len(f)):] {
				first, last, isRange := strings.Cut(slots, "-")
				if !isRange {
					last = first
				}
				from, err1 := strconv.Atoi(first)
				to, err2 := strconv.Atoi(last) // not of "[slot->-id]", a slot that moves
				if err1 != nil || err2 != nil || int(slot) < from || to < int(slot) {
					continue
				}
				for _, node := range s.nodes {
					if strings.HasPrefix(f[1], node.addr()+"@") {
						return node, int(slot)
					}
				}
			}
		}
	}
	t.Fatalf("redistest: nobody has the slot of %q", key)
	return nil, 0
}

// MasterOf gives host:port of the master that has the slot of key.
func (s *Server) MasterOf(t testing.TB, key string) string {
	t.Helper()
	node, _ := s.owner(t, key)
	return node.addr()
}

// KillMaster ends the master that has the slot of key at once (SIGKILL). A replica
// succeeds it after about a second.
func (s *Server) KillMaster(t testing.TB, key string) {
	t.Helper()
	node, _ := s.owner(t, key)
	s.nodeTimeout(t, hurried)
	if err := node.kill(); err != nil {
		t.Fatal(err)
	}
}

// PauseMaster freezes the process of the key's master (SIGSTOP): it keeps its
// connections and answers nothing, until resume or the end of the test. For a
// cluster from StartCluster.
func (s *Server) PauseMaster(t testing.TB, key string) (resume func()) {
	t.Helper()
	n, _ := s.owner(t, key)
	if err := n.pause(); err != nil {
		t.Fatal(err)
	}
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
		if node.runs() {
			continue
		}
		if err := node.start(); err != nil {
			t.Fatal(err)
		}
	}
	s.nodeTimeout(t, calmNode)
	s.agreed(t)
}

// MoveSlot moves the slot of key to the next master, as resharding tools do:
// open at both ends, key by key, then closed. while runs when it is open.
func (s *Server) MoveSlot(t testing.TB, key string, while func()) {
	t.Helper()
	ctx := t.Context()
	from, slot := s.owner(t, key)
	var masters []*process
	clients := map[*process]*redis.Client{}
	ids := map[*process]string{}
	for _, node := range s.nodes {
		rdb := redis.NewClient(&redis.Options{Addr: node.addr()})
		defer func() { _ = rdb.Close() }()
		clients[node] = rdb
		if !node.runs() {
			continue
		}
		if role, err := rdb.Do(ctx, "ROLE").Slice(); err == nil && role[0] == "master" {
			masters = append(masters, node)
		}
		ids[node] = node.tell(t, "CLUSTER", "MYID")
	}
	to := masters[(slices.Index(masters, from)+1)%len(masters)]
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("redistest: moving slot %d from %s to %s: %v", slot, from.addr(), to.addr(), err)
		}
	}
	must(clients[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]).Err())
	must(clients[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]).Err())
	while()
	for {
		keys, err := clients[from].ClusterGetKeysInSlot(ctx, slot, 100).Result()
		must(err)
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		must(migrated(ctx, clients[from], args))
		while()
	}
	// The one that gets it first: else nobody would have it for a moment.
	must(clients[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err())
	must(clients[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err())
	for _, node := range masters {
		must(clients[node].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err())
	}
}

// migrated runs MIGRATE. A key that has gone meanwhile is no error.
func migrated(ctx context.Context, rdb *redis.Client, args []any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return rdb.Do(ctx, args...).Err()
}
