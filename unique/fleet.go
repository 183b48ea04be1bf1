package unique

import (
	"cmp"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
)

// announcer makes what writes the Client's rules to Redis; see internal/fleet. It has no
// goroutine, since a Client has nothing to close.
func announcer(rdb fleet.Writer, cfg Config, rules []*rule) *fleet.Announcer {
	described := make([]fleet.Rule, len(rules))
	for i, r := range rules {
		described[i] = fleet.Rule{
			Name: r.Task, Task: r.Task, Scope: r.Scope, On: r.On, OnHeaders: r.OnHeaders, Computed: r.Key != nil, Optional: r.Optional,
			Queue: r.Queue, Until: r.Until.String(), Duplicate: r.Duplicate.String(),
		}
	}
	process := fleet.Process{Kind: fleet.Producer, Owner: inside.Process(), Hashed: cfg.HashKeys != ""}
	return fleet.New(rdb, cmp.Or(cfg.Prefix, inside.DefaultPrefix), process, described)
}
