package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
)

// startAt is start with a prefix of the test's own, made of what means something in patterns.
func startAt(t *testing.T, rdb redisx.Client) *Engine {
	t.Helper()
	e := New(Options{Client: rdb, Prefix: redistest.Name(t) + `*?[a-z]\:^`, Owner: "a b|c",
		Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(e.Close)
	return e
}

func (e *Engine) ref(name string) Ref { return Ref{Key: e.o.Prefix + ":{" + name + "}", Limit: 1} }

func asked(r Ref, note string) Request { return Request{Ref: r, Note: note, TTL: time.Minute} }

// run runs a script on the keys of a lock.
func run(t *testing.T, e *Engine, script *redisx.Script, r Ref, args ...any) any {
	t.Helper()
	reply, err := e.conn.Run(t.Context(), script, r.keys(), args...)
	redistest.Must(t, err)
	return reply
}

// join puts a waiter in line that does not ask again.
func join(t *testing.T, e *Engine, r Ref, token, note string, stay time.Duration) {
	t.Helper()
	run(t, e, askScript, r, token+"|"+e.owner+"|"+note, 60000, stay.Milliseconds(), 60000, 1)
}

func parkRaw(t *testing.T, e *Engine, r Ref, note string) {
	t.Helper()
	run(t, e, askScript, r, "p."+note+"||"+note, 60000, 0, 3000, 1, 1)
}

// arrives has a task of an ordered key come to a worker, which waits for its turn for that long, or parks it.
func arrives(t *testing.T, e *Engine, r Ref, note, nonce string, ticket int64, stay time.Duration, parks bool) any {
	t.Helper()
	r.Ordered = true
	return run(t, e, orderAskScript, r, "w."+nonce+"|"+e.owner+"|"+note, 60000, stay.Milliseconds(), 1,
		oneOrZero(parks), 0, 0, 60000, nonce, ticket, 0, 25, 0)
}

func inspect(t *testing.T, e *Engine, r Ref) Info {
	t.Helper()
	info, err := e.Inspect(t.Context(), r, MaxHolders)
	redistest.Must(t, err)
	return info
}

// breaks wants a Break to take so many.
func breaks(t *testing.T, e *Engine, r Ref, how BreakKind, want int, tokens ...string) {
	t.Helper()
	if n, err := e.Break(t.Context(), r, how, tokens...); n != want || err != nil {
		t.Errorf("Break(%v, %q): %d, %v, want %d", how, tokens, n, err, want)
	}
}

// callsOf are the calls that ask Redis for something, by name.
func callsOf(e *Engine) map[string]func(context.Context, Ref) error {
	pool := func(r Ref) Ref { r.Pool = true; return r }
	place := Place{Nonce: "N", Ticket: 1, Most: -1}
	take := func(ctx context.Context, r Request) error { _, err := e.Take(ctx, &r); return err }
	return map[string]func(context.Context, Ref) error{
		"take": func(ctx context.Context, r Ref) error { return take(ctx, asked(r, "n")) },
		"wait": func(ctx context.Context, r Ref) error { return take(ctx, inLine(asked(r, "n"))) },
		"ordered": func(ctx context.Context, r Ref) error {
			r.Ordered = true
			return take(ctx, Request{Ref: r, Note: "n", TTL: time.Minute, Place: &place})
		},
		"inspect": func(ctx context.Context, r Ref) error { _, err := e.Inspect(ctx, r, 10); return err },
		"break":   func(ctx context.Context, r Ref) error { _, err := e.Break(ctx, r, BreakAll); return err },
		"put":     func(ctx context.Context, r Ref) error { _, err := e.Put(ctx, pool(r), []string{"a"}); return err },
		"arrive":  func(ctx context.Context, r Ref) error { _, _, err := e.Arrive(ctx, r, "n"); return err },
		"forget":  func(ctx context.Context, r Ref) error { return e.Forget(ctx, r, "n", 1, true) },
		"stop":    func(ctx context.Context, r Ref) error { _, err := e.Stop(ctx, r, 1); return err },
		"order_stamp": func(ctx context.Context, r Ref) error {
			_, _, _, err := e.Stamp(ctx, r, "n", "N", time.Second, 1)
			return err
		},
		"order_act": func(ctx context.Context, r Ref) error {
			return e.Act(ctx, r, ActConfirm, OrderItem{Nonce: "N", Ticket: 1, Note: "n"}, 0)
		},
		"skip": func(ctx context.Context, r Ref) error { _, err := e.Skip(ctx, r, "n", 1); return err },
		"head": func(ctx context.Context, r Ref) error { _, err := e.Head(ctx, r); return err },
		"line": func(ctx context.Context, r Ref) error { _, err := e.Line(ctx, r, Info{}, 10); return err },
		"list": func(ctx context.Context, _ Ref) (last error) {
			for _, err := range e.List(ctx) {
				last = err
			}
			return last
		},
		"sweep": func(ctx context.Context, _ Ref) error { _, err := e.Sweep(ctx); return err },
	}
}

// TestOperateFails: what each call makes of a key of another type, of an engine that is closed, and of a context that
// has ended.
func TestOperateFails(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		e := startAt(t, rdb)
		r := e.ref("list")
		for _, key := range r.keys() {
			redistest.Must(t, rdb.LPush(t.Context(), key, "x").Err())
		}
		for _, key := range []string{"list}:arrivals", "list}:order", "list}:values", "list}:marks"} {
			redistest.Must(t, rdb.LPush(t.Context(), e.o.Prefix+":{"+key, "x").Err())
		}
		redistest.Must(t, rdb.Set(t.Context(), e.ref("text").Key, "x", 0).Err())
		calls := callsOf(e)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		noLock := map[string]bool{"line": true, "list": true, "sweep": true} // no error, see there
		for name, call := range calls {
			if err := call(t.Context(), e.ref("list")); noLock[name] != (err == nil) || err != nil &&
				!errors.Is(err, redisx.ErrBackend) {
				t.Errorf("%s of a list: %v", name, err)
			}
			if err := call(over, e.ref("free")); !errors.Is(err, context.Canceled) {
				t.Errorf("%s in a context that has ended: %v", name, err)
			}
		}
		for _, name := range []string{"inspect", "break", "put", "order_stamp"} {
			if err := calls[name](t.Context(), e.ref("text")); !errors.Is(err, redisx.ErrBackend) {
				t.Errorf("%s of a text: %v", name, err)
			}
		}
		e.Close()
		for name, call := range calls {
			if err := call(t.Context(), e.ref("free")); !errors.Is(err, ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
	})
}

// fixed is a hook that gives a reply of its own for every script and SET, and sends none.
type fixed struct {
	reply any
	on    *atomic.Bool // false: everything passes
}

func (fixed) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a fixed) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if a.answers(cmd) {
			return nil
		}
		return next(ctx, cmd)
	}
}

func (a fixed) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if !a.answers(cmd) {
				return next(ctx, cmds) // that of a new connection
			}
		}
		return nil
	}
}

func (a fixed) answers(cmd redis.Cmder) bool {
	if !a.on.Load() {
		return false
	}
	is, mine := cmd.(interface{ SetVal(v any) }) // *redis.Cmd
	if mine = mine && (cmd.Name() == "set" || strings.HasPrefix(cmd.Name(), "eval")); mine {
		is.SetVal(a.reply)
	}
	return mine
}

// TestUnknownReplies: a reply that Redis never gives is an error of every call, never a yes, and no renewal.
func TestUnknownReplies(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]any{
		"nil": nil, "empty": "", "text": "yes", "list of nil": []any{nil}, "nils for numbers": []any{nil, nil, nil, nil, nil},
		"map": map[any]any{"yes": true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Mini(t).Client(t)
			hook := fixed{reply, new(atomic.Bool)}
			rdb.AddHook(hook)
			e := startAt(t, rdb)
			short := asked(e.ref("held"), "")
			short.TTL = 2 * time.Second
			le := must(t, e, short)
			hook.on.Store(true)
			for call, f := range callsOf(e) {
				if err := f(t.Context(), e.ref(call)); call != "list" && call != "sweep" && !errors.Is(err, redisx.ErrBackend) {
					t.Errorf("%s: %v; want ErrBackend", call, err)
				}
			}
			eventually(t, func() bool { return !le.Held() }, "the end of a lease that nothing renews")
			if early := time.Until(le.Deadline()); early > 0 {
				t.Errorf("lost %s before its deadline", early)
			}
		})
	}
}

// TestInspect: who holds, waits and is parked, and since when.
func TestInspect(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		e := startAt(t, s.Client(t))
		r := e.ref("a")
		if info := inspect(t, e, r); info.InUse() || info.Key != r.Key || !info.Taken.IsZero() || info.Holders != nil {
			t.Errorf("of nothing: %+v", info)
		}
		began := time.Now()
		le := must(t, e, asked(r, "note|1"))
		time.Sleep(5 * time.Millisecond)
		isTheHolder := func(info Info) {
			t.Helper()
			h := info.Holders
			if info.Held != 1 || len(h) != 1 || h[0].Token != le.Token() || h[0].Owner != "a b|c" || h[0].Note != "note|1" ||
				h[0].ExpiresIn <= time.Minute-time.Since(began)-time.Second || h[0].ExpiresIn > time.Minute+time.Second {
				t.Errorf("%+v", info)
			}
		}
		info := inspect(t, e, r)
		isTheHolder(info)
		if ago := time.Since(info.Taken); ago < 4*time.Millisecond || ago > time.Since(began)+time.Second {
			t.Errorf("taken %s ago, after %s", ago, time.Since(began))
		}
		join(t, e, r, "w.1", "first", time.Minute)
		join(t, e, r, "w.dead", "", time.Millisecond)
		parkRaw(t, e, r, "p1")
		parkRaw(t, e, r, "p2")
		time.Sleep(5 * time.Millisecond)
		info = inspect(t, e, r)
		isTheHolder(info)
		if info.Waiting != 1 || info.Parked != 2 || info.Taken.Before(began.Add(-time.Second)) || info.Gate.OpensIn != 0 {
			t.Errorf("%+v", info)
		}
		redistest.Must(t, le.CloseGate(t.Context(), time.Hour))
		if info = inspect(t, e, r); info.Gate.Reason != "closed" || info.Gate.OpensIn < 59*time.Minute {
			t.Errorf("%+v", info.Gate)
		}

		// The line: the dead one is left out, and who is called keeps its place.
		redistest.Must(t, s.Client(t).ZAdd(t.Context(), r.Key+":called", redis.Z{Score: 1e15, Member: "p2"}).Err())
		line, err := e.Line(t.Context(), r, info, 10)
		redistest.Must(t, err)
		for i := range line {
			if age := time.Since(line[i].Since); age < -time.Second || age > time.Since(began)+time.Second {
				t.Errorf("%+v", line[i])
			}
			line[i].Since = time.Time{}
		}
		want := []Waiter{{Owner: "a b|c", Note: "first"}, {Note: "p1", Parked: true},
			{Note: "p2", Parked: true, Called: true}}
		if !slices.Equal(line, want) {
			t.Errorf("the line is %+v", line)
		}
		if line, err = e.Line(t.Context(), r, info, 2); err != nil || len(line) != 2 {
			t.Errorf("the first two: %+v, %v", line, err)
		}
		if line, err = e.Line(t.Context(), e.ref("free"), info, 2); err != nil || len(line) != 0 {
			t.Errorf("of nothing: %+v, %v", line, err)
		}
	})
}

// TestParseKey: what is no lock's key is refused.
func TestParseKey(t *testing.T) {
	for _, key := range []string{
		"", "room", "other:{room}", "automutex:{room", "automutex:{}", "automutex:{room}x", "automutex:{ports}:pool",
		"automutex:{a b}", "automutex:{\xff}",
		"automutex:{a\x1b[2J}", "automutex:{" + keys.Controls + "}", "automutex:{" + strings.Repeat("x", 1<<20),
	} {
		if _, err := ParseKey("automutex", key); err == nil ||
			!strings.Contains(err.Error(), "is no key of a mutex or semaphore") || len(err.Error()) > 500 {
			t.Errorf("%.40q: %.600v", key, err)
		}
	}
	if text, err := ParseKey("automutex", "automutex:{a%20b|}"); text != "a%20b|" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// TestLook: which of several locks keeps a caller out that holds none of them, or all.
func TestLook(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		e := startAt(t, s.Client(t))
		rated := e.ref("rate")
		rated.Every = time.Hour
		names := []string{"free", "taken", "rate", "cooldown", "full, closed", "full, cooldown"}
		must(t, e, asked(e.ref("taken"), ""))
		release(t, must(t, e, asked(rated, "")))
		two := e.ref("full, cooldown")
		two.Limit = 2
		must(t, e, asked(two, ""))
		for _, r := range []Ref{e.ref("cooldown"), two} {
			_, err := must(t, e, asked(r, "")).Release(t.Context(), Ending{Cooldown: time.Hour})
			redistest.Must(t, err)
		}
		redistest.Must(t, must(t, e, asked(e.ref("full, closed"), "")).CloseGate(t.Context(), time.Hour))
		over, cancel := context.WithCancel(t.Context())
		cancel() // it looks all the same
		for held, want := range map[bool][]string{false: {"rate", "cooldown", "closed"}, true: {"cooldown", "closed",
			"cooldown"}} {
			var locks []Ref
			for _, name := range names {
				locks = append(locks, e.ref(name))
			}
			for _, reason := range want {
				at, shut, err := e.Look(over, locks, held)
				if err != nil || shut == nil || shut.Reason != reason || shut.Gate <= 0 || shut.Pause != nil ||
					!strings.HasSuffix(locks[at].Key, reason+"}") {
					t.Fatalf("held %v: %d, %+v, %v; want %s", held, at, shut, err, reason)
				}
				locks = locks[at+1:]
			}
			if _, shut, err := e.Look(over, append(locks, e.ref("free")), held); shut != nil || err != nil {
				t.Errorf("held %v: %+v, %v", held, shut, err)
			}
		}
		redistest.Must(t, s.Client(t).LPush(t.Context(), e.ref("list").Key, "x").Err())
		at, _, err := e.Look(over, []Ref{e.ref("free"), e.ref("list")}, false)
		if at != 1 || !errors.Is(err, redisx.ErrBackend) {
			t.Errorf("of a list: %d, %v", at, err)
		}
		e.Close()
		if _, _, err := e.Look(over, []Ref{rated}, false); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestBreak: what each kind takes and leaves.
func TestBreak(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		e := startAt(t, rdb)
		other := New(e.o)
		t.Cleanup(other.Close)
		r := e.ref("b")
		breaks := func(how BreakKind, want int, tokens ...string) {
			t.Helper()
			breaks(t, e, r, how, want, tokens...)
		}
		for _, how := range []BreakKind{BreakHolders, BreakAll, BreakKey, BreakGate} {
			breaks(how, 0)
		}
		le := must(t, e, asked(r, "1"))
		bound := le.Bind(t.Context())
		breaks(BreakHolders, 0, "x.y", "")
		breaks(BreakGate, 0)
		if !le.Held() {
			t.Fatal("lost")
		}
		breaks(BreakHolders, 1, le.Token())
		if le.Held() || !errors.Is(context.Cause(bound), ErrLost) {
			t.Errorf("held %v, the context ended with %v", le.Held(), context.Cause(bound))
		}
		gone := must(t, e, asked(r, "1"))
		redistest.Must(t, rdb.Del(t.Context(), r.keys()...).Err())
		for _, le := range []*Lease{le, gone} { // one knows that its lock is lost, and one does not
			if err := le.CloseGate(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) || le.Held() {
				t.Errorf("CloseGate without the lock: %v, held %v", err, le.Held())
			}
		}

		// In another process, by its messages, and to the next one in line.
		le = must(t, other, asked(r, "2"))
		join(t, e, r, "w.1", "", time.Minute)
		parkRaw(t, e, r, "p")
		other.listen()
		eventually(t, func() bool {
			return rdb.Publish(t.Context(), other.o.Prefix+":"+other.channel, "x").Val() == 1
		}, "a subscription")
		breaks(BreakHolders, 1, le.Token())
		if info := inspect(t, e, r); info.Held != 1 || info.Holders[0].Token != "w.1" || info.Parked != 1 {
			t.Errorf("%+v", info)
		}
		eventually(t, func() bool { return !le.Held() }, "a message")

		// A gate, and the lock with all there is. Who waited for the gate gets the lock, and keeps it.
		breaks(BreakAll, 1)
		le = must(t, e, asked(r, "3"))
		redistest.Must(t, le.CloseGate(t.Context(), time.Hour))
		release(t, le)
		join(t, e, r, "w.2", "", time.Minute)
		breaks(BreakAll, 1)
		if info := inspect(t, e, r); info.Held != 1 || info.Holders[0].Token != "w.2" {
			t.Errorf("%+v", info)
		}
		breaks(BreakAll, 1)
		le = must(t, e, asked(r, "3"))
		redistest.Must(t, le.CloseGate(t.Context(), time.Hour))
		breaks(BreakGate, 1)
		if !le.Held() || inspect(t, e, r).Gate.OpensIn != 0 {
			t.Error("the gate is closed, or the lock lost")
		}
		redistest.Must(t, le.CloseGate(t.Context(), time.Hour))
		breaks(BreakKey, 1)
		if n := rdb.Exists(t.Context(), append(r.keys(), r.Key+":order")...).Val(); n != 0 || le.Held() {
			t.Errorf("%d keys are left; held: %v", n, le.Held())
		}
	})
}

// TestBreak_crowd: a break takes slots from those who held them when it began, and from nobody who comes or leaves
// between its scripts.
func TestBreak_crowd(t *testing.T) {
	t.Parallel()
	for how, want := range map[BreakKind]int{BreakAll: 250, BreakKey: 250, BreakHolders: 1} {
		e, hook := hookedAt(t, redistest.Quickest(t)) // what the hook does counts as time of the command
		r := e.ref(fmt.Sprint(how))
		r.Limit = 250
		var held []*Lease
		for range r.Limit {
			held = append(held, must(t, e, asked(r, "")))
		}
		came := map[string]bool{}
		hook.After(func(cmd redis.Cmder) error {
			if args := cmd.Args(); len(args) > 2 && (args[1] == breakScript.SHA || args[1] == breakScript.Source) &&
				cmd.Err() == nil {
				if how == BreakHolders {
					for range min(50, len(held)) { // before the one that is to be broken
						_, _ = held[0].Release(t.Context(), Ending{})
						held = held[1:]
					}
					_, _ = held[len(held)-1].Release(t.Context(), Ending{}) // one that is to be broken, too
				}
				for range 120 - min(120, len(came)) {
					if le, err := take(e, asked(r, "")); err == nil {
						came[le.Token()] = true
					}
				}
			}
			return nil
		})
		breaks(t, e, r, how, want, held[200].Token(), held[249].Token())
		hook.After(nil)
		for _, h := range inspect(t, e, r).Holders {
			delete(came, h.Token)
		}
		if len(came) > 0 {
			t.Errorf("%d: %d that came meanwhile hold it no more", how, len(came))
		}
	}
}

// TestBreakSentTwice: what the first one did is told, though the second one finds nothing.
func TestBreakSentTwice(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		rdb.AddHook(redistest.Resend(func(cmd redis.Cmder) bool {
			return strings.HasPrefix(cmd.Name(), "eval") && (cmd.Args()[1] == breakScript.SHA ||
				cmd.Args()[1] == breakScript.Source)
		}))
		e := startAt(t, rdb)
		r := e.ref("twice")
		for range 2 {
			le := must(t, e, asked(r, ""))
			if breaks(t, e, r, BreakHolders, 1, le.Token()); le.Held() {
				t.Error("held")
			}
		}
		le := must(t, e, asked(r, ""))
		redistest.Must(t, le.CloseGate(t.Context(), time.Hour))
		breaks(t, e, r, BreakGate, 1)
		breaks(t, e, r, BreakKey, 0)
	})
}

// TestList: every lock once, and nothing else; and Sweep removes what is dead in them.
func TestList(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		e := startAt(t, rdb)
		want := map[string]Info{}
		for i := range 230 {
			r := e.ref(fmt.Sprint("lock ", i))
			r.Limit = 3
			info := Info{Key: r.Key, Held: 1 + i%3, Waiting: i % 2}
			for j := range info.Held {
				must(t, e, asked(r, fmt.Sprint(j)))
			}
			if info.Waiting > 0 {
				join(t, e, r, "w.1", "", time.Hour)
				join(t, e, r, "w.2", "", time.Millisecond)
			}
			want[r.Key] = info
		}
		lost := e.ref("its word is lost")
		must(t, e, asked(lost, ""))
		join(t, e, lost, "w.1", "", time.Hour)
		redistest.Must(t, rdb.Del(t.Context(), lost.Key).Err())
		want[lost.Key] = Info{Key: lost.Key, Held: 1, Waiting: 1}
		ordered := e.ref("ordered")
		_, _, _, err := e.Stamp(t.Context(), ordered, "n", "N", time.Second, 0)
		redistest.Must(t, err)
		want[ordered.Key] = Info{Key: ordered.Key, Queued: 1}

		// Not ours, or no locks, or nothing in them.
		pool := Ref{Key: e.o.Prefix + ":{pool}:pool", Limit: 1, Pool: true}
		_, err = e.Put(t.Context(), pool, []string{"a", "b"})
		redistest.Must(t, err)
		_, _, err = e.Arrive(t.Context(), e.ref("arrived"), "n")
		redistest.Must(t, err)
		must(t, e, asked(Ref{Key: e.o.Prefix + ":{x}:claim:lock", Limit: 1}, ""))
		for _, name := range []string{"{fleet}:guards", "{x}:claim", "{x}:more", "{}", "{" + keys.Controls + "}"} {
			redistest.Must(t, rdb.Set(t.Context(), e.o.Prefix+":"+name, "c.1||", time.Hour).Err())
		}
		for _, prefix := range []string{"x" + e.o.Prefix, strings.ReplaceAll(e.o.Prefix, "*", "XX")} {
			redistest.Must(t, rdb.Set(t.Context(), prefix+":{y}", "c.1||", time.Hour).Err())
		}
		redistest.Must(t, rdb.Set(t.Context(), e.ref("text").Key, "text", time.Hour).Err())
		redistest.Must(t, rdb.Set(t.Context(), e.ref("more text").Key, "+text", time.Hour).Err())
		redistest.Must(t, rdb.HSet(t.Context(), e.ref("hash").Key, "a", "b").Err())
		redistest.Must(t, rdb.LPush(t.Context(), e.ref("list").Key, "a").Err())

		got := map[string]Info{}
		for info, err := range e.List(t.Context()) {
			redistest.Must(t, err)
			if _, twice := got[info.Key]; twice || len(info.Holders) != info.Held {
				t.Errorf("twice: %v; %+v", twice, info)
			}
			got[info.Key] = Info{Key: info.Key, Held: info.Held, Waiting: info.Waiting, Queued: info.Queued}
		}
		if !maps.EqualFunc(got, want, func(a, b Info) bool {
			return a.Held == b.Held && a.Waiting == b.Waiting && a.Queued == b.Queued
		}) {
			for key := range want {
				if fmt.Sprint(got[key]) != fmt.Sprint(want[key]) {
					t.Errorf("%+v, want %+v", got[key], want[key])
				}
				delete(got, key)
			}
			t.Errorf("too many: %v", got)
		}
		n := 0
		for _, err := range e.List(t.Context()) {
			redistest.Must(t, err)
			if n++; n == 7 {
				break
			}
		}

		for i := range 250 { // a script removes a hundred at a time
			join(t, e, e.ref("lock 0"), fmt.Sprint("w.", i), "", time.Hour)
		}
		for i := range 250 { // they are killed
			redistest.Must(t, rdb.HSet(t.Context(), e.ref("lock 0").Key+":info", fmt.Sprint("w.", i), "0 3000 1 o|").Err())
		}
		passed := rdb.Time(t.Context()).Val()
		eventually(t, func() bool { return rdb.Time(t.Context()).Val().Sub(passed) > 5*time.Millisecond }, "dead waiters")
		for _, want := range []int{115 + 250, 0} { // each second lock's dead waiter, and those of one lock
			if n, err := e.Sweep(t.Context()); n != want || err != nil {
				t.Errorf("Sweep removed %d, %v, want %d", n, err, want)
			}
		}
		if info := inspect(t, e, pool); info.Free != 2 {
			t.Errorf("the pool is %+v", info)
		}

		hidden := startAt(t, struct{ redisx.Client }{rdb}) // a client that may hide a Cluster
		if _, err := hidden.Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot walk its keys") {
			t.Errorf("Sweep by a client of another type: %v", err)
		}

		// Close from inside does not wait for the loop that it is called from.
		var last error
		for _, err := range e.List(t.Context()) {
			last = err
			e.Close()
		}
		if !errors.Is(last, ErrClosed) && len(want) > walkTogether {
			t.Errorf("List of what was closed meanwhile: %v", last)
		}
	})
}

// TestPut: values once, in their order, and to whom waits.
func TestPut(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var long redistest.FailHook
		long.Before(func(cmd redis.Cmder) error {
			if len(cmd.Args()) > 3+7+2+100 {
				return errors.New("a script is to touch a hundred values at most")
			}
			return nil
		})
		rdb.AddHook(&long)
		e := startAt(t, rdb)
		r := e.ref("p")
		r.Pool = true
		put := func(want int, values ...string) {
			t.Helper()
			if n, err := e.Put(t.Context(), r, values); n != want || err != nil {
				t.Errorf("Put: %d, %v, want %d", n, err, want)
			}
		}
		put(0)
		if n, err := e.Put(t.Context(), r, []string{"a", ""}); n != 0 || err == nil || errors.Is(err, redisx.ErrBackend) {
			t.Errorf("an empty value: %d, %v", n, err)
		}
		waits, in := inLine(asked(r, "n")), make(chan struct{})
		waits.Line.OnWait = func(time.Duration) { close(in) }
		var wg sync.WaitGroup
		var le *Lease
		var err error
		redistest.Go(&wg, func() { le, err = take(e, waits) })
		<-in
		values := []string{"a |%"}
		for i := range 250 {
			values = append(values, fmt.Sprint("v ", i))
		}
		put(251, append(values, values[0], values[7])...)
		wg.Wait()
		redistest.Must(t, err)
		put(1, append(values, "new")...)
		info := inspect(t, e, r)
		if h := info.Holders; info.Held != 1 || len(h) != 1 || info.Lent[0] != "a |%" || h[0].Note != "n" ||
			h[0].Token != le.Token() {
			t.Errorf("%+v", info)
		}
		if want := append(values[1:], "new"); info.Free != 251 || !slices.Equal(info.Values, want) {
			t.Errorf("%d are free: %q", info.Free, info.Values)
		}
		if few, err := e.Inspect(t.Context(), r, 2); err != nil || few.Free != 251 ||
			!slices.Equal(few.Values, []string{"v 0", "v 1"}) {
			t.Errorf("%+v, %v", few, err)
		}
		for range 150 {
			must(t, e, asked(r, ""))
		}
		info = inspect(t, e, r)
		if len(info.Holders) != 151 || slices.Contains(info.Lent, "") {
			t.Errorf("%+v", info.Holders)
		}
		// One is broken: its value is free again. And all of it goes.
		if breaks(t, e, r, BreakHolders, 1, le.Token()); inspect(t, e, r).Values[101] != "a |%" {
			t.Error("its value is not free")
		}
		breaks(t, e, r, BreakKey, 252)
		e.mu.Lock()
		left := len(e.leases)
		e.mu.Unlock()
		if left != 0 {
			t.Errorf("%d leases are left", left)
		}
		if info = inspect(t, e, r); info.InUse() || info.Free != 0 {
			t.Errorf("left: %+v", info)
		}
	})
}

// TestOrder: stamps, what becomes of them, and the head.
func TestOrder(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		e := startAt(t, s.Client(t))
		e.parking.caller = func(context.Context, string, string) Fate { return FateUnsure }
		e.parking.rounds = maxRoundsCluster // no check begins, which would call q2 at its own time
		r := e.ref("o")
		head := func() Head {
			t.Helper()
			h, err := e.Head(t.Context(), r)
			redistest.Must(t, err)
			return h
		}
		if h := head(); h.State != "" || h.Queued != 0 {
			t.Errorf("the head of nothing: %+v", h)
		}
		if _, err := e.Skip(t.Context(), r, "", 0); !errors.Is(err, ErrNotHead) {
			t.Errorf("Skip of nothing: %v", err)
		}
		stamp := func(note, nonce string, deadline time.Duration, most int) (int64, int, []OrderItem) {
			t.Helper()
			ticket, queued, look, err := e.Stamp(t.Context(), r, note, nonce, deadline, most)
			redistest.Must(t, err)
			return ticket, queued, look
		}
		first, _, _ := stamp("q|1", "N1", time.Millisecond, 2)
		if again, _, _ := stamp("q|1", "N1", time.Millisecond, 2); again != first || first <= 0 {
			t.Errorf("sent again: %d, and %d", first, again)
		}
		second, _, _ := stamp("q2", "N2", time.Hour, 2)
		eventually(t, func() bool {
			_, _, look := stamp("q3", "N3", time.Hour, 2)
			return len(look) > 0
		}, "the first one should have come")
		ticket, queued, look := stamp("q3", "N3", time.Hour, 2)
		due := []OrderItem{{State: "i", Nonce: "N1", Ticket: first, Seen: "0", Note: "q|1"}}
		if ticket != 0 || queued != 2 || !slices.Equal(look, due) {
			t.Errorf("a full key: %d, %d, %+v", ticket, queued, look)
		}
		stamped := Head{Key: r.Key, Queued: 2, State: "i", Note: "q|1", Nonce: "N1", Ticket: first,
			Since: time.UnixMicro(first)}
		if h := head(); h != stamped {
			t.Errorf("%+v", h)
		}
		act := func(act OrderAct, item OrderItem) named {
			t.Helper()
			n, err := e.actOrder(t.Context(), r, act, item, 0)
			redistest.Must(t, err)
			return n
		}
		names := func(n named, want string) bool {
			return n.free == 1 && n.parked == 2 && n.opens < 0 && len(n.called) == 1 && strings.HasPrefix(n.called[0], want)
		}
		if n := act(ActNone, OrderItem{}); !names(n, "|l|i|N1|") {
			t.Errorf("%+v", n)
		}
		act(ActConfirm, OrderItem{Nonce: "N1", Ticket: first, Note: "q|1"})
		if h := head(); h.State != "a" || h.Failed || !h.Since.After(time.UnixMicro(first)) {
			t.Errorf("confirmed: %+v", h)
		}

		// The first one runs, the second one is parked, the third waits in a worker.
		if reply, ok := arrives(t, e, r, "q|1", "N1", first, 0, false).(int64); !ok || reply <= 0 {
			t.Errorf("the head got %v", reply)
		}
		arrives(t, e, r, "q2", "N2", second, 0, true)
		third, _, _ := stamp("q3", "N3", time.Hour, 0)
		arrives(t, e, r, "q3", "N3", third, time.Hour, false)
		r.Ordered = true
		info, err := e.Inspect(t.Context(), r, 10)
		if h := info.Head; err != nil || info.Queued != 2 || info.Held != 1 || !h.Runs || h.Failed || h.Queued != 3 {
			t.Errorf("%+v, %v", info, err)
		}
		want := []Waiter{
			{Note: "q2", Since: time.UnixMicro(second), Parked: true, Ordered: true},
			{Owner: "a b|c", Note: "q3", Since: time.UnixMicro(third), Ordered: true},
		}
		if line, err := e.Line(t.Context(), r, info, 2); err != nil || !slices.Equal(line, want) {
			t.Errorf("the line is %+v, %v", line, err)
		}
		if note, err := e.Skip(t.Context(), r, "q|1", 0); note != "q|1" || !errors.Is(err, ErrHeadRuns) {
			t.Errorf("Skip of one that runs: %q, %v", note, err)
		}
		if note, err := e.Skip(t.Context(), r, "q2", second); note != "q|1" || !errors.Is(err, ErrNotHead) {
			t.Errorf("Skip of the second: %q, %v", note, err)
		}

		// It fails, asynq retries it, and it is skipped: the second one is called, and archived.
		run(t, e, orderReleaseScript, r, "w.N1|"+e.owner+"|q|1", 1, 1, 0, "N1", "stays")
		if h := head(); !h.Failed || h.Runs {
			t.Errorf("%+v", h)
		}
		n, err := e.actOrder(t.Context(), r, "skip", OrderItem{Note: "q|1", Ticket: first}, 0)
		if err != nil || !names(n, "|c|c|N2|") || !strings.HasSuffix(n.called[0], "|q2") {
			t.Errorf("Skip: %+v, %v", n, err)
		}
		if note, err := e.Skip(t.Context(), r, "q|1", 0); note != "q2" || !errors.Is(err, ErrNotHead) {
			t.Errorf("Skip of one that has left: %q, %v", note, err)
		}
		h := head()
		_, seen, _ := strings.Cut(n.called[0], fmt.Sprint(second, "|"))
		seen, _, _ = strings.Cut(seen, "|")
		act(ActArchived, OrderItem{State: "c", Nonce: "N2", Ticket: second, Seen: seen, Note: "q2"})
		if held := head(); h.State != "c" || !held.Held() || held.Since.Before(h.Since.Add(-time.Second)) {
			t.Errorf("%+v, and archived %+v", h, held)
		}
		// All of it is forgotten by a deletion.
		if _, err := e.Break(t.Context(), r, BreakKey); err != nil || head().State != "" {
			t.Errorf("deleted: %v, %+v", err, head())
		}
	})
}

// TestDeadWaiters: while the lock is held, waiters that died leave the line before those that ask behind them: who is
// alive comes first, and knows when the holder's lease ends.
func TestDeadWaiters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e, rdb := start(t, s), s.Client(t)
		r := request(t)
		le := must(t, e, r)
		for i := range 60 {
			join(t, e, r.Ref, fmt.Sprint("dead.", i), "", time.Hour)
		}
		for i := range 60 {
			redistest.Must(t, rdb.HSet(t.Context(), r.Key+":info", fmt.Sprint("dead.", i), "0 3000 1 o|").Err())
		}
		for range 3 { // refreshes
			join(t, e, r.Ref, "c.lives", "", time.Minute)
		}
		info, err := e.Inspect(t.Context(), r.Ref, 1)
		if left := rdb.ZCard(t.Context(), r.Key+":line").Val(); left != 1 || info.Waiting != 1 || err != nil {
			t.Errorf("%d are in line, and %d count, %v; want the live one", left, info.Waiting, err)
		}
		release(t, le)
	})
}

// TestLimit_huge: no limit is too large.
func TestLimit_huge(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e, r := start(t, s), request(t)
		r.Limit = math.MaxInt
		one, two := must(t, e, r), must(t, e, inLine(r))
		release(t, one)
		if back, err := two.Release(t.Context(), Ending{}); err != nil || back < control.MaxLimit-1 {
			t.Errorf("%d are free, %v", back, err)
		}
	})
}
