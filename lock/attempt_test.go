package lock

import (
	"context"
	"testing"
	"time"
)

// attempt is a call to Lock that runs beside the test.
type attempt struct {
	lock   *Lock
	cancel context.CancelFunc
	done   chan struct{} // closed when lease and err are set
	lease  *Lease
	err    error
	took   time.Duration
}

// lockBeside calls Lock on a goroutine that ends with the test at the latest.
func lockBeside(t testing.TB, m *Lock) *attempt {
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	a := &attempt{lock: m, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		began := time.Now()
		a.lease, a.err = m.Lock(ctx)
		a.took = time.Since(began)
	}()
	t.Cleanup(func() { cancel(); <-a.done })
	return a
}

// inLine is lockBeside that returns when Redis has the waiter in line, as the
// n-th of all.
func inLine(t testing.TB, m *Lock, n int) *attempt {
	t.Helper()
	a := lockBeside(t, m)
	waiting(t, m, n)
	return a
}

// got waits for the lease.
func (a *attempt) got(t testing.TB) *Lease {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(soon):
		t.Fatalf("Lock has not returned within %s; %s", soon, dump(a.lock))
	}
	if a.err != nil {
		t.Fatalf("Lock: %v; %s", a.err, dump(a.lock))
	}
	return a.lease
}

// failed waits for the error.
func (a *attempt) failed(t testing.TB) error {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(soon):
		t.Fatalf("Lock has not returned within %s", soon)
	}
	if a.err == nil {
		t.Fatal("Lock took the lock, want an error")
	}
	return a.err
}

func (a *attempt) pending() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}
