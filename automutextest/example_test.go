package automutextest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/automutextest"
)

// A program: its rules, its tasks, its handlers.

var rules = []automutex.Rule{
	{Task: "itunes:verify", On: []string{"transaction_id"}, Busy: automutex.Retry},
	{Task: "cron:digest", Cooldown: 10 * time.Minute, Busy: automutex.Skip},
}

type verification struct {
	TransactionID int    `json:"transaction_id"`
	Receipt       string `json:"receipt"`
}

func verifyTask(transaction int, receipt string) *asynq.Task {
	payload, err := json.Marshal(verification{transaction, receipt})
	if err != nil {
		panic(err)
	}
	return asynq.NewTask("itunes:verify", payload)
}

func verify(context.Context, *asynq.Task) error { return nil }

func newMux(guard *automutex.Guard) *asynq.ServeMux {
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.HandleFunc("itunes:verify", verify)
	mux.HandleFunc("cron:digest", func(context.Context, *asynq.Task) error { return nil })
	return mux
}

func TestReport(t *testing.T) { testReport(t) }

// Its tests, as the README has them.

func TestVerify_keys(t *testing.T) {
	guard := automutextest.New(t, automutex.Config{Rules: rules}) // on a Redis in memory
	automutextest.ShareKey(t, guard, verifyTask(1, "a"), verifyTask(1, "b"))
	automutextest.ShareNoKey(t, guard, verifyTask(1, "a"), verifyTask(2, "a"))
}

func TestVerify_comesBackWhenBusy(t *testing.T) {
	guard := automutextest.New(t, automutex.Config{Rules: rules})
	server := automutextest.Serve(t, guard, newMux(guard.Guard)) // a real asynq server
	release := automutextest.Hold(t, guard, verifyTask(1, "a"))

	task := server.Enqueue(t, verifyTask(1, "b"))
	task.Becomes(t, automutextest.HandedBack)
	release()
	task.Again(t) // asynq would, in a few seconds
	task.Becomes(t, automutextest.Done)
}

func TestDigest_onceInTenMinutes(t *testing.T) {
	guard := automutextest.New(t, automutex.Config{Rules: rules})
	server := automutextest.Serve(t, guard, newMux(guard.Guard))
	digest := asynq.NewTask("cron:digest", nil)
	server.Enqueue(t, digest).Becomes(t, automutextest.Done)
	server.Enqueue(t, digest).Becomes(t, automutextest.Skipped)
}

func TestVerify_neverTwiceAtOnce(t *testing.T) {
	guard := automutextest.New(t, automutex.Config{Rules: rules})
	runs := automutextest.Watch(t, guard, asynq.HandlerFunc(verify), func(task *asynq.Task) string {
		var v verification
		_ = json.Unmarshal(task.Payload(), &v)
		return fmt.Sprint(v.TransactionID) // what two runs must not share
	})
	server := automutextest.Serve(t, guard, guard.Middleware(runs))
	for i := range 30 {
		server.Enqueue(t, verifyTask(i%3, fmt.Sprint(i)))
	}
	server.Drain(t)
	runs.AtMostAtOnce(t, 1)
}
