package automutextest_test

import (
	"context"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/automutextest"
)

// testReport is a test of a program: in a file of yours it is TestReport.
func testReport(t *testing.T) {
	guard := automutextest.New(t, automutex.Config{ // on a Redis in memory
		Rules: []automutex.Rule{{Task: "report", On: []string{"tenant"}, Busy: automutex.Retry}},
	})
	one := asynq.NewTask("report", []byte(`{"tenant": 1, "day": "monday"}`))
	same := asynq.NewTask("report", []byte(`{"tenant": 1, "day": "tuesday"}`))
	automutextest.ShareKey(t, guard, one, same)

	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	server := automutextest.Serve(t, guard, guard.Middleware(handler)) // a real asynq server
	release := automutextest.Hold(t, guard, one)
	task := server.Enqueue(t, same)
	task.Becomes(t, automutextest.HandedBack)
	release()
	task.Again(t)
	task.Becomes(t, automutextest.Done)
}

func Example() {
	tests := []testing.InternalTest{{Name: "TestReport", F: testReport}} // go test does this
	_ = tests
}
