package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// A waiter of the releaser's own Locker is granted the lock without a message,
// by the reply; one of another by a message.
func TestGrantIsToldByTheReply(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		other := handle(newLocker(t, s.Client(t)), m)
		messages := func(m *Lock) <-chan string {
			sub := raw(m).Subscribe(t.Context(), m.locker.prefix+":"+m.locker.channel)
			t.Cleanup(func() { _ = sub.Close() })
			if _, err := sub.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := make(chan string, 10)
			go func() { // ends with sub
				for msg := range sub.Channel() {
					got <- msg.Payload
				}
			}()
			return got
		}
		own, others := messages(m), messages(other)
		le := mustTry(t, m)
		for range 3 {
			w := inLine(t, m, 1)
			mustUnlock(t, le)
			le = w.got(t)
		}
		w := inLine(t, other, 1)
		mustUnlock(t, le)
		le = w.got(t)
		if msg, ok := wire.ParseMessage(come(t, others, "a message")); !ok || msg.Token != le.token {
			t.Errorf("the other Locker is sent %v, want a grant of %s", msg, le.token)
		}
		// What is published now comes after all that was published before.
		redistest.Must(t, raw(m).Publish(t.Context(), m.locker.prefix+":"+m.locker.channel, "end").Err())
		if msg := come(t, own, "the last message"); msg != "end" {
			t.Errorf("a Locker whose own release granted the lock is sent %q as well", msg)
		}
		mustUnlock(t, le)
	})
}

// The reply that told of a grant is lost; the release that is sent again tells of
// none. The waiter asks at once, and not when its refresh is due.
func TestGrantToldByALostReply(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		_, far, p := through(t, s)
		m := far.Mutex(redistest.Name(t))
		warm(t, m)
		for range 5 { // a refresh may be due by chance
			le := mustTry(t, m)
			w := inLine(t, m, 1)
			p.DropReplyTo(isScript(wire.ReleaseScript, m), 1)
			began := time.Now()
			mustUnlock(t, le)
			le = w.got(t)
			took := time.Since(began)
			mustUnlock(t, le)
			if took < turn.RefreshEvery/2 {
				return
			}
		}
		t.Errorf("each time the waiter came for its grant with its refresh only")
	})
}
