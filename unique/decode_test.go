package unique

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Config.Decode makes the keys here that the Guard makes with the same one: two
// envelopes around one entity are one entity.
func TestDecode(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		var calls atomic.Int64
		notNow := errors.New("keystore: connection reset")
		decode := func(t *asynq.Task) ([]byte, error) {
			calls.Add(1)
			word, rest, _ := bytes.Cut(t.Payload(), []byte(" "))
			switch string(word) {
			case "free":
				return nil, automutex.NoLock
			case "busy":
				return nil, notNow
			case "never":
				return nil, &automutex.KeyError{Task: t.Type(), Field: "envelope"}
			}
			return rest, nil
		}
		producer, err := New(r.plain, r.inspector, r.rdb, Config{
			Prefix: r.prefix, Decode: decode,
			Rules: []Rule{{Task: "reindex", Queue: r.queue, On: []string{"id"}}},
		})
		redistest.Must(t, err)
		enqueue := func(payload string) (*asynq.TaskInfo, error) {
			return producer.Enqueue(asynq.NewTask("reindex", []byte(payload)))
		}

		info, err := enqueue(`v1 {"id": 7}`)
		if err != nil || string(info.Payload) != `v1 {"id": 7}` {
			t.Fatalf("got %+v, %v", info, err)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("Decode was called %d times for one task", n)
		}
		var duplicate *DuplicateError
		if _, err := enqueue(`v2 {"id": 7.0}`); !errors.As(err, &duplicate) {
			t.Fatalf("got %v", err)
		}
		guard, err := automutex.New(r.rdb, automutex.Config{
			Prefix: r.prefix, Decode: decode, Logger: slog.New(slog.DiscardHandler),
			Rules: []automutex.Rule{{Task: "reindex", On: []string{"id"}}},
		})
		redistest.Must(t, err)
		t.Cleanup(func() { _ = guard.Close(context.Background()) })
		if keys, err := guard.Keys(t.Context(), asynq.NewTask("reindex", info.Payload)); err != nil || len(keys) != 1 || keys[0] != duplicate.Key {
			t.Errorf("the Guard has the key %v, %v; here it is %s", keys, err, duplicate.Key)
		}

		for range 2 {
			r.must(enqueue("free"))
		}
		if n := len(r.tasks(r.queue, "reindex")); n != 3 {
			t.Errorf("%d tasks, want 3", n)
		}
		if _, err := enqueue("busy"); !errors.Is(err, notNow) || !strings.Contains(err.Error(), "Config.Decode failed") {
			t.Errorf("got %v", err)
		}
		var never *automutex.KeyError
		if _, err := enqueue("never"); !errors.As(err, &never) || never.Field != "envelope" {
			t.Errorf("got %v", err)
		}
		if _, err := enqueue("v1 id=7"); !errors.As(err, &never) || !strings.Contains(err.Error(), "the payload that Config.Decode returned is not JSON") {
			t.Errorf("got %v", err)
		}
		if _, err := r.producer(r.rdb, Rule{Task: "reindex", On: []string{"id"}}).Enqueue(asynq.NewTask("reindex", []byte("v1 {}"))); err == nil ||
			!strings.Contains(err.Error(), "set Rule.Key or Rule.OnHeaders for other encodings, or Config.Decode for JSON in an envelope") {
			t.Errorf("without Decode: got %v", err)
		}
		if n := len(r.tasks(r.queue, "reindex")); n != 3 {
			t.Errorf("%d tasks, want 3", n)
		}
	})
}
