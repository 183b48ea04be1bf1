package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine/rate"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
)

// fakeClient has controls, and runs the script read.
type fakeClient struct {
	redisx.Client
	mu      sync.Mutex
	entries []any
}

// set makes entry the only one; "" is none.
func (c *fakeClient) set(target, entry string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries = nil; entry != "" {
		c.entries = []any{target, entry}
	}
}

func (c *fakeClient) Process(_ context.Context, cmd redis.Cmder) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cmd.(*redis.Cmd).SetVal([]any{time.Now().UnixMicro(), int64(len(c.entries) / 2), c.entries})
	return nil
}

func newReader(t *testing.T, rdb redisx.Client, log *redistest.Log, change ...func(*Options)) *Reader {
	t.Helper()
	l, secret := life.New(), ""
	o := Options{Life: l, Log: log.Logger(), Prefix: "p", Secret: &secret, Owner: "alice", Changed: func(*State) {}}
	for _, change := range change {
		change(&o)
	}
	o.Conn = redisx.New(rdb, l.Closing.Done())
	t.Cleanup(func() { <-l.End() })
	return New(o)
}

// onServer makes a Reader with a prefix of its own.
func onServer(
	t *testing.T, s *redistest.Server, change ...func(*Options),
) (*Reader, redis.UniversalClient, *redistest.Log) {
	t.Helper()
	rdb, log := s.Client(t), &redistest.Log{}
	own := func(o *Options) { o.Prefix = redistest.Name(t) }
	return newReader(t, rdb, log, append([]func(*Options){own}, change...)...), rdb, log
}

// What a person types is for the scope or the key of that very name, whatever characters it has. What is listed is for
// the same one.
func TestTarget(t *testing.T) {
	long, hash := strings.Repeat("long ", 60)+"x", "~"+strings.Repeat("0a", 32)
	rules := func(text string) bool { return text == "x|y" }
	for secret, tests := range map[string][]struct{ typed, stored string }{
		"": {
			{"report", "report"}, {"itunes:", "itunes:"}, {"control", "control"}, {"p:{control}", "control"},
			{"p:{%63ontrol}", "control"},
			{"a b", "a%20b"}, {"a%20b", "a%2520b"}, {"a%2520b", "a%252520b"}, {"50%", "50%25"}, {"re{port}", "re%7Bport%7D"},
			{"a~b", "a%7Eb"}, {"~", "%7E"},
			{"%63ontrol", "%2563ontrol"}, {"other:{report}", "other:%7Breport%7D"}, {long, keys.Scope(long)},
			{hash, "%7E" + hash[1:]},
			{"report|acme", "report|acme"}, {"report|", "report|"}, {"report|a b|50%", "report|a%20b|50%25"},
			{"a%20b|c%20d", "a%2520b|c%2520d"}, {"report|~x", "report|%7Ex"},
			{"report|" + hash, "report|" + hash}, {"a b|" + hash, "a%20b|" + hash}, {"x|y", "x%7Cy"}, {"x|z", "x|z"},
			{"x|y|z", "x|y|z"},
			{"p:{a%20b}", "a%20b"}, {"p:{a%20b|}", "a%20b|"}, {"p:{" + hash + "|a}", hash + "|a"}, {"p:{~}", "~"},
			{"p:{~|a}", "~|a"}, {"p:{a%20b:}", "a%20b:"},
			{"report|" + long, keys.Key("", "report", long)[2:][:72]},
			{"", ""}, {" report", ""}, {"report ", ""}, {"|a", ""}, {"a\nb", ""}, {"\xff", ""}, {strings.Repeat("x", 1001), ""},
			{"p:{a b}", ""}, {"p:{50%}", ""}, {"p:{}", ""}, {"p:{report", ""}, {"p:{report}:claim", ""}, {"p:{a}b}", ""},
			{"p:{|a}", ""}, {"p:{report|~x}", ""}, {"p:{a~b|c}", ""},
			{"p:{%7e}", ""}, {"p:{report|" + hash + "|a}", ""}, {"p:{report|" + strings.Repeat("y", 201) + "}", ""},
			{"p:{" + strings.Repeat("z", 201) + "|a}", ""},
			{"p:{report|" + strings.ToUpper(hash) + "}", ""},
		},
		"a secret of 16 b": {
			{"report", "report"}, {"report|" + hash, "report|" + hash}, {"p:{report|" + hash + "}", "report|" + hash},
			{"p:{report|acme}", ""},
			{"report|a b", keys.HashedKey("a secret of 16 b", "", "report", "a b")[2:][:72]},
		},
	} {
		r := newReader(t, &fakeClient{}, &redistest.Log{}, func(o *Options) { o.Secret, o.HasScope = &secret, rules })
		for _, test := range tests {
			got, err := r.Target(test.typed)
			if (err == nil) != (test.stored != "") || err == nil && got != test.stored || err != nil &&
				!strings.Contains(err.Error(), "a target is a scope") {
				t.Errorf("%q is stored as %q, %v; want %q", test.typed, got, err, test.stored)
			}
			if test.stored == "" {
				continue
			}
			shown := r.Typed(got)
			if again, err := r.Target(shown); err != nil || again != got {
				t.Errorf("%q, stored as %q, is listed as %q, which is %q, %v", test.typed, got, shown, again, err)
			}
			for key, want := range map[string]bool{"p:{" + got + "}": true, "p:{" + got + "x}": strings.HasSuffix(got, ":"),
				"p:{other}": false} {
				if AppliesTo(shown, key) != want {
					t.Errorf("%q applies to %s: %v", shown, key, !want)
				}
			}
		}
	}
}

// The narrowest target decides, each for its kind of order, at no cost. No order is for anything else that has a key
// there.
func TestSlots(t *testing.T) {
	c := &fakeClient{}
	for i, target := range []string{"a:", "a:b:", "a:b:c", "a:b:c|1", "a", "control"} {
		c.entries = append(c.entries, "limit "+target, fmt.Sprintf(`{"limit":%d}`, i+2))
	}
	c.entries = append(c.entries, "rate a:", `{"rate":"10/1s burst 3"}`, "rate a:b:c", `{"rate":"1/1m"}`,
		"pause a:b:d", `{"by":"bob"}`, "pause long", `{"paused_until":"2500-01-01T00:00:00Z"}`,
		"pause over", `{"paused_until":"2001-01-01T00:00:00Z"}`)
	r := newReader(t, c, &redistest.Log{})
	if got := r.Bounds("p:{a:b:d}", Bounds{Slots: 1}); got.Slots != 0 || got.Pause != Unread {
		t.Errorf("%+v before anything was read", got)
	}
	redistest.Eventually(t, redistest.Patience, func() bool { return r.Latest() != nil },
		"a read that Slots has asked for")
	for key, want := range map[string]int{
		"p:{a:b:c|1}": 5, "p:{a:b:c|2}": 4, "p:{a:b:e}": 3, "p:{a:b}": 2, "p:{a}": 6, "p:{ab:}": 1, "p:{b:a:}": 1,
		"p:{%63ontrol}": 7, "p:{control|x}": 7,
		"p:{a:b:d}": 0, "p:{a:b:d|x}": 0, "p:{long}": 0, "p:{over}": 1, "p:{a}:claim": 1, "p:pool:{a}": 1, "q:{a}": 1,
	} {
		redistest.Must(t, r.Know(t.Context(), key))
		if got := r.Bounds(key, Bounds{Slots: 1}).Slots; got != want {
			t.Errorf("%s: %d slots, want %d", key, got, want)
		}
		left, paused := r.Lasts(r.PauseOf(key))
		if paused != (want == 0) || (left > 0) != (key == "p:{long}") {
			t.Errorf("%s: %v, %s", key, paused, left)
		}
	}
	for key, want := range map[string]time.Duration{
		"p:{a:b:c|1}": time.Minute, "p:{a:b}": 100 * time.Millisecond, "p:{b}": 1,
	} {
		if b := r.Bounds(key, Bounds{Every: 1}); b.Every != want || (b.Spare == 2*want) != (key == "p:{a:b}") ||
			b.Known == nil {
			t.Errorf("%s: %+v; want %s", key, b, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = r.Bounds("p:{a:b:c|1}", Bounds{Slots: 1}).Slots }); n > 0 {
		t.Errorf("Slots allocates %v times", n)
	}
}

// A view is relied on as long as it is young.
func TestView(t *testing.T) {
	now := time.Now()
	old := now.Add(-Delay - time.Second)
	for what, test := range map[string]struct {
		view view
		want int
	}{
		"just read":             {view{state: &State{sent: now}}, 3},
		"read long ago":         {view{state: &State{sent: old}}, 0},
		"by the wall clock":     {view{state: &State{sent: now.Round(0).Add(-time.Hour)}}, 0},
		"blind":                 {view{state: &State{sent: old}, blind: now}, 3},
		"blind long ago":        {view{state: &State{sent: old}, blind: old}, 0},
		"blind, nothing read":   {view{blind: now}, 3},
		"nothing read long ago": {view{blind: old}, 0},
	} {
		r := newReader(t, &fakeClient{}, &redistest.Log{})
		r.view.Store(&test.view)
		r.sawRead(read{sent: old.Add(time.Millisecond), err: context.DeadlineExceeded}, now)
		if got := r.Bounds("p:{report}", Bounds{Slots: 3}).Slots; got != test.want {
			t.Errorf("%s: %d slots, want %d", what, got, test.want)
		}
	}
}

// What cannot be read is logged once and left alone; the rest is obeyed. Any of it can be replaced or removed.
func TestUnreadable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, rdb, log := onServer(t, s)
		ctx := t.Context()
		wrong := map[string]string{
			"rate none": "{}", "rate text": `{"rate":"often"}`, "rate fast": `{"rate":"9/1us"}`,
			"rate both":  `{"rate":"9/1s","limit":2}`,
			"limit text": "not JSON", "limit number": "17", "pause list": "[]", "limit none": "{}", "limit zero": `{"limit":0}`,
			"limit below": `{"limit":-1}`,
			"limit much":  `{"limit":2147483648}`, "limit huge": `{"limit":1e300}`, "pause until": `{"paused_until":"tomorrow"}`,
			"pause limit": `{"limit":3}`,
			"pause year":  `{"by":"x","since":"9999-12-31T23:59:59-12:00"}`, "pause nul\x00": "\x00\xff", "pause a{b": "x",
			"limit a~b": "x", "limit report|~x": "x", "report": "{}",
		}
		for field, text := range wrong {
			redistest.Must(t, rdb.HSet(ctx, r.Keys[0], field, text).Err())
		}
		redistest.Must(t, r.Give(ctx, Pauses, "report", Control{Paused: true}))
		for range 2 {
			state, err := r.Fetch(ctx)
			if err != nil || len(state.Orders()) != 1 || len(state.Unreadable()) != len(wrong) {
				t.Fatalf("%v, %v", state.Unreadable(), err)
			}
		}
		if n := strings.Count(log.String(), "cannot be read"); n != len(wrong) {
			t.Errorf("logged: %s", log.String())
		}
		for field := range wrong {
			kind, target, _ := strings.Cut(field, " ")
			if !keys.IsKeyText(target) {
				continue // no lock can have it
			}
			of := Pauses
			if kind == "rate" {
				of = Rates
			}
			if kind == "limit" {
				of = Limits
				redistest.Must(t, r.Give(ctx, Limits, target, Control{Limit: 2}))
				if got := r.Bounds(r.keyStart+target+"}", Bounds{Slots: 1}).Slots; got != 2 {
					t.Errorf("%q was replaced: %d slots", field, got)
				}
				redistest.Must(t, rdb.HSet(ctx, r.Keys[0], field, "junk").Err())
			}
			if ended, err := r.End(ctx, of, target); err != nil || ended {
				t.Errorf("the end of %q: %v, %v", field, ended, err)
			}
		}
		if left := rdb.HKeys(ctx, r.Keys[0]).Val(); len(left) != 6 || !slices.Contains(left, "pause report") {
			t.Errorf("left: %q", left)
		}
	})
}

// A change is in force when it returns, is logged and told of, and goes to no other target. Pauses that have ended go.
func TestChange(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		told := make(chan []Order, 20)
		r, rdb, log := onServer(t, s, func(o *Options) { o.Changed = func(now *State) { told <- now.Orders() } })
		ctx, kept := t.Context(), r.keyStart+"kept}"
		end := func(kind *Kind, target string, want bool) {
			t.Helper()
			if got, err := r.End(ctx, kind, target); err != nil || got != want {
				t.Errorf("the end of an order for %q: %v, %v; want %v", target, got, err, want)
			}
		}
		over := func() {
			redistest.Must(t, rdb.HSet(ctx, r.Keys[0], "pause over", `{"paused_until":"2001-01-01T00:00:00Z"}`).Err())
		}
		over()
		end(Pauses, "over", false)
		over()
		redistest.Must(t, r.Give(ctx, Limits, "kept", Control{Limit: 3, Why: "one"}))
		if was, err := r.write(ctx, "limit kept", "", "as it was before"); err != nil || was == "" {
			t.Errorf("an order that has changed was removed: %q, %v", was, err)
		}
		redistest.Must(t, r.Give(ctx, Pauses, "kept",
			Control{Paused: true, PausedUntil: time.Now().Add(time.Hour), Why: "two"}))
		redistest.Must(t, r.Give(ctx, Pauses, "a b", Control{Paused: true}))
		pause := r.PauseOf(kept)
		if left, _ := r.Lasts(pause); pause == nil || left < 59*time.Minute || left > time.Hour+time.Second ||
			pause.By != "alice" || pause.Why != "two" {
			t.Errorf("%+v, %s", pause, left)
		}
		end(Pauses, "a%20b", false) // of another scope
		end(Pauses, "a%20b|x", false)
		end(Limits, "a b", false)
		end(Pauses, "kept", true)
		end(Pauses, "kept", false)
		if got := r.Bounds(kept, Bounds{Slots: 1}).Slots; got != 3 {
			t.Errorf("%d slots", got)
		}
		over()
		end(Limits, kept, true)
		orders := r.Latest().Orders()
		if fields := rdb.HKeys(ctx, r.Keys[0]).Val(); len(fields) != 1 || fields[0] != "pause a%20b" || len(orders) != 1 ||
			orders[0].Target != r.keyStart+"a%20b}" {
			t.Errorf("stored: %q; in force: %+v", fields, orders)
		}
		end(Pauses, orders[0].Target, true)
		for _, want := range []int{1, 2, 3, 2, 1, 0} {
			if got := <-told; len(got) != want {
				t.Errorf("told of %v, want %d", got, want)
			}
		}
		for part, want := range map[string]int{"a control is in force": 3, "a control has ended": 3, "by alice": 6,
			"(one)": 2, "until somebody resumes": 2} {
			if n := strings.Count(log.String(), part); n != want {
				t.Errorf("%q stands %d times in the log, want %d:\n%s", part, n, want, log.String())
			}
		}

		// Changes of two operators at once are all made.
		var wg sync.WaitGroup
		for i := range 10 {
			redistest.Go(&wg, func() {
				if err := r.Give(ctx, Limits, fmt.Sprint("many", i%5), Control{Limit: i + 1}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := rdb.HLen(ctx, r.Keys[0]).Val(); n != 5 {
			t.Errorf("%d entries", n)
		}
	})
}

// Bad input is refused, with what is wrong and what to do.
func TestChange_refused(t *testing.T) {
	r, rdb, _ := onServer(t, redistest.Mini(t))
	ctx := t.Context()
	entries := map[string]any{}
	for i := range maxControls {
		entries[fmt.Sprintf("limit report|%d", i)] = `{"limit":2}`
	}
	redistest.Must(t, rdb.HSet(ctx, r.Keys[0], entries).Err())
	for what, err := range map[string]error{
		"in the past": r.Give(ctx, Pauses, "report|7", Control{Paused: true, PausedUntil: time.Now().Add(-time.Second)}),
		"at most": r.Give(ctx, Pauses, "report|7",
			Control{Paused: true, PausedUntil: time.Now().Add(inside.MaxTTL + time.Hour)}),
		"limit of 0":      r.Give(ctx, Limits, "report|7", Control{Limit: 0}),
		"limit of 214748": r.Give(ctx, Limits, "report|7", Control{Limit: 1 << 31}),
		"rate of 0":       r.Give(ctx, Rates, "report|7", Control{Rate: rate.Rate{Per: time.Second}}),
		"rate per 0s":     r.Give(ctx, Rates, "report|7", Control{Rate: rate.Rate{Starts: 1}}),
		"burst of -1":     r.Give(ctx, Rates, "report|7", Control{Rate: rate.Rate{Starts: 1, Per: time.Second, Burst: -1}}),
		"1001 bytes":      r.Give(ctx, Pauses, "report|7", Control{Paused: true, Why: strings.Repeat("y", 1001)}),
		"ends with":       r.Give(ctx, Pauses, "report ", Control{Paused: true}),
		"1000 orders":     r.Give(ctx, Pauses, "mail", Control{Paused: true}),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: want it to say %q", err, what)
		}
	}
	redistest.Must(t, r.Give(ctx, Limits, "report|7", Control{Limit: 3}))
	if was, err := r.End(ctx, Limits, "report|8"); err != nil || !was {
		t.Error(was, err)
	}
	redistest.Must(t, r.Give(ctx, Pauses, "mail", Control{Paused: true}))
	over := `{"paused_until":"2020-01-01T00:00:00Z"}` // is none
	redistest.Must(t, rdb.HSet(ctx, r.Keys[0], "pause over", over).Err())
	redistest.Must(t, rdb.HDel(ctx, r.Keys[0], "pause mail").Err())
	redistest.Must(t, r.Give(ctx, Pauses, "mail", Control{Paused: true}))
	for i := range mostRead {
		entries[fmt.Sprintf("mail|%d", i)] = "x"
	}
	redistest.Must(t, rdb.HSet(ctx, r.Keys[0], entries).Err())
	if _, err := r.Fetch(ctx); err == nil || !strings.Contains(err.Error(), "too many controls") {
		t.Errorf("Fetch: %v", err)
	}
	redistest.Must(t, rdb.Del(ctx, r.Keys[0]).Err())
	redistest.Must(t, rdb.Set(ctx, r.Keys[0], "x", 0).Err())
	if _, err := r.Fetch(ctx); err == nil || !strings.Contains(err.Error(), "something else than controls") {
		t.Errorf("Fetch: %v", err)
	}
	for _, reply := range []any{nil, "1", []any{}, []any{int64(0), int64(0), []any{}}, []any{int64(1), int64(1),
		[]any{"report"}}, []any{int64(1), nil, []any{}}} {
		if state, err := r.parse(reply, nil); err == nil {
			t.Errorf("%v is %+v", reply, state)
		}
	}
}

// The time that a round trip may take is no difference of clocks.
func TestSkew(t *testing.T) {
	now := time.Now()
	for ahead, want := range map[time.Duration]time.Duration{0: 0, 900 * time.Millisecond: 0, -900 * time.Millisecond: 0,
		time.Hour: time.Hour, -time.Minute: -time.Minute} {
		if got := (&State{serverTime: now.Round(0).Add(ahead), localTime: now}).skew(); got != want {
			t.Errorf("Redis' clock is %s ahead: %s, want %s", ahead, got, want)
		}
	}
}
