package web

import (
	"context"
	"errors"
	"testing"
	"time"
)

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
