package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/redistest"
)

// An archived task holds its key; blocked lists it, and skip goes on with the next one.
func testBlocked(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	cfg := automutex.Config{Rules: []automutex.Rule{{Task: "pay", On: []string{"order"}, InOrder: true}}, Logger: slog.New(slog.DiscardHandler)}
	guard, err := automutex.New(rdb, cfg)
	redistest.Must(t, err)
	done := make(chan string, 1)
	server := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 2, TaskCheckInterval: redistest.CheckEvery, DelayedTaskCheckInterval: 100 * time.Millisecond, LogLevel: asynq.FatalLevel,
	}))
	err = server.Start(guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id == "first" {
			return errors.New("card refused")
		}
		done <- "second"
		return nil
	})))
	redistest.Must(t, err)
	t.Cleanup(func() { _ = guard.Close(context.Background()); server.Shutdown() })
	uri := []string{"--uri", "redis://" + s.Addr()}
	if r := b.run(t, append(uri, "blocked")...); r.exit != exitOK || !strings.Contains(r.stderr, "no ordered key") {
		t.Errorf("%+v", r)
	}
	client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
	redistest.Must(t, err)
	for _, id := range []string{"first", "second"} {
		if _, err := client.Enqueue(asynq.NewTask("pay", []byte(`{"order":7}`)), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, patience, func() bool {
		blocked, err := guard.Blocked(t.Context())
		return err == nil && len(blocked) == 1
	}, "the key is blocked")
	b.run(t, append(uri, "blocked")...).want(t, exitOK, "KEY", "automutex:{pay|7}", "default/first", "archived", "card refused")
	b.run(t, append(uri, "list")...).want(t, exitOK, "automutex:{pay|7}", "2 (in order), blocked by default/first")
	b.run(t, append(uri, "show", "pay|7")...).want(t, exitOK, "2 in order", "behind default/first, which is archived; run it again or skip it to go on: card refused", "default/second")
	b.run(t, append(uri, "doctor")...).want(t, exitNo, "order", "1 task of key automutex:{pay|7} behind default/first, which is archived")
	var key blocked.Key
	r := b.run(t, append(uri, "blocked", "--json")...).want(t, exitOK)
	if err := json.Unmarshal([]byte(r.stdout), &key); err != nil || key.Task != "default/first" || key.Behind != 1 || time.Since(key.Since) > time.Minute {
		t.Errorf("%+v, %v", key, err)
	}
	b.run(t, append(uri, "skip", "pay|7", "default/second")...).wantError(t, exitNo, "is not the next one")
	b.run(t, append(uri, "skip", "pay|8", "default/first")...).wantError(t, exitNo, "no task of key")
	b.run(t, append(uri, "skip", "pay|7")...).wantError(t, exitUsage, "KEY and TASK")
	b.run(t, append(uri, "skip", "pay|7", "default/first")...).want(t, exitOK, "skipped: default/first of automutex:{pay|7}")
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the second task does not run")
	}
}
