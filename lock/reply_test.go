package lock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// everyCall makes each call that asks Redis for something, and wants each to fail
// with ErrBackend.
func everyCall(t *testing.T, l *Locker, name string) {
	t.Helper()
	ctx := t.Context()
	m := l.Mutex(name, Note("note"), onStop(1, func() {}))
	p := l.Pool(name)
	c := l.claim(m.Key())
	// heldLease is a lease that counts as held here, whatever Redis has.
	heldLease := func(m *Lock) *Lease {
		le := m.newLease()
		l.renewer.mu.Lock()
		defer l.renewer.mu.Unlock()
		le.deadline = time.Now().Add(time.Minute)
		return le
	}
	for call, f := range map[string]func() error{
		"TryLock":          func() error { _, err := m.TryLock(ctx); return err },
		"Lock":             func() error { _, err := m.Lock(ctx); return err },
		"LockOrPark":       func() error { _, err := m.lockOrPark(ctx, nil); return err },
		"Acquire":          func() error { _, _, err := m.Acquire(ctx, time.Minute); return err },
		"Do":               func() error { return m.Do(ctx, func(context.Context) error { t.Error("f ran"); return nil }) },
		"Locked":           func() error { _, err := m.Locked(ctx); return err },
		"Holders":          func() error { _, err := m.Holders(ctx); return err },
		"Inspect":          func() error { _, err := m.inspectAll(ctx); return err },
		"Exists":           func() error { _, err := m.existsNow(ctx); return err },
		"Line":             func() error { _, err := m.listLine(ctx, inside.Info{}, 10); return err },
		"Break":            func() error { _, err := m.Break(ctx, "token"); return err },
		"BreakAll":         func() error { _, err := m.BreakAll(ctx); return err },
		"Delete":           func() error { return m.Delete(ctx) },
		"Arrive":           func() error { _, _, err := m.arrive(ctx); return err },
		"Forget":           func() error { return m.forget(ctx) },
		"Stop":             func() error { _, err := m.askOlderToStop(ctx); return err },
		"Order.act":        func() error { return l.byOrder(m.Key()).actOrder(ctx, inside.ActPresent, inside.OrderItem{}, 0) },
		"Order.skip":       func() error { _, err := l.byOrder(m.Key()).skipHead(ctx, "note", 1); return err },
		"Pool.Put":         func() error { _, err := p.Put(ctx, "value"); return err },
		"Pool.Take":        func() error { _, err := p.Take(ctx); return err },
		"Pool.TryTake":     func() error { _, err := p.m.TryLock(ctx); return err },
		"Pool.Available":   func() error { _, err := p.available(ctx); return err },
		"Pool.Inspect":     func() error { _, err := p.Inspect(ctx); return err },
		"Pool.Delete":      func() error { _, err := p.Delete(ctx); return err },
		"Claim.Take":       func() error { _, err := c.Take(ctx, "holder", "", time.Minute); return err },
		"Claim.Keep":       func() error { _, err := c.Keep(ctx, "holder", time.Minute); return err },
		"Claim.PassOn":     func() error { _, err := c.PassOn(ctx, "holder", "next", true); return err },
		"Claim.Start":      func() error { _, err := c.Start(ctx, "holder", inside.PhaseBegun, true, time.Minute); return err },
		"Claim.Drop":       func() error { _, err := c.Drop(ctx, "holder"); return err },
		"Lease.Unlock":     func() error { return m.newLease().Unlock(ctx) },
		"Lease.Extend":     func() error { return heldLease(m).Extend(ctx, time.Minute) },
		"Lease.Consume":    func() error { return p.m.newLease().Consume(ctx) },
		"Lease of a pool":  func() error { return p.m.newLease().Unlock(ctx) },
		"Lease.Cooldown":   func() error { return m.newLease().Cooldown(ctx, time.Second) },
		"Extend of a pool": func() error { return heldLease(p.m).Extend(ctx, time.Minute) },
	} {
		if err := f(); !errors.Is(err, ErrBackend) {
			t.Errorf("%s: %v; want ErrBackend", call, err)
		}
	}
}

// fixedReply is a hook that gives a reply of its own for every script and SET, and
// sends none.
type fixedReply struct {
	reply any
	on    *atomic.Bool // false: everything passes
}

func (a fixedReply) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a fixedReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !a.answer(cmd) {
			return next(ctx, cmd)
		}
		return nil
	}
}

func (a fixedReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if !a.answer(cmd) {
				return next(ctx, cmds) // that of a new connection
			}
		}
		return nil
	}
}

func (a fixedReply) answer(cmd redis.Cmder) bool {
	if !a.on.Load() {
		return false
	}
	switch cmd := cmd.(type) {
	case interface { // *redis.Cmd, and what a release is sent as
		redis.Cmder
		SetVal(v any)
	}:
		if cmd.Name() == "evalsha" || cmd.Name() == "eval" {
			cmd.SetVal(a.reply)
			return true
		}
	case *redis.StatusCmd:
		if cmd.Name() == "set" {
			cmd.SetVal(fmt.Sprint(a.reply))
			return true
		}
	case *redis.ZSliceCmd: // of Line, which takes any; here it is one of no waiter
		cmd.SetVal([]redis.Z{{Score: 2e15, Member: "e:unknown"}})
		return true
	}
	return false
}

// A reply that no script gives is an error of every call, never a yes.
func TestReply_unknown(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]any{
		"nil": nil, "empty": "", "text": "yes", "empty list": []any{},
		"list of nil": []any{nil}, "texts for numbers": []any{"1", "1", "1", "1"},
		"nils for numbers": []any{nil, nil, nil, nil, nil}, "one number": []any{int64(1)}, "map": map[any]any{"yes": true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Mini(t).Client(t)
			hook := fixedReply{reply, new(atomic.Bool)}
			hook.on.Store(true)
			rdb.AddHook(hook)
			everyCall(t, newLocker(t, rdb), redistest.Name(t))
		})
	}
}

// A renewal counts when Redis says "renewed", and loses the lease when it says
// "lost"; any other reply is tried again until the deadline.
func TestReply_ofRenewal(t *testing.T) {
	t.Parallel()
	for _, reply := range []any{nil, "", "OK", int64(2), int64(-1), []any{int64(1)}} {
		t.Run(fmt.Sprint(reply), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Mini(t).Client(t)
			hook := fixedReply{reply, new(atomic.Bool)}
			rdb.AddHook(hook)
			le := mustTry(t, newLocker(t, rdb).Mutex(redistest.Name(t), TTL(300*time.Millisecond)))
			hook.on.Store(true)
			redistest.Eventually(t, soon, func() bool { return !le.Held() }, "the end of a lease that nothing renews")
			if early := time.Until(le.Deadline()); early > 0 {
				t.Errorf("lost %s before its deadline", early)
			}
		})
	}
}
