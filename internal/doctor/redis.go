package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// oldest is the oldest Redis that serves.
const oldest = "6.2"

// Replicas that are further behind than this would, once promoted, not know of
// many locks.
const (
	lagSeconds = 2
	lagBytes   = 1 << 20
)

// node is a Redis server that holds keys.
type node struct {
	rdb  *redis.Client
	name string // "" of the only one
	info map[string]string
}

// nodes are the masters of a Cluster, or the one server.
func (d *doctor) nodes(ctx context.Context) (nodes []*node, err error) {
	switch rdb := d.rdb.(type) {
	case *redis.Client:
		return []*node{{rdb: rdb}}, nil
	case *redis.ClusterClient:
		masters, err := exchange.Masters(ctx, rdb)
		for _, m := range masters {
			nodes = append(nodes, &node{rdb: m, name: " of " + m.Options().Addr})
		}
		return nodes, err
	}
	return nil, fmt.Errorf("a %T is not known", d.rdb)
}

// servers looks at what Redis says of itself.
func (d *doctor) servers(ctx context.Context) error {
	nodes, err := d.nodes(ctx)
	if err != nil {
		return inspect.Backend(err)
	}
	for _, n := range nodes {
		began := time.Now()
		text, err := n.rdb.Info(ctx).Result()
		took := time.Since(began)
		switch {
		case denied(err):
			d.foundf(Note, "Redis"+n.name, "this user may not INFO: version, eviction, persistence and replicas were not looked at")
			continue
		case err != nil:
			return inspect.Backend(err)
		}
		n.info = ParseInfo(text)
		d.version(n, took)
		d.eviction(n)
		d.persistence(ctx, n)
		d.replicas(n)
	}
	return nil
}

// ParseInfo reads the answer to INFO.
func ParseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

func (d *doctor) version(n *node, took time.Duration) {
	version := n.info["redis_version"]
	what := "Redis" + n.name
	switch {
	case version == "":
		d.foundf(Note, what, "tells no version; %s or later is needed", oldest)
	case olderThan(version, oldest):
		d.foundf(Bad, what, "version %s is too old: %s or later is needed", version, oldest)
	default:
		d.foundf(Fine, what, "version %s, answered within %s", version, took.Round(10*time.Microsecond))
	}
}

// olderThan compares versions by their first two numbers.
func olderThan(version, than string) bool {
	numbers := func(s string) (n [2]int) {
		for i, part := range strings.SplitN(s, ".", 3)[:2] {
			n[i], _ = strconv.Atoi(part) // what is no number is old
		}
		return n
	}
	a, b := numbers(version+".0"), numbers(than)
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}

func (d *doctor) eviction(n *node) {
	policy, limit := n.info["maxmemory_policy"], n.info["maxmemory"]
	what := "eviction" + n.name
	switch {
	case policy == "":
		d.foundf(Note, what, "maxmemory-policy is not told; it must be noeviction")
	case policy == "noeviction":
		d.foundf(Fine, what, "maxmemory-policy is noeviction")
	case limit == "0":
		d.foundf(Note, what, "maxmemory-policy is %s: it would evict locks, were there a maxmemory; set noeviction", policy)
	default:
		d.foundf(Bad, what, "maxmemory-policy is %s: when memory is short Redis evicts locks, and a second holder gets in; set noeviction", policy)
	}
}

func (d *doctor) persistence(ctx context.Context, n *node) {
	what := "persistence" + n.name
	const bites = "a restart of Redis loses asynq's tasks, frees every lock while its holder works (holders notice at their next renewal), and ends every pause and limit of an operator"
	save, err := n.rdb.ConfigGet(ctx, "save").Result()
	switch {
	case n.info["aof_enabled"] == "1" && n.info["aof_last_write_status"] == "err":
		d.foundf(Bad, what, "the last write to the append-only file failed")
	case n.info["aof_enabled"] == "1":
		d.foundf(Fine, what, "append-only file")
	case n.info["rdb_last_bgsave_status"] == "err":
		d.foundf(Bad, what, "the last snapshot failed: %s", bites)
	case err != nil:
		d.foundf(Note, what, "no append-only file; whether snapshots are taken was not to be told (CONFIG GET: %s)", printable.OneLine(err.Error()))
	case save["save"] == "":
		d.foundf(Note, what, "none: %s", bites)
	default:
		d.foundf(Note, what, "snapshots only (save %q): a crash forgets the locks, pauses and limits of the last minutes", save["save"])
	}
}

func (d *doctor) replicas(n *node) {
	what := "replicas" + n.name
	if n.info["role"] == "slave" {
		d.foundf(Bad, what, "this is a replica: locks are taken on the master; connect to that (it is %s)", n.info["master_host"]+":"+n.info["master_port"])
		return
	}
	offset, _ := strconv.ParseInt(n.info["master_repl_offset"], 10, 64)
	replicas, late := 0, 0
	for i := range 1000 {
		text, ok := n.info[fmt.Sprintf("slave%d", i)]
		if !ok {
			break
		}
		replicas++
		its := map[string]string{} // ip=127.0.0.1,port=1,state=online,offset=9,lag=0
		for pair := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(pair, "=")
			its[key] = value
		}
		lag, _ := strconv.Atoi(its["lag"])
		at, _ := strconv.ParseInt(its["offset"], 10, 64)
		if its["state"] != "online" || lag > lagSeconds || offset-at > lagBytes {
			late++
			d.foundf(Bad, what, "%s:%s is %s, %d s and %d bytes behind: were it promoted now, it would grant locks that are held",
				its["ip"], its["port"], its["state"], lag, offset-at)
		}
	}
	switch {
	case replicas == 0:
		d.foundf(Fine, what, "none, so none can forget a lock in a failover")
	case late == 0:
		d.foundf(Fine, what, "%d, none behind; a failover may forget the locks of its last moment (docs/guarantees.md)", replicas)
	}
}

// denied tells whether Redis said that the user may not.
func denied(err error) bool {
	return err != nil && (redis.HasErrorPrefix(err, "NOPERM") || strings.Contains(err.Error(), "NOPERM"))
}

// gone tells whether there was no answer at all.
func gone(err error) bool {
	var said redis.Error
	return err != nil && !errors.As(err, &said)
}
