package doctor

import (
	"context"
	"log/slog"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// fleet tells what does not fit together in what the processes run. Without a Config the
// rules that workers say they run are held against the tasks.
func (d *doctor) fleet(ctx context.Context) error {
	f, err := fleet.Read(ctx, d.rdb, d.Prefix)
	switch {
	case denied(err):
		d.foundf(Note, "fleet", "this user may not read what the processes run: %s", reason(err))
		return nil
	case err != nil:
		return inspect.Backend(err)
	}
	misfits := inspect.Misfits(f)
	for _, m := range misfits {
		level := Note
		if m.Bad {
			level = Bad
		}
		d.foundf(level, "fleet", "%s", printable.OneLine(m.Text))
	}
	if n := len(f.Processes); n > 0 && len(misfits) == 0 {
		d.foundf(Fine, "fleet", "processes that say what they run: %d; their rules fit together", n)
	}
	rules := f.Rules(fleet.Worker)
	if d.Config != nil || len(rules) == 0 {
		return nil
	}
	cfg := automutex.Config{Prefix: d.Prefix, Rules: inspect.FromFleet(rules), Logger: slog.New(slog.DiscardHandler)}
	if _, err := automutex.NewKeyMaker(cfg); err == nil {
		d.Config = &cfg
	} else {
		d.foundf(Note, "rules", "not looked at: what different workers run makes no one set of rules")
	}
	return nil
}
