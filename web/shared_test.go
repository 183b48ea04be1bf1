package web

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// While Redis refuses to tell the controls, one viewer asks for all, and not each of them
// again at once; the page shows the failure to all of them. When Redis tells them again, the
// page shows them.
func TestControls_failureShared(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	redistest.Must(t, v.locker.Controls().Pause(context.Background(), "a", time.Time{}, "by a test"))
	var refused atomic.Int32
	var heals atomic.Bool
	hook := &redistest.FailHook{}
	hook.Before(func(cmd redis.Cmder) error {
		var words []string
		for _, arg := range cmd.Args() {
			words = append(words, fmt.Sprint(arg))
		}
		if heals.Load() || !redistest.IsControlRead(words) {
			return nil
		}
		refused.Add(1)
		return redistest.ReplyError("ERR refused by a test")
	})
	v.rdb.AddHook(hook)
	began := time.Now()
	var viewers sync.WaitGroup
	for range 30 {
		viewers.Go(func() { v.get("/rules").want(200, "refused by a test") })
	}
	viewers.Wait()
	// The Lockers of the page and of the worker read the controls by themselves, too.
	if n, most := refused.Load(), 3*(2+int32(time.Since(began)/failedFor)); n == 0 || n > most {
		t.Errorf("Redis was asked %d times, want 1 to %d", n, most)
	}
	heals.Store(true)
	v.find("/rules", ": by a test").want(200, "paused until")
}

// An answer is for all viewers: it does not fail because the one who asked goes away, and keeps nobody
// longer than he waits. After a change the next viewer asks anew, also while a question is on its way.
func TestShared(t *testing.T) {
	t.Parallel()
	s := shared[int]{ctx: t.Context()}
	asked := 0
	ask := func(ctx context.Context) (int, time.Duration, error) { asked++; return asked, time.Hour, ctx.Err() }
	here := t.Context()
	gone, cancel := context.WithCancel(here)
	cancel()
	if n, err := s.get(gone, ask); n > 1 || !errors.Is(err, context.Canceled) {
		t.Fatalf("%d, %v; want the end of the wait", n, err)
	}
	for range 3 {
		if n, err := s.get(here, ask); n != 1 || err != nil {
			t.Fatalf("%d, %v; want the first answer", n, err)
		}
	}
	s.forget()
	if n, err := s.get(here, ask); n != 2 || err != nil {
		t.Errorf("%d, %v; want a second answer", n, err)
	}
	s.forget()
	fails := errors.New("no answer")
	n, err := s.get(here, func(context.Context) (int, time.Duration, error) { return 0, 0, fails })
	if n != 2 || !errors.Is(err, fails) {
		t.Errorf("%d, %v; want the answer of before, with the error", n, err)
	}
	s.forget()
	hangs := make(chan struct{})
	defer close(hangs)
	if n, err := s.get(gone, func(context.Context) (int, time.Duration, error) { <-hangs; return -1, 0, nil }); n != 2 || !errors.Is(err, fails) {
		t.Errorf("%d, %v while the next question hangs; want the answer of before, with the error", n, err)
	}
	s.forget()
	begun, goOn, told := make(chan struct{}), make(chan struct{}), make(chan int)
	go func() { // ends when it has told
		n, _ := s.get(here, func(context.Context) (int, time.Duration, error) {
			close(begun)
			<-goOn
			return -1, time.Hour, nil
		})
		told <- n
	}()
	<-begun
	s.forget()
	if n, err := s.get(here, ask); n != 3 || err != nil {
		t.Errorf("%d, %v; want the answer from after the change", n, err)
	}
	close(goOn)
	if n := <-told; n != 3 {
		t.Errorf("%d for the one who asked before the change, want the answer from after it", n)
	}
}
