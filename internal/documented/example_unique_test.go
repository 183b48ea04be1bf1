package documented

import (
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/unique"
)

// What the section on unique speaks of.
var (
	client    *asynq.Client
	inspector *asynq.Inspector
	payload   []byte
)

func enqueueOnce() error {
	tasks, err := unique.New(client, inspector, rdb, unique.Config{Rules: uniqueRules()})
	if err != nil {
		return err
	}
	info, err := tasks.Enqueue(asynq.NewTask("itunes:verify", payload), asynq.MaxRetry(3))
	if errors.Is(err, asynq.ErrDuplicateTask) {
		return nil // one is under way; a *unique.DuplicateError says which
	}
	_ = info
	return err
}

func uniqueRules() []unique.Rule {
	once := []unique.Rule{
		{Task: "itunes:verify", On: []string{"transaction_id"}},

		// Debounce: five seconds after the last call, a minute after the first at the latest.
		{Task: "autosave", On: []string{"draft_id"}, Until: unique.UntilStart,
			Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute},
	}
	return once
}
