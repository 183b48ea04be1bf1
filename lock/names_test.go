package lock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// anyText are bytes that mean something to somebody: to Redis, Lua, the member's
// format, the key's format, a terminal.
var anyText = []string{
	"plain", "with space", "a|b", "|", "||", "a|b|c|d", "%", "%s%d%c", "%00", "%7C", "{}", "{", "}", "}{", "~", "h:", "e:", "d:",
	"f", "c:", "\x00", "a\x00b", "\n", "a\r\nb", "\t", "$6\r\nfoobar\r\n", "\xff\xfe", "\xc3\x28", "\xed\xa0\x80", "é", "日本", "🔒",
	"'; redis.call('FLUSHALL') --", "]]", "\"", "\\", "\\0", "^$()%.[]*+-?", "0", "-1", "1e999", "nan", ".3000.", "x.1.y",
	" ", "\u202e", strings.Repeat("x", 10_000), strings.Repeat("\xff", 10_000), strings.Repeat("|", 10_000),
}

// Rule 13: user bytes are data. Names, owners and notes of any bytes make locks
// that work, and come back as they went in.
func TestRule13_AnyBytesAreData(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := quiet(t, s).Client(t)
		unique := redistest.Name(t)
		for i, text := range anyText {
			what := fmt.Sprintf("%.30q", text)
			l := newLocker(t, rdb, owner(text))
			m := l.Semaphore(unique+text, 2, Note(text), Parts(text, fmt.Sprint(i)), TTL(time.Minute))
			le := mustTry(t, m)
			h, err := m.Holders(t.Context())
			if err != nil || len(h) != 1 || h[0].Owner != text || h[0].Note != text || h[0].Token != le.Token() {
				t.Fatalf("%s: holders %.300q, %v", what, fmt.Sprint(h), err)
			}
			if strings.ContainsAny(h[0].Token, "|{} \n%") {
				t.Errorf("%s: token %q", what, h[0].Token)
			}
			one := l.Semaphore(unique+text, 1, Note(text), Parts(text, fmt.Sprint(i)), TTL(time.Minute))
			if busy := mustBeBusy(t, one); busy.Holder != text || busy.Note != text || busy.Name != unique+text {
				t.Errorf("%s: busy: %.300q", what, fmt.Sprintf("%+v", busy))
			}
			w := inLine(t, one, 1)
			if err := le.Extend(t.Context(), 2*time.Minute); err != nil {
				t.Errorf("%s: Extend: %v", what, err)
			}
			mustUnlock(t, le)
			le = w.got(t)
			if h, err := m.Holders(t.Context()); err != nil || len(h) != 1 || h[0].Note != text {
				t.Errorf("%s: after a grant: holders %.300q, %v", what, fmt.Sprint(h), err)
			}
			if err := le.Cooldown(t.Context(), time.Minute); err != nil {
				t.Errorf("%s: Cooldown: %v", what, err)
			}
			if i, err := m.inspectAll(t.Context()); err != nil || i.Gate.Reason != ReasonCooldown {
				t.Errorf("%s: in a cooldown: %.300q, %v", what, fmt.Sprint(i), err)
			}
			redistest.Must(t, raw(m).Del(t.Context(), m.Key()).Err())
			if t.Failed() {
				return
			}
		}
	})
}

// Texts that differ make locks that differ.
func TestNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	unique := redistest.Name(t)
	keys := map[string]string{}
	for _, a := range anyText {
		for _, m := range []*Lock{l.Mutex(unique + a), l.Mutex(unique, Parts(a)), l.Mutex(unique, Parts(a, a)), l.Mutex(unique, Parts(a, ""))} {
			if before, ok := keys[m.Key()]; ok {
				t.Errorf("%.40q and %.40q share the key %.80q", before, a, m.Key())
			}
			keys[m.Key()] = a
		}
	}
}

// Without an Owner the holder is called host:pid.
func TestAnOwnerByDefault(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t)).Mutex(redistest.Name(t))
	mustTry(t, m)
	if busy := mustBeBusy(t, m); !strings.Contains(busy.Holder, ":") || !errors.Is(busy, ErrBusy) {
		t.Errorf("holder %q, want host:pid", busy.Holder)
	}
}
