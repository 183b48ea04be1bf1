package simulate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A subscription whose answer never comes ends with its connection, as the kernel ends it:
// asynq waits for that answer without a bound, and its Shutdown waits for asynq.
func TestBlackConnectionBreaks(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultKind{swallowed, late, hung} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRedis(&plan{}, t.Errorf)
				client := s.endpoint(0, "asynq", 1, []faultPlan{{Kind: kind, Client: "asynq", Nth: 1, For: 4 * time.Second}}).client()
				subscription, began := client.Subscribe(t.Context(), "orders"), time.Now()
				answered := make(chan error, 1)
				go func() { // asks without a bound, as asynq does
					_, err := subscription.Receive(context.Background())
					answered <- err
				}()
				select {
				case err := <-answered:
					if err == nil || time.Since(began) < time.Minute {
						t.Errorf("after %s: %v, want an error when the kernel gives up", time.Since(began), err)
					}
				case <-time.After(time.Hour):
					t.Error("it waits for ever")
				}
				_ = subscription.Close()
				_ = client.Close()
				synctest.Wait() // until Redis has heard of it
				s.mini.Close()
			})
		})
	}
}
