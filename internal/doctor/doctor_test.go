package doctor

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// What a server of another kind would say.
func TestVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"6.0.16": Bad, "5.0": Bad, "6.1.240": Bad, "x": Bad, "6.2.0": Fine, "6.2": Fine, "7.0.15": Fine, "10.0.1": Fine, "7": Fine, "": Note,
	} {
		d := &doctor{}
		d.version(&node{info: map[string]string{"redis_version": version}}, 0)
		if d.findings[0].Level != want {
			t.Errorf("%q: %+v, want %s", version, d.findings, want)
		}
	}
}

// What a server says of itself that loses locks or tasks is bad, and what it does not say is no praise.
func TestServer_findings(t *testing.T) {
	t.Parallel()
	saves := redistest.Real(t).Client(t).(*redis.Client)
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = away.Close() })
	for _, c := range []struct {
		rdb               *redis.Client
		info              map[string]string
		level, what, text string
	}{
		{saves, map[string]string{}, Note, "eviction", "maxmemory-policy is not told"},
		{saves, map[string]string{"maxmemory_policy": "noeviction"}, Fine, "eviction", "is noeviction"},
		{saves, map[string]string{"maxmemory_policy": "allkeys-lru", "maxmemory": "0"}, Note, "eviction", "were there a maxmemory"},
		{saves, map[string]string{"maxmemory_policy": "allkeys-lru", "maxmemory": "1000"}, Bad, "eviction", "a second holder gets in"},
		{saves, map[string]string{"aof_enabled": "1", "aof_last_write_status": "err"}, Bad, "persistence", "the last write to the append-only file failed"},
		{saves, map[string]string{"aof_enabled": "1", "aof_last_write_status": "ok"}, Fine, "persistence", "append-only file"},
		{saves, map[string]string{"aof_enabled": "0", "rdb_last_bgsave_status": "err"}, Bad, "persistence", "the last snapshot failed"},
		{away, map[string]string{"aof_enabled": "0"}, Note, "persistence", "whether snapshots are taken was not to be told"},
	} {
		d, n := &doctor{}, &node{rdb: c.rdb, info: c.info}
		if c.what == "eviction" {
			d.eviction(n)
		} else {
			d.persistence(t.Context(), n)
		}
		if len(d.findings) != 1 || d.findings[0].Level != c.level || d.findings[0].What != c.what || !strings.Contains(d.findings[0].Text, c.text) {
			t.Errorf("%v: %+v, want %s: %s", c.info, d.findings, c.level, c.text)
		}
	}
}
