package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

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
		node, err := startSentinel(master.own(t).port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if log, err := os.ReadFile(node.logFile()); t.Failed() && err == nil {
				t.Logf("sentinel %s:\n%s", node.addr(), log[max(0, len(log)-3000):])
			}
			node.remove()
		})
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
		var seen string
		Eventually(t, ownWithin, func() bool {
			rdb := redis.NewSentinelClient(&redis.Options{Addr: node.addr()})
			defer func() { _ = rdb.Close() }()
			m, err := rdb.Master(t.Context(), MasterName).Result()
			if err != nil || m["flags"] != "master" || m["num-other-sentinels"] != "2" {
				seen = fmt.Sprint(m, err)
				return false
			}
			list, err := rdb.Replicas(t.Context(), MasterName).Result()
			seen = fmt.Sprint(m, list, err)
			inStep := 0
			for _, r := range list {
				if r["flags"] == "slave" && r["master-link-status"] == "ok" && r["master-port"] == m["port"] {
					inStep++
				}
			}
			return err == nil && inStep == replicas
		}, "a sentinel that knows the others: %v", last(func() string { return seen }))
	}
}

// startSentinel starts one. It writes its own configuration file, and so needs one.
func startSentinel(master int) (*process, error) {
	p, err := newProcess(binary(), nil)
	if err != nil {
		return nil, err
	}
	lines := []string{
		"bind 127.0.0.1", fmt.Sprintf("port %d", p.port), "dir " + p.dir,
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", MasterName, master),
		"sentinel down-after-milliseconds " + MasterName + " 500",
		"sentinel failover-timeout " + MasterName + " 3000",
	}
	file := filepath.Join(p.dir, "sentinel.conf")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		p.remove()
		return nil, fmt.Errorf("redistest: %w", err)
	}
	p.args = []string{file, "--sentinel"}
	if err := p.start(); err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

// Addrs gives host:port of each sentinel.
func (s *Sentinels) Addrs() (addrs []string) {
	for _, node := range s.nodes {
		addrs = append(addrs, node.addr())
	}
	return addrs
}

// Client makes a client that asks the sentinels who the master is, and is closed
// when the test ends.
func (s *Sentinels) Client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.Addrs()})
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it itself
	return rdb
}

// Master gives host:port of the master as the sentinels have it; empty when they
// cannot be asked.
func (s *Sentinels) Master(t testing.TB) string {
	t.Helper()
	rdb := redis.NewSentinelClient(&redis.Options{Addr: s.nodes[0].addr()})
	defer func() { _ = rdb.Close() }()
	addr, err := rdb.GetMasterAddrByName(t.Context(), MasterName).Result()
	if err != nil || len(addr) != 2 {
		return ""
	}
	return addr[0] + ":" + addr[1]
}
