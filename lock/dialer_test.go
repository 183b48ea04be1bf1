package lock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
)

// switchedDialer is a client's dialer that can be told to fail.
type switchedDialer struct{ refuse atomic.Bool }

func newSwitchedDialer() *switchedDialer { return &switchedDialer{} }

func (d *switchedDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.refuse.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused by the test")}
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, addr)
}
