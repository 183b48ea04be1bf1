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
	tasks, err := unique.New(client, inspector, rdb, unique.Config{Rules: []unique.Rule{
		{Task: "itunes:verify", On: []string{"transaction_id"}},
	}})
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
		// Whatever changed before Enqueue is seen by a run that begins after it.
		{Task: "reindex", On: []string{"document_id"}, Until: unique.UntilStart, Duplicate: unique.Join},

		// At most every ten minutes.
		{Task: "digest", On: []string{"user_id"}, Until: unique.For(10 * time.Minute)},

		// Debounce: five seconds after the last call, a minute after the first at the latest.
		{Task: "autosave", On: []string{"draft_id"}, Until: unique.UntilStart,
			Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute},

		// The newest payload wins while the task has not started.
		{Task: "price:push", On: []string{"sku"}, Duplicate: unique.Replace},
	}
	return once
}
