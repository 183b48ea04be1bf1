package floors

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/automutextest"
	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/metrics"
	"github.com/automutex/automutex/unique"
)

const rules = `
rules:
  - {task: "itunes:verify", on: [transaction_id], busy: park}
unique:
  - {task: "itunes:verify", on: [transaction_id]}
`

func TestQuickStart(t *testing.T) {
	cfg, once, err := config.Parse([]byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	m, err := metrics.New(prometheus.NewRegistry(), metrics.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Observe = m.Observe
	guard := automutextest.New(t, cfg)
	rdb := guard.Redis()

	var output bytes.Buffer // written by one goroutine of exec, and read after Wait
	worker := exec.Command(os.Getenv("QUICKSTART"))
	worker.Env = append(os.Environ(), "REDIS_ADDR="+rdb.Options().Addr)
	worker.Stdout, worker.Stderr = &output, &output
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return // it has ended
		}
		_ = worker.Process.Kill()
		_ = worker.Wait()
		t.Logf("the worker's output:\n%s", output.String())
	})

	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	tasks, err := unique.New(client, inspector, rdb, once)
	if err != nil {
		t.Fatal(err)
	}
	task := asynq.NewTask("itunes:verify", []byte(`{"transaction_id":7}`))
	info, err := tasks.EnqueueContext(t.Context(), task, asynq.Retention(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the task has run", func() bool {
		now, err := inspector.GetTaskInfo(info.Queue, info.ID)
		return err == nil && now.State == asynq.TaskStateCompleted
	})

	keys, err := guard.Keys(t.Context(), task)
	if err != nil || len(keys) != 1 {
		t.Fatalf("the keys are %q, %v", keys, err)
	}
	locker := lock.New(rdb, lock.Options{})
	defer locker.Close()
	if err := locker.Mutex("itunes").Do(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	var ran bool
	handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		_, ran = automutex.Lease(ctx)
		return nil
	}))
	if err := handler.ProcessTask(t.Context(), task); err != nil || !ran {
		t.Errorf("the handler ran under its lease: %t; %v", ran, err)
	}

	if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := worker.Wait(); err != nil {
		t.Errorf("the worker ended with %v", err)
	}
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30s: %s", what)
		}
	}
}
