package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/fleet"
)

// What does not fit together in what processes run: each finding says of what it is and what to do, and
// nothing is said of what fits.
func TestMisfits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	quiet := now.Add(-2 * fleet.StoppedAfter)
	set := func(kind string, rules ...fleet.Rule) fleet.Set {
		return fleet.Set{Kind: kind, Hash: strings.Repeat(fmt.Sprint(len(rules)), 16), Runs: 2, Rules: rules}
	}
	workers := func(r ...fleet.Rule) fleet.Set { return set(fleet.Worker, r...) }
	producers := func(r ...fleet.Rule) fleet.Set { return set(fleet.Producer, r...) }
	untilStart := fleet.Rule{Task: "report:", Until: "until start", Duplicate: "replace"}
	ordered := workers(fleet.Rule{Name: "pay", Task: "pay", InOrder: true})
	one, two := fleet.Rule{Name: "mail", Task: "mail", Limit: 1, Busy: "park"}, fleet.Rule{Name: "mail", Task: "mail", Limit: 2, Busy: "park"}
	var many, others, inOrder []fleet.Rule
	var ended []fleet.Process
	for i := range mostMisfits + 5 {
		many, others = append(many, fleet.Rule{Task: fmt.Sprint(i)}), append(others, fleet.Rule{Task: fmt.Sprint(i), Limit: 2})
		inOrder = append(inOrder, fleet.Rule{Name: fmt.Sprint(i), Task: fmt.Sprint(i), InOrder: true})
		ended = append(ended, fleet.Process{Kind: fleet.Worker, Owner: fmt.Sprintf("w%d:1", i), Seen: quiet})
	}
	for what, c := range map[string]struct {
		sets      []fleet.Set
		processes []fleet.Process
		want      []string // a part of each text; "!" before one that is bad
		most      bool     // mostMisfits times want[0]
	}{
		"nobody":                     {},
		"workers that are alike":     {sets: []fleet.Set{workers(one), workers(one, fleet.Rule{Task: "b"})}},
		"workers that differ":        {sets: []fleet.Set{workers(one), workers(two, fleet.Rule{Task: "b"})}, want: []string{`!rule "mail" is not the same in all workers: <type>, limit 1, lease 0s, park in 2 of them (111111), and <type>, limit 2, lease 0s, park in 2 of them (222222); deploy one version everywhere`}},
		"many that differ":           {sets: []fleet.Set{workers(many...), workers(others...)}, want: []string{"!deploy one version everywhere"}, most: true},
		"some hash":                  {processes: []fleet.Process{{Hashed: true, Seen: now}, {Seen: now}, {Seen: quiet}}, want: []string{"!with a secret for HashKeys: 1, without: 1; they make different keys of one task: give all the same"}},
		"all hash, but one ended":    {processes: []fleet.Process{{Hashed: true, Seen: now}, {Seen: quiet}}},
		"in order, no client":        {sets: []fleet.Set{ordered}, want: []string{`rule "pay" runs tasks in order, and no process has said in the last 15 minutes that it enqueues with automutex.NewClient`}},
		"in order, a quiet client":   {sets: []fleet.Set{ordered}, processes: []fleet.Process{{Kind: fleet.Ordered, Seen: quiet}, {Kind: fleet.Producer, Seen: quiet}}},
		"many in order, no client":   {sets: []fleet.Set{workers(inOrder...)}, want: []string{"automutex.NewClient"}, most: true},
		"until start, no workers":    {sets: []fleet.Set{producers(untilStart)}},
		"until start, no rule":       {sets: []fleet.Set{producers(untilStart, one), workers(one)}, want: []string{`!producers have a unique rule for "report:" that lasts until the start, and no worker has a rule for it: nothing ends the claim at the start; give the workers a rule for it`}},
		"until done, no rule":        {sets: []fleet.Set{producers(fleet.Rule{Task: "report", Until: "until done"}), workers(one)}},
		"until start, a rule":        {sets: []fleet.Set{producers(untilStart), workers(fleet.Rule{Task: "report:", Busy: "park"})}},
		"until start, a longer rule": {sets: []fleet.Set{producers(untilStart), workers(fleet.Rule{Task: "report:daily", Busy: "park"})}},
		"until start, one skips": {
			sets: []fleet.Set{producers(untilStart), workers(fleet.Rule{Task: "report:daily", Busy: "skip"}, fleet.Rule{Task: "report:hourly", Busy: "skip"}, fleet.Rule{Task: "report", Busy: "park"})},
			want: []string{`tasks "report:" are unique until their start, and workers skip one that finds its key busy: a change that was enqueued while one ran is lost; use park or retry in the workers' rule, or until done`},
		},
		"until done, one skips": {sets: []fleet.Set{producers(fleet.Rule{Task: "report", Until: "until done"}), workers(fleet.Rule{Task: "report", Busy: "skip"})}},
		"a worker ended":        {processes: []fleet.Process{{Kind: fleet.Worker, Owner: "w:1", Seen: quiet}, {Kind: fleet.Worker, Seen: now}}, want: []string{"1 process ended without a word, or hangs: w:1; what it held is free when its leases end"}},
		"many workers ended":    {processes: ended, want: []string{"25 processes ended without a word, or hangs: w0:1, w1:1, w2:1, w3:1, w4:1 and 20 more"}},
	} {
		if c.most {
			for len(c.want) < mostMisfits {
				c.want = append(c.want, c.want[0])
			}
		}
		got := Misfits(&fleet.Fleet{At: now, Sets: c.sets, Processes: c.processes})
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v, want %q", what, got, c.want)
			continue
		}
		for i, want := range c.want {
			text, bad := strings.CutPrefix(want, "!")
			if !strings.Contains(got[i].Text, text) || got[i].Bad != bad {
				t.Errorf("%s: %+v, want %q", what, got[i], want)
			}
		}
	}
}
