package unique

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// FuzzUnique: whatever two payloads, a header and the rest of a type, a task is enqueued as it was given, once for its
// key, or refused with nothing left behind; two keys do not meet.
func FuzzUnique(f *testing.F) {
	for i, pair := range [][2]string{
		{`{"id":1}`, `{"id":"1"}`}, {`{"id":1}`, `{"id":2}`}, {`{"id":"a|b"}`, `{"id":"a","b":1}`},
		{`{"id":""}`, `{"id":null}`},
		{`{"id":"\u0000"}`, `{"id":"}:claim"}`}, {`{"id":":start:x.1.0"}`, `{"id":"}:start:x.1.0"}`},
		{`{"id":"x:other"}`, `{"id":"x"}`},
		{`{"id":{"b":1,"a":[1e0]}}`, `{"id":{"a":[1],"b":1.0}}`}, {"\xff", "{"}, {`{"id":"\ud83d\ude00"}`, `{"id":"😀"}`},
		{`{"id":1,"id":2}`, `{"id":2}`},
		{`{"id":"` + strings.Repeat("é", 300) + `"}`, `{"id":"x.9"}`}, {`{"id":"default/x"}`, `{"id":"%2F"}`},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]), "acme", "", i, false)
		f.Add([]byte(pair[0]), []byte(pair[1]), "acme", "", i, true)
		f.Add([]byte(pair[1]), []byte(pair[0]), pair[0], "\xff"+pair[1], i+5, true)
		f.Add([]byte(pair[0]), []byte(pair[0]), pair[1], ":"+pair[0], i+9, true)
	}
	s := redistest.StartMini(f)
	rdb, rules := s.Client(f), kinds()
	for i := range rules {
		rules[i].OnHeaders = []string{"tenant"}
	}
	plain, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	clients := map[bool]*Client{}
	for hashed, secret := range map[bool]string{false: "", true: "a secret of sixteen bytes or more"} {
		c, err := New(plain, inspector, rdb, Config{Prefix: "fuzz", HashKeys: secret, Rules: rules})
		redistest.Must(f, err)
		clients[hashed] = c
	}
	f.Fuzz(func(t *testing.T, one, two []byte, tenant, more string, which int, hashed bool) {
		s.Mini().FlushAll()
		if _, err := s.Mini().SAdd("asynq:queues", "default"); err != nil { // which an asynq.Client says once
			t.Fatal(err)
		}
		c, rule := clients[hashed], rules[uint(which)%uint(len(rules))]
		taskOf := func(payload []byte) *asynq.Task {
			return asynq.NewTaskWithHeaders(rule.Task+more, payload, map[string]string{"tenant": tenant, more: "x"})
		}
		keyOf := func(task *asynq.Task) string {
			keys, err := c.keys.Keys(t.Context(), task)
			if err != nil {
				return ""
			}
			return keys[0]
		}
		ours := func() (keys []string) {
			for _, key := range s.Mini().Keys() {
				if strings.HasPrefix(key, "fuzz:") {
					keys = append(keys, key)
				}
			}
			return keys
		}
		tasks := func() []*asynq.TaskInfo {
			pending, _ := inspector.ListPendingTasks("default")
			scheduled, _ := inspector.ListScheduledTasks("default")
			return slices.Concat(pending, scheduled)
		}
		first := taskOf(one)
		key := keyOf(first)
		info, err := c.Enqueue(first)
		if err != nil {
			if keyless := errors.As(err, new(*automutex.KeyError)); keyless != (key == "") {
				t.Errorf("the key is %q, and the error %v", key, err)
			}
			if left := ours(); len(left) > 0 || len(tasks()) > 0 {
				t.Errorf("refused (%v), and %q is left, %d tasks", err, left, len(tasks()))
			}
			return
		}
		if key == "" {
			t.Fatalf("enqueued without a key: %+v", info)
		}
		is := tasks()
		if len(is) != 1 || is[0].ID != info.ID || is[0].Type != first.Type() || !bytes.Equal(is[0].Payload, one) ||
			!maps.Equal(is[0].Headers, first.Headers()) {
			t.Fatalf("enqueued as %+v, there are %d: %+v", info, len(is), is)
		}
		for _, key := range ours() {
			if !strings.HasPrefix(key, keyOf(first)+":claim") {
				t.Errorf("the key %q in Redis is none of %q", key, keyOf(first))
			}
		}

		// Another one: in the way if its key is the same, and only then.
		second := taskOf(two)
		same, other := keyOf(second) == key, keyOf(second)
		info2, err := c.Enqueue(second)
		is = tasks()
		duplicate := errors.As(err, new(*DuplicateError))
		switch {
		case other == "":
			if keyless := errors.As(err, new(*automutex.KeyError)); !keyless || len(is) != 1 {
				t.Errorf("without a key: %v, %d tasks", err, len(is))
			}
		case !same:
			if err != nil || len(is) != 2 || info2.ID == info.ID {
				t.Errorf("the keys %q and %q: %v, %d tasks", key, other, err, len(is))
			}
		case len(is) != 1:
			t.Errorf("%d tasks for the key %q", len(is), key)
		case rule.Duplicate == Reject:
			if !duplicate || !errors.Is(err, asynq.ErrDuplicateTask) {
				t.Errorf("a duplicate for the key %q: %+v, %v", key, info2, err)
			}
		case rule.Duplicate == Join:
			if err != nil || info2.ID != info.ID || !bytes.Equal(is[0].Payload, one) {
				t.Errorf("joined %+v, %v", info2, err)
			}
		case err != nil || !bytes.Equal(is[0].Payload, two) || info2.ID != is[0].ID:
			t.Errorf("superseded by %+v (%v), there is %+v", info2, err, is[0])
		}
		if !hashed || len(one) <= 12 || more != "" {
			return
		}
		if value := string(one[7 : len(one)-2]); strings.Contains(strings.Join(s.Mini().Keys(), " "), value) &&
			!strings.Contains(rule.Task, value) {
			t.Errorf("hashed keys tell the payload: %q", s.Mini().Keys())
		}
	})
}
