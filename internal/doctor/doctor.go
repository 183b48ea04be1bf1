// Package doctor looks for what keeps locks from working: Redis' settings and rights,
// and rules that do not fit the tasks that there are. The command line and the web page
// share it.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

// Levels of a Finding.
const (
	Fine = "ok"   // as it should be
	Note = "note" // may cause trouble later, or could not be checked
	Bad  = "bad"  // causes trouble now
)

// Finding is the result of one check.
type Finding struct {
	Level string `json:"level"`
	What  string `json:"what"`
	Text  string `json:"text"`
}

// Options say what to check.
type Options struct {
	Prefix  string        // of the locks
	Timeout time.Duration // of a message over Pub/Sub

	Config *automutex.Config // the rules to hold against the tasks; nil: none
	Tasks  int               // tasks to read of each queue and state at most

	// TaskCheckInterval is that of the servers, which Redis does not know. Assumed is
	// true when nobody has given it.
	TaskCheckInterval time.Duration
	Assumed           bool
}

// Examine checks everything. An error ends it early, with the findings until then: Redis
// is out of reach, or the rules have mistakes.
func Examine(ctx context.Context, rdb redis.UniversalClient, options Options) ([]Finding, error) {
	d := &doctor{rdb: rdb, Options: options}
	err := d.examine(ctx)
	return d.findings, err
}

// CountBad returns how many findings are bad.
func CountBad(findings []Finding) (n int) {
	for _, f := range findings {
		if f.Level == Bad {
			n++
		}
	}
	return n
}

// Commands returns the commands whose rights Examine tries.
func Commands() []string {
	commands := make([]string, len(trials))
	for i, t := range trials {
		commands[i] = t.command
	}
	return commands
}

// doctor collects findings.
type doctor struct {
	Options
	rdb      redis.UniversalClient
	findings []Finding
}

func (d *doctor) foundf(level, what, format string, args ...any) {
	d.findings = append(d.findings, Finding{level, what, fmt.Sprintf(format, args...)})
}

func (d *doctor) examine(ctx context.Context) error {
	for _, check := range []func(context.Context) error{d.servers, d.rights, d.pubsub, d.fleet, d.controls, d.blocked} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	if d.Config == nil {
		d.foundf(Note, "rules", "not looked at: no worker says which it runs; give the FILE of the rules")
		return nil
	}
	return d.rules(ctx, *d.Config)
}
