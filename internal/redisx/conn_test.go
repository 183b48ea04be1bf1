package redisx

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// scripted is a client of unknown type: it replies what answers gives, one after the other.
type scripted struct {
	Client
	answers chan error
}

func (s *scripted) Process(_ context.Context, cmd redis.Cmder) error {
	err, more := <-s.answers
	if more {
		cmd.SetErr(err)
	} else {
		cmd.(*redis.Cmd).SetVal(int64(7))
	}
	return err
}

// TestMovingSlot: a script is sent again while a Cluster moves the slot of its keys, and its caller may leave
// meanwhile.
func TestMovingSlot(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR Error running script (call to f_abc): @user_script:3: Script attempted to access a non local key in a " +
			"cluster node",
	} {
		s := &scripted{answers: make(chan error, 3)}
		for range 3 {
			s.answers <- redistest.ReplyError(text)
		}
		close(s.answers)
		c := New(s, nil)
		if v, err := c.Run(context.Background(), NewScript("some", "return 7"), []string{"k"}); err != nil || v != int64(7) {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
}

// TestLeave: a caller whose context ends returns although no reply comes.
func TestLeave(t *testing.T) {
	t.Parallel()
	s := &scripted{answers: make(chan error)}
	defer close(s.answers)
	c := New(s, nil)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := c.Run(ctx, NewScript("some", "return 7"), []string{"k"}); !errors.Is(err, ErrNoAnswer) ||
		!errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// reloading is a client of a Cluster that counts how often it is to ask for the slots.
type reloading struct {
	Client
	times int
}

func (r *reloading) ReloadState(context.Context) { r.times++ }

// TestUnreached: the client asks for the slots anew if a node does not answer, or has a slot no more.
func TestUnreached(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]int{
		nil: 0, redis.Nil: 0, redis.ErrClosed: 0, redistest.ReplyError("NOSCRIPT No matching script"): 0,
		redistest.ReplyError("MOVED 7 127.0.0.1:1"): 1, errTimeout: 1, errors.New("connection refused"): 1,
	} {
		r := &reloading{}
		New(r, nil).sawUnreached(err)
		if r.times != want {
			t.Errorf("%v: %d times, want %d", err, r.times, want)
		}
	}
}

// TestDeleteIfEqual_theSecondOfTwo: a command that the server has refused has not run, and the SET before is another.
func TestDeleteIfEqual_theSecondOfTwo(t *testing.T) {
	s := redistest.StartMini(t)
	s.Mini().Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		switch command {
		case "DELEX":
			c.WriteError("ERR unknown")
		case "DELIFEQ":
			c.WriteInt(0)
		default:
			return false
		}
		return true
	})
	c, body := New(s.Client(t), nil), &Counted{Text: "mine"}
	for range 2 { // then it is known which one the server has
		_, err := c.SetNX(t.Context(), "k", body, 9000)
		redistest.Must(t, err)
		if deleted, err := c.DeleteIfEqual(t.Context(), nil, "k", body); deleted || err != nil || body.Resent() {
			t.Error(deleted, err, body.Resent())
		}
	}
}

// TestDeleteIfEqual: a string goes only if it is the caller's.
func TestDeleteIfEqual(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		c := New(rdb, nil)
		script := NewScript("drop", "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end "+
			"return 0")
		ctx, key := context.Background(), "automutex:{"+redistest.Name(t)+"}"
		for range 2 {
			redistest.Must(t, rdb.Set(ctx, key, "mine", time.Minute).Err())
			for _, want := range []struct {
				body    string
				deleted bool
			}{{"other", false}, {"mine", true}, {"mine", false}} {
				if deleted, err := c.DeleteIfEqual(ctx, script, key, want.body); err != nil || deleted != want.deleted {
					t.Errorf("%s: %v, %v", want.body, deleted, err)
				}
			}
		}
		redistest.Must(t, rdb.ZAdd(ctx, key, redis.Z{Member: "mine"}).Err())
		if deleted, err := c.DeleteIfEqual(ctx, script, key, "mine"); err != nil || deleted {
			t.Errorf("of another type: %v, %v", deleted, err)
		}
	})
}
