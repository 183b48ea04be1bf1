//go:build go1.25

package control

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// slowClient runs scripts on its controls, in the middle of the time that a reply takes. Its time is that of a synctest
// bubble.
type slowClient struct {
	fakeClient
	takes atomic.Int64
	fails atomic.Pointer[error]
	reads atomic.Int64
	busy  atomic.Int64
	most  atomic.Int64 // reads that were under way at once
}

func (c *slowClient) Process(ctx context.Context, cmd redis.Cmder) error {
	c.reads.Add(1)
	c.most.Store(max(c.most.Load(), c.busy.Add(1)))
	defer c.busy.Add(-1)
	takes := time.Duration(c.takes.Load())
	select {
	case <-time.After(takes / 2):
	case <-ctx.Done():
	}
	if err := c.fails.Load(); err != nil {
		cmd.SetErr(*err)
		return *err
	}
	_ = c.fakeClient.Process(ctx, cmd)
	select {
	case <-time.After(takes / 2):
	case <-ctx.Done():
		cmd.SetErr(ctx.Err())
	}
	return cmd.Err()
}

// Whatever a reply takes, a call that Know lets through obeys each change that is older than Delay, if Redis replies
// within 1.7 s.
func TestReader_slow(t *testing.T) {
	for _, takes := range []time.Duration{0, 100 * time.Millisecond, 900 * time.Millisecond, 1100 * time.Millisecond,
		1600 * time.Millisecond, 2500 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, c := &redistest.Log{}, &slowClient{}
				r := newReader(t, c, log)
				c.takes.Store(int64(takes))
				late := takes > Delay
				paused := false
				for range 7 {
					if paused = !paused; paused {
						c.set("pause report", `{"by":"a"}`)
					} else {
						c.set("report", "")
					}
					changed, waited := time.Now(), time.Duration(0)
					for time.Since(changed) < 10*time.Second {
						began := time.Now()
						redistest.Must(t, r.Know(t.Context(), "p:{report}"))
						if time.Since(changed) > Delay {
							waited = max(waited, time.Since(began))
						}
						inForce := time.Since(changed) > Delay
						if late {
							inForce = time.Since(changed) > takes+time.Second
						}
						if got := r.Bounds("p:{report}", Bounds{Slots: 3}).Slots; inForce && (got == 0) != paused {
							t.Fatalf("%s after the change: %d slots, paused %v", time.Since(changed), got, paused)
						}
						time.Sleep(10 * time.Millisecond)
					}
					if waited > 0 && !late {
						t.Errorf("a call waited %s for a read", waited)
					}
				}
				if said := strings.Count(log.String(), "the controls cannot be read"); said != 0 && !late || said != 1 && late {
					t.Errorf("logged: %s", log.String())
				}
				if most := int64(70 / (ReadEvery - 100*time.Millisecond).Seconds()); takes < 100*time.Millisecond &&
					c.reads.Load() > most {
					t.Errorf("%d reads in 70 s", c.reads.Load())
				}
				c.takes.Store(0)
				time.Sleep(5 * time.Second)
				if strings.Contains(log.String(), "can be read again") != late {
					t.Errorf("logged: %s", log.String())
				}
			})
		})
	}
}

// One read that hangs delays nobody, and nothing is taken for known meanwhile.
func TestReader_outage(t *testing.T) {
	for what, err := range map[string]error{"hang": nil, "fail": context.DeadlineExceeded,
		"loading": redistest.ReplyError("LOADING"), "refused": redistest.ReplyError("NOPERM")} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, c := &redistest.Log{}, &slowClient{}
				r := newReader(t, c, log)
				out := func(on bool) {
					c.takes.Store(0)
					c.fails.Store(nil)
					if on && err == nil {
						c.takes.Store(int64(time.Minute))
					} else if on {
						c.fails.Store(&err)
					}
				}
				know := func(want int) {
					t.Helper()
					began := time.Now()
					redistest.Must(t, r.Know(t.Context(), "p:{report}"))
					if took := time.Since(began); took > Delay+readOverdue {
						t.Errorf("a call waited %s", took)
					}
					if got := r.Bounds("p:{report}", Bounds{Slots: 3}).Slots; got != want {
						t.Errorf("%d slots, want %d", got, want)
					}
				}
				out(true)
				know(3)
				know(3)
				c.set("pause report", `{"by":"a"}`)
				out(false)
				if time.Sleep(time.Millisecond); what == "refused" { // the cause is gone: the next call reads
					know(0)
				}
				time.Sleep(time.Minute) // a read that hangs is given up after 5 s
				know(0)
				out(true)
				time.Sleep(ReadEvery + time.Millisecond)
				if err == nil { // the one that is under way hangs alone
					c.takes.Store(0)
					time.Sleep(readOverdue)
					began := time.Now()
					if know(0); time.Since(began) > 0 {
						t.Errorf("a call waited %s", time.Since(began))
					}
					out(true)
				}
				for range 100 {
					know(0)
					time.Sleep(200 * time.Millisecond)
				}
				if said := strings.Count(log.String(), "the controls cannot be read; this process obeys those"); said != 1 {
					t.Errorf("logged: %s", log.String())
				}
				c.set("report", "")
				out(false)
				time.Sleep(time.Minute)
				know(3)
				time.Sleep(time.Millisecond) // a read of this instant may have begun
				out(true)
				fails := what == "fail" || what == "refused"
				if !fails {
					time.AfterFunc(time.Second, func() { out(false) })
				}
				if _, failed := r.Fetch(t.Context()); (failed != nil) != fails {
					t.Errorf("Fetch: %v", failed)
				}
				out(false)
				if most := c.most.Load(); most > mostReads {
					t.Errorf("%d reads at once", most)
				}
				c.set("pause report", `{"by":"a"}`)
				r = newReader(t, c, log)
				out(true)
				time.AfterFunc(time.Second, func() { out(false) })
				if what == "hang" || what == "loading" { // a new Locker waits for its first read
					know(0)
				}
				time.Sleep(10 * time.Second) // until the last ends that hangs
			})
		})
	}
}
