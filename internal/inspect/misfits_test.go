package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/fleet"
)

// What does not fit together in what processes run: each finding says of what it is and what to do, and nothing is said
// of what fits.
func TestMisfits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	quiet := now.Add(-2 * fleet.StoppedAfter)
	workers := func(r ...fleet.Rule) fleet.Set {
		return fleet.Set{Kind: fleet.Worker, Hash: strings.Repeat(fmt.Sprint(len(r)), 16), Runs: 2, Rules: r}
	}
	one, two := fleet.Rule{Name: "mail", Task: "mail", Limit: 1, Busy: "park"}, fleet.Rule{Name: "mail", Task: "mail", Limit: 2, Busy: "park"}
	var many, others []fleet.Rule
	for i := range mostMisfits + 5 {
		many, others = append(many, fleet.Rule{Task: fmt.Sprint(i)}), append(others, fleet.Rule{Task: fmt.Sprint(i), Limit: 2})
	}
	for what, c := range map[string]struct {
		sets      []fleet.Set
		processes []fleet.Process
		found     int
		want      string // a part of each text
	}{
		"nobody":                  {},
		"workers that are alike":  {sets: []fleet.Set{workers(one), workers(one, fleet.Rule{Task: "b"})}},
		"a producer that differs": {sets: []fleet.Set{workers(one), {Kind: fleet.Producer, Rules: []fleet.Rule{two}}}},
		"workers that differ": {sets: []fleet.Set{workers(one), workers(two, fleet.Rule{Task: "b"})}, found: 1, want: `rule "mail" is not the same in all workers: <type>, limit 1, lease 0s, park in 2 of them (111111), ` +
			`and <type>, limit 2, lease 0s, park in 2 of them (222222); deploy one version everywhere`},
		"many that differ":        {sets: []fleet.Set{workers(many...), workers(others...)}, found: mostMisfits, want: "deploy one version everywhere"},
		"some hash":               {processes: []fleet.Process{{Hashed: true, Seen: now}, {Seen: now}, {Seen: quiet}}, found: 1, want: "with a secret for HashKeys: 1, without: 1; they make different keys of one task: give all the same"},
		"all hash, but one ended": {processes: []fleet.Process{{Hashed: true, Seen: now}, {Seen: quiet}}},
	} {
		got := Misfits(&fleet.Fleet{At: now, Sets: c.sets, Processes: c.processes})
		for _, m := range got {
			if !strings.Contains(m.Text, c.want) || !m.Bad {
				t.Errorf("%s: %+v, want %q", what, m, c.want)
			}
		}
		if len(got) != c.found {
			t.Errorf("%s: %+v, want %d", what, got, c.found)
		}
	}
}
