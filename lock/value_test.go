package lock_test

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// The caller's own end is an error of Acquire, and not "busy"; so is whatever else is not busy.
func TestAcquireTellsWhatIsNotBusy(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s)
		m := l.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		<-short.Done()
		for _, within := range []time.Duration{0, time.Minute, inside.MaxTTL} {
			for ctx, want := range map[context.Context]error{ended: context.Canceled, short: context.DeadlineExceeded} {
				le, ok, err := m.Acquire(ctx, within)
				if le != nil || ok || !errors.Is(err, want) || errors.Is(err, lock.ErrBusy) {
					t.Errorf("Acquire within %s with an ended context: %v, %v, %v; want %v", within, le, ok, err, want)
				}
			}
		}
		if _, ok, err := m.Acquire(t.Context(), -time.Second); ok || err == nil ||
			!strings.Contains(err.Error(), "a wait of -1s") {
			t.Errorf("Acquire within -1s: %v, %v", ok, err)
		}
		mustUnlock(t, held)
		_ = l.Close()
		for _, within := range []time.Duration{0, time.Second, inside.MaxTTL} {
			if _, ok, err := m.Acquire(t.Context(), within); ok || !errors.Is(err, lock.ErrClosed) {
				t.Errorf("Acquire of a closed Locker: %v, %v", ok, err)
			}
		}
	})
}

// Values with IDs of every kind.
type (
	room    struct{ ID int }
	intern  struct{ ID int8 }
	wide    struct{ ID uint64 }
	named   struct{ ID string }
	number  int
	numeric struct{ ID number }
	uuid    [4]byte
	item    struct{ ID uuid }
	shy     [2]byte
	hidden  struct{ ID shy }
	pointed struct{ ID *int }
	gorm    struct{ ID uint }
	user    struct {
		gorm
		Name string
	}
	lazy struct {
		*gorm
		Name string
	}
	box[T any] struct{ ID T }
	chosen     struct{ ID, Code string }
	byPointer  struct{ ID, Code string }
	textual    string
	noID       struct{ Name string }
	badID      struct{ ID []string }
	failing    struct{ ID failingText }
	floating   struct{ ID float64 }
)

func (u uuid) MarshalText() ([]byte, error) { return []byte("uuid-" + hex.EncodeToString(u[:])), nil }
func (u uuid) String() string               { return "not this" }
func (s *shy) String() string               { return "shy-" + hex.EncodeToString(s[:]) }
func (n number) String() string             { return "not this either" }
func (c chosen) LockID() string             { return c.Code }
func (b *byPointer) LockID() string         { return b.Code }
func (x textual) LockID() string            { return "text " + string(x) }

type failingText struct{ X int }

func (failingText) MarshalText() ([]byte, error) { return nil, errors.New("no text today") }

func TestFor(t *testing.T) {
	t.Parallel()
	l := lockerOn(t, redistest.Mini(t))
	n := 123
	r, pr := &room{5}, new(*room)
	*pr = r
	for i, c := range []struct {
		value any
		key   string
	}{
		{"some name", keys.Key("automutex", "some name")},
		{room{123}, keys.Key("automutex", "room", "123")},
		{room{-1}, keys.Key("automutex", "room", "-1")},
		{r, keys.Key("automutex", "room", "5")},
		{pr, keys.Key("automutex", "room", "5")},
		{intern{-128}, keys.Key("automutex", "intern", "-128")},
		{wide{1<<64 - 1}, keys.Key("automutex", "wide", "18446744073709551615")},
		{named{"a|b c"}, keys.Key("automutex", "named", "a|b c")},
		{numeric{7}, keys.Key("automutex", "numeric", "7")},
		{item{uuid{1, 2, 3, 255}}, keys.Key("automutex", "item", "uuid-010203ff")},
		{&item{uuid{1, 2, 3, 255}}, keys.Key("automutex", "item", "uuid-010203ff")},
		{hidden{shy{1, 2}}, keys.Key("automutex", "hidden", "shy-0102")},
		{&hidden{shy{1, 2}}, keys.Key("automutex", "hidden", "shy-0102")},
		{pointed{&n}, keys.Key("automutex", "pointed", "123")},
		{user{gorm{9}, "x"}, keys.Key("automutex", "user", "9")},
		{lazy{&gorm{9}, "x"}, keys.Key("automutex", "lazy", "9")},
		{box[int]{3}, keys.Key("automutex", "box[int]", "3")},
		{chosen{"no", "code"}, keys.Key("automutex", "chosen", "code")},
		{&chosen{"no", "code"}, keys.Key("automutex", "chosen", "code")},
		{&byPointer{"no", "code"}, keys.Key("automutex", "byPointer", "code")},
		{byPointer{"no", "code"}, keys.Key("automutex", "byPointer", "code")}, // a value and a pointer are one
		{textual("x"), keys.Key("automutex", "textual", "text x")},
	} {
		m := l.For(c.value)
		if insider.LockErr(m) != nil || m.Key() != c.key {
			t.Errorf("%d: For(%#v) has key %q (%v), want %q", i, c.value, m.Key(), insider.LockErr(m), c.key)
		}
	}
}

func TestForRefusesWhatHasNoIdentity(t *testing.T) {
	t.Parallel()
	l := lockerOn(t, redistest.Mini(t))
	var none *room
	var nobody *byPointer
	for i, c := range []struct {
		value any
		want  string
	}{
		{"", "the name is empty"},
		{nil, "For(<nil>(nil))"},
		{none, "For(*lock_test.room(nil))"},
		{nobody, "For(*lock_test.byPointer(nil))"},
		{room{}, "its ID is empty"},
		{&room{}, "its ID is empty"},
		{named{}, "its ID is empty"},
		{item{}, "its ID is empty"},
		{hidden{}, "its ID is empty"},
		{pointed{}, "its ID is empty"},
		{pointed{new(int)}, "its ID is empty"},
		{chosen{ID: "set"}, "its ID is empty"},
		{byPointer{ID: "set"}, "its ID is empty"},
		{lazy{}, "cannot be reached"},
		{noID{"x"}, "no field ID"},
		{badID{[]string{"x"}}, "its ID is a []string"},
		{failing{failingText{1}}, "no text today"},
		{floating{1.5}, "its ID is a float64"},
		{struct{ ID int }{1}, "a type without a name"},
		{[]int{1}, "a type without a name"},
		{map[string]int{}, "a type without a name"},
		{func() {}, "a type without a name"},
		{17, "it has no ID"},
		{number(17), "it has no ID"},
	} {
		m := l.For(c.value)
		if insider.LockErr(m) == nil || !strings.Contains(insider.LockErr(m).Error(), c.want) {
			t.Errorf("%d: For(%#v): %v, want an error with %q", i, c.value, insider.LockErr(m), c.want)
		}
		if _, err := m.TryLock(t.Context()); err == nil || err.Error() != insider.LockErr(m).Error() {
			t.Errorf("%d: TryLock: %v, want %v", i, err, insider.LockErr(m))
		}
	}
	// What is wrong with the Locker comes first.
	if err := insider.LockErr(lock.New(nil, lock.Options{}).For(nil)); err == nil ||
		!strings.Contains(err.Error(), "client is nil") {
		t.Errorf("For of a bad Locker: %v", err)
	}
}

// Parts in options come after the ID. Options that several calls share are left as they are.
func TestForTakesOptions(t *testing.T) {
	t.Parallel()
	prefix := redistest.Name(t)
	l := lockerOn(t, redistest.Mini(t), prefixed(prefix))
	shared := make([]lock.Option, 10)
	options := append(shared[:0], lock.Parts("kitchen", "2"), lock.Note("a note"))
	m := l.For(&room{1}, options...)
	if want := keys.Key(prefix, "room", "1", "kitchen", "2"); m.Key() != want || insider.LockErr(m) != nil ||
		shared[2] != nil {
		t.Fatalf("key %q, want %q (%v); options %v", m.Key(), want, insider.LockErr(m), shared)
	}
	mustTry(t, m)
	if busy := mustBeBusy(t, m); busy.Note != "a note" || busy.Name != "room" {
		t.Errorf("busy: %+v", busy)
	}
	if one := l.Mutex("room", lock.Parts("1", "kitchen", "2")); one.Key() != m.Key() {
		t.Errorf("%q and %q", one.Key(), m.Key())
	}
	if named := l.For("x", lock.Parts("a")); named.Key() != keys.Key(prefix, "x", "a") {
		t.Errorf("For of a name with Parts: %q", named.Key())
	}
}
