package redistest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	clusterSlots  = 16384
	clusterNodes  = 3
	clusterWithin = 15 * time.Second // from the last MEET to a cluster that serves
)

// startCluster starts a Redis Cluster of three masters.
func startCluster() (*Server, error) {
	s := &Server{kind: KindCluster}
	for range clusterNodes {
		node, err := startProcess(binary(), []string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-announce-ip", "127.0.0.1",
		})
		if err != nil {
			s.close()
			return nil, err
		}
		s.nodes = append(s.nodes, node)
		s.addrs = append(s.addrs, node.addr())
	}
	if err := s.join(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// join makes a cluster of the nodes and waits until it serves.
func (s *Server) join() error {
	for i, node := range s.nodes {
		first, last := i*clusterSlots/clusterNodes, (i+1)*clusterSlots/clusterNodes-1
		for _, command := range [][]string{
			addSlots(first, last),
			// Different epochs from the start: else the nodes would have to
			// settle a conflict first.
			{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)},
		} {
			if _, err := ask(node.addr(), command...); err != nil {
				return err
			}
		}
	}
	for i, node := range s.nodes {
		// Everyone meets everyone, which is quicker than to let them gossip.
		for _, other := range s.nodes[i+1:] {
			_, err := ask(node.addr(), "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port), strconv.Itoa(other.bus))
			if err != nil {
				return err
			}
		}
	}
	var err error
	if !poll(clusterWithin, func() bool { err = s.serves(); return err == nil }) {
		return err
	}
	return nil
}

// addSlots is CLUSTER ADDSLOTSRANGE, which Redis 6.2 does not have.
func addSlots(first, last int) []string {
	command := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot <= last; slot++ {
		command = append(command, strconv.Itoa(slot))
	}
	return command
}

// serves is nil when every node finds the cluster complete and all of them have
// the same picture of it.
func (s *Server) serves() error {
	var picture string
	for _, node := range s.nodes {
		info, err := ask(node.addr(), "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		for _, want := range []string{
			"cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3", "cluster_size:3",
		} {
			if !strings.Contains(info, want+"\r\n") {
				return fmt.Errorf("redistest: cluster node %s: no %s in:\n%s", node.addr(), want, info)
			}
		}
		slots, err := ask(node.addr(), "CLUSTER", "SLOTS")
		if err != nil {
			return err
		}
		if picture != "" && picture != slots {
			return errors.New("redistest: the cluster's nodes do not agree on who has which slots")
		}
		picture = slots
	}
	return nil
}
