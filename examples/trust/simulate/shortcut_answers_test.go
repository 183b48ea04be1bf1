package simulate

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// shortcutTo is a client that has a connection to s, and its endpoint.
func shortcutTo(t *testing.T, s *redisServer, faults ...faultPlan) (*redis.Client, *endpoint) {
	t.Helper()
	e := s.endpoint(0, "asynq", 1, faults)
	client := e.client()
	if err := client.Set(t.Context(), "some", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	return client, e
}

// sent is how often a client has sent something over a connection.
func sent(c *redis.Client) uint32 { return c.PoolStats().Hits + c.PoolStats().Misses }

// idleCommands are the commands that find nothing to do, as asynq and a Guard send them.
var idleCommands = map[string][]any{
	"look for a task":      {"evalsha", "abc", 4, "asynq:{default}:pending", "asynq:{default}:paused", "asynq:{default}:active", "asynq:{default}:lease", int64(1), "asynq:{default}:t:"},
	"look for a retry":     {"evalsha", "abc", 2, "asynq:{default}:retry", "asynq:{default}:pending", int64(1), "asynq:{default}:t:"},
	"look for controls":    {"evalsha", "abc", 1, "automutex:{control}", 100},
	"tell of the server":   {"evalsha", "abc", 2, "asynq:servers:{a}", "asynq:workers:{a}", 10.5, []byte("x")},
	"tell of being there":  {"zadd", "asynq:servers", 10.5, "a"},
	"tell of what runs":    {"zadd", "asynq:workers", 10.5, "a"},
	"look for a scheduled": {"evalsha", "abc", 2, "asynq:{default}:scheduled", "asynq:{default}:pending", int64(1), "asynq:{default}:t:"},
}

// The shortcut gives what a connection would give, in the same virtual time, and counts it.
func TestShortcut(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, 20 * ms} {
		for name, command := range idleCommands {
			t.Run(fmt.Sprint(name, ", latency ", latency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newRedis(&plan{Latency: latency}, t.Errorf)
					// A fault that is to come keeps the shortcut closed.
					straight, farEnd := shortcutTo(t, s, faultPlan{Kind: cut, Client: "asynq", Nth: 1000})
					short, nearEnd := shortcutTo(t, s)
					before := sent(short)
					executed := s.executed
					want, wantErr := ask(straight, command)
					began := time.Now()
					got, err := ask(short, command)
					if fmt.Sprint(got) != fmt.Sprint(want) || !errors.Is(err, wantErr) {
						t.Errorf("the shortcut gives %v, %v; a connection %v, %v", got, err, want, wantErr)
					}
					if took := time.Since(began); took > 2*latency || took == 0 && latency > 0 {
						t.Errorf("it took %s, with a latency of up to %s one way", took, latency)
					}
					if sent(short) != before || sent(straight) == before {
						t.Errorf("by a connection: %d with the shortcut, %d without", sent(short)-before, sent(straight)-before)
					}
					if nearEnd.count != farEnd.count || nearEnd.evals != farEnd.evals || s.executed != executed+2 {
						t.Errorf("counted: %d and %d with the shortcut, %d and %d without; executed %d", nearEnd.count, nearEnd.evals, farEnd.count, farEnd.evals, s.executed-executed)
					}
					closeAll(s, straight, short)
				})
			})
		}
	}
}

func ask(c *redis.Client, command []any) (any, error) {
	if command[0] == "zadd" {
		cmd := redis.NewIntCmd(context.Background(), command...)
		err := c.Process(context.Background(), cmd)
		return cmd.Val(), err
	}
	cmd := redis.NewCmd(context.Background(), command...)
	if err := c.Process(context.Background(), cmd); err != nil {
		return nil, err
	}
	val := cmd.Val()
	if list, ok := val.([]any); ok {
		list[0] = "Redis' time"
	}
	return val, nil
}

func closeAll(s *redisServer, clients ...*redis.Client) {
	for _, c := range clients {
		_ = c.Close()
	}
	s.mini.Close()
}

// A task that comes while the command is under way is found by it.
func TestShortcut_taskComes(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			s := newRedis(&plan{Latency: time.Second}, t.Errorf)
			client, _ := shortcutTo(t, s)
			enqueue := func() { _, _ = s.mini.Push("asynq:{default}:pending", "one") }
			if after == 0 {
				enqueue()
			} else {
				time.AfterFunc(after, enqueue)
			}
			if _, err := ask(client, idleCommands["look for a task"]); err == nil || errors.Is(err, redis.Nil) {
				t.Errorf("%v, want what the script answers, which Redis does not know", err)
			}
			closeAll(s, client)
		})
	}
}

// The shortcut is closed while a fault can hit the command.
func TestShortcut_faults(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultKind{hung, loading, readOnly, wrapped, misconf, setup, apart, frozen, outOfMemory} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRedis(&plan{Latency: 100 * ms}, t.Errorf)
				client, e := shortcutTo(t, s)
				command := idleCommands["look for a task"]
				e.start(faultPlan{Kind: kind, For: 10 * time.Second})
				if e.pollsShort(command) {
					t.Error("open while it goes on")
				}
				time.Sleep(11 * time.Second)
				if broken := kind == setup || kind == apart; e.pollsShort(command) == broken {
					t.Errorf("after it: open: %t; the client has a broken connection: %t", !broken, broken)
				}
				if _, err := ask(client, command); !errors.Is(err, redis.Nil) { // finds the broken connection
					t.Error(err)
				}
				if !e.pollsShort(command) {
					t.Error("closed although nothing is wrong any more")
				}
				time.AfterFunc(1, func() { e.start(faultPlan{Kind: apart, For: time.Second}) })
				if e.pollsShort(command) {
					t.Error("it answers although its connection broke on the way")
				}
				closeAll(s, client)
			})
		})
	}
}

// The shortcut is closed while one of several connections is broken: the next command may
// find that one.
func TestShortcut_oneConnectionBroken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newRedis(&plan{}, t.Errorf)
		client, e := shortcutTo(t, s)
		own := []*redis.Conn{client.Conn(), client.Conn()}
		for _, c := range own {
			if err := c.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range own {
			_ = c.Close() // into the pool
		}
		if len(e.conns) != 2 {
			t.Fatalf("%d connections, want 2", len(e.conns))
		}
		for c := range e.conns {
			c.sever()
			break
		}
		command := idleCommands["look for a task"]
		if e.pollsShort(command) {
			t.Error("open while a broken connection is in the pool")
		}
		for e.broken > 0 { // the client takes the one that it used last
			for i := range own {
				own[i] = client.Conn()
				_ = own[i].Ping(t.Context()) // one of the two is broken
			}
			for _, c := range own {
				_ = c.Close()
			}
		}
		if !e.pollsShort(command) {
			t.Error("closed although the client has found the broken connection")
		}
		closeAll(s, client)
	})
}

// The shortcut is closed while Redis stands still for another client.
func TestShortcut_frozen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newRedis(&plan{}, t.Errorf)
		client, e := shortcutTo(t, s)
		s.endpoint(1, "lock", 1, nil).start(faultPlan{Kind: frozen, For: time.Second})
		if e.pollsShort(idleCommands["look for a task"]) {
			t.Error("it answers while Redis stands still")
		}
		closeAll(s, client)
	})
}

// pollsShort tells whether the shortcut answers a command.
func (e *endpoint) pollsShort(command []any) bool {
	answered, _ := e.shortcut(context.Background(), redis.NewCmd(context.Background(), command...))
	return answered
}
