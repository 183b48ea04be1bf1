package lock

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// FuzzScripts: whatever the texts of a user that reach the scripts (names, parts,
// owners, notes, values, secrets), they come back as they went in, no script
// fails, only embedded scripts run, on keys of their own, and nothing is left. On
// a miniredis and, where there is one, on a redis-server: they read Lua's
// patterns, and bytes that are no text, each in their own way.
func FuzzScripts(f *testing.F) {
	for i, text := range anyText {
		other := anyText[(i+7)%len(anyText)]
		if i%2 == 0 {
			f.Add(text, other, "name"+text, other, text, "")
		} else {
			f.Add("host:1", "default/"+text, other+"name", text, other, text)
		}
	}
	f.Add("", "", "name", "", "", "")
	servers := []*redistest.Server{redistest.StartMini(f)}
	if _, err := redistest.Version(); err == nil || os.Getenv(redistest.RequireEnv) == "require" {
		servers = append(servers, redistest.StartReal(f))
	}
	var clients []redis.UniversalClient
	var seen []*witness
	for _, s := range servers {
		rdb := s.Client(f)
		clients, seen = append(clients, rdb), append(seen, newWitness(rdb))
	}
	f.Fuzz(func(t *testing.T, owner, note, name, part, value, secret string) {
		w := words{owner: owner, note: note, name: name, part: part, value: value, secret: secret}
		for i, rdb := range clients {
			seen[i].reset()
			keys := w.walk(t, rdb)
			if err := seen[i].verdict(keys); err != nil {
				t.Errorf("%+q: %v", w, err)
			}
		}
	})
}
