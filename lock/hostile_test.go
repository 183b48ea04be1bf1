package lock_test

import (
	"bufio"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// hostile are texts that mean something to somebody: to Redis, to Lua, or to what is stored.
var hostile = []string{
	"plain", "with space", "a|b", "|", "||", "a|b|c|d", "%", "%s%d%c", "%00", "%7C", "{}", "{", "}", "}{", "~", "h:",
	"+1 2 gate",
	"\x00", "a\x00b", "\n", "a\r\nb", "\t", "$6\r\nfoobar\r\n", "\xff\xfe", "\xc3\x28", "\xed\xa0\x80", "é", "日本", "🔒",
	"'; redis.call('FLUSHALL') --", "]]", "\"", "\\", "\\0", "^$()%.[]*+-?", "0", "-1", "1e999", "nan", ".3000.", "x.1.y",
	" ", "\u202e",
	strings.Repeat("x", 900), strings.Repeat("|", 900),
}

// words are the texts of a user that reach Redis.
type words struct{ owner, note, name, part, value, secret string }

// ours is what keys that are sent look like: a prefix, and one pair of braces with nothing odd in them.
var ours = regexp.MustCompile(`^[A-Za-z0-9_-]+:\{[^{}\s[:cntrl:]]+\}(:[a-z:]+.*)?$`)

// scriptsOf is how many scripts Redis knows.
func scriptsOf(t *testing.T, rdb redis.UniversalClient) string {
	t.Helper()
	info, err := rdb.Info(t.Context(), "memory").Result()
	redistest.Must(t, err)
	return regexp.MustCompile(`number_of_cached_scripts:\d+`).FindString(info)
}

// walk does what can be done with a lock, its arrivals, a claim beside it, its controls and a pool, for these words:
// what went in comes out the same, nothing fails, what lies beside is as it was, and in the end the lock is idle.
func (w words) walk(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	secret := ""
	if w.secret != "" {
		secret = hashText(w.secret) // any text, as a secret that is one
	}
	l := newLocker(t, rdb, ownPrefix(t), owner(w.owner), func(o *lock.Options) { o.HashKeys = secret })
	defer func() { _ = l.Close() }()
	m := l.Semaphore(w.name, 2, lock.Parts(w.part), lock.Note(w.note), lock.TTL(time.Minute))
	one := l.Mutex(w.name, lock.Parts(w.part), lock.Note(w.note), lock.TTL(time.Minute))
	if w.name == "" {
		if insider.LockErr(m) == nil {
			t.Error("a lock without a name")
		}
		return
	}
	check := func(what string, ok bool, got ...any) {
		t.Helper()
		if !ok {
			t.Fatalf("%+q: %s: %.600s", w, what, fmt.Sprintf("%+v", got))
		}
	}
	neighbours := []*lock.Lock{l.Mutex(w.name + "|" + w.part), l.Mutex(w.name), l.Mutex(w.name, lock.Parts(w.part, "")),
		l.Mutex(w.name, lock.Parts(w.part+"}:pool"))}
	for _, beside := range neighbours {
		check("a name shared with "+beside.Key(), beside.Key() != m.Key())
		mustTry(t, beside)
	}

	le := mustTry(t, m)
	h, err := insider.ByKey(l, m.Key()).Holders(t.Context())
	check("Holders", err == nil && len(h) == 1 && (h[0].Owner == w.owner || w.owner == "") && h[0].Note == w.note &&
		h[0].Token == le.Token(), h, err)
	check("Token", !strings.ContainsAny(le.Token(), "|{} \n%"), le.Token())
	busy := mustBeBusy(t, one)
	check("busy", busy.Holder == h[0].Owner && busy.Note == w.note && busy.Name == w.name, busy)
	a := inLine(t, one, 1)
	line, err := insider.Line(t.Context(), m, engine.Info{}, 10)
	check("Line", err == nil && len(line) == 1 && line[0].Owner == h[0].Owner && line[0].Note == w.note, line, err)
	check("Extend", le.Extend(t.Context(), 2*time.Minute) == nil)
	mustUnlock(t, le)
	le = a.got(t)
	if w.note != "" {
		other := l.Mutex(w.name, lock.Parts(w.part), lock.Note(w.note+"2"))
		mustPark(t, other)
		line, err := insider.Line(t.Context(), m, engine.Info{}, 10)
		check("Line", err == nil && len(line) == 1 && line[0].Parked && line[0].Note == w.note+"2", line, err)
		mustUnlock(t, le)
		le = mustTry(t, other)
		overtaken, err := insider.Arrive(t.Context(), one)
		check("Arrive", !overtaken && err == nil, err)
		claim := insider.Claim(l, m.Key())
		got, err := claim.Take(t.Context(), w.note, "", time.Minute)
		check("Take", err == nil && got.Holder == w.note, got, err)
		dropped, err := claim.Drop(t.Context(), w.note)
		check("Drop", dropped && err == nil, err)
	}
	check("Cooldown", le.Cooldown(t.Context(), time.Minute) == nil)
	check("a cooldown", mustBeBusy(t, one).Reason == lock.ReasonCooldown)
	n, err := one.BreakAll(t.Context())
	check("BreakAll", n == 1 && err == nil, n, err)
	why := w.note[:min(len(w.note), 1000)]
	redistest.Must(t, l.Controls().Pause(t.Context(), m.Key(), time.Time{}, why))
	busy = mustBePaused(t, one)
	check("Pause", strings.ToValidUTF8(busy.Pause.Why, "?") == strings.ToValidUTF8(why, "?") || !utf8.ValidString(why),
		busy.Pause)
	redistest.Must(t, l.Controls().Resume(t.Context(), m.Key()))
	if w.value != "" {
		p := pool.New(l, w.name, lock.Parts(w.part), lock.Note(w.note))
		mustPut(t, p, 1, w.value)
		taken := mustTake(t, p, w.value)
		info, err := p.Inspect(t.Context())
		check("a pool", err == nil && info.Taken == 1 && info.Holders[0].Value == w.value && info.Holders[0].Note == w.note,
			info, err)
		check("Consume", taken.Consume(t.Context()) == nil)
	}
	for _, beside := range neighbours {
		wantHeld(t, beside, 1)
		redistest.Must(t, beside.Delete(t.Context()))
	}
	left, err := rdb.Exists(t.Context(), m.Key()).Result()
	check("nothing left", left == 0 && err == nil, left, err)
}

// No text of a user is run or names a key. MONITOR shows what the library sends, and what scripts call and on which
// key.
func TestHostileTextsAreNeitherCodeNorKeys(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	words{owner: "o", note: "n", name: "name", part: "p", value: "v", secret: "s"}.walk(t, rdb)
	scripts := scriptsOf(t, rdb)
	conn, err := net.Dial("tcp", s.Addr())
	redistest.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	redistest.Must(t, err)
	calls := make(chan int, 1)
	go func() { // ends with conn, or with the last command
		n, declared := 0, []string{}
		for in := bufio.NewScanner(conn); in.Scan() && !strings.Contains(in.Text(), "the last command"); {
			lua, args := monitored(in.Text())
			switch name := strings.ToUpper(strings.Join(args[:min(1, len(args))], "")); {
			case !lua && (name == "EVAL" || name == "EVALSHA"):
				keys, _ := strconv.Atoi(args[2])
				declared = args[3 : 3+keys]
				for _, key := range declared {
					if !ours.MatchString(key) || !utf8.ValidString(key) {
						t.Errorf("a script is sent with the key %+q", key)
					}
				}
			case lua && name == "PUBLISH":
				if !regexp.MustCompile(`^[A-Za-z0-9_-]+:([A-Za-z0-9_-]{16}|control)$`).MatchString(args[1]) {
					t.Errorf("a script publishes to %q", args[1])
				}
			case lua && name != "TIME":
				// What changes nothing may name a key beside.
				if n++; len(args) < 2 || !slices.ContainsFunc(declared, func(key string) bool {
					return args[1] == key || args[1] == key+":none"
				}) {
					t.Errorf("a script that was given the keys %q calls %.300q", declared, args)
				}
			}
		}
		calls <- n
	}()
	for i, text := range hostile {
		w := words{owner: text, note: text, name: "name" + text, part: text, value: text}
		if i%2 == 0 {
			w.secret = "s"
		}
		w.walk(t, rdb)
	}
	redistest.Must(t, rdb.Echo(t.Context(), "the last command").Err())
	if n := come(t, calls, "what MONITOR shows"); n < 1000 {
		t.Errorf("MONITOR showed %d calls of scripts", n)
	}
	if n := scriptsOf(t, rdb); n != scripts || n == "" {
		t.Errorf("%q for harmless texts, and %q for all", scripts, n)
	}
}

// monitored reads a line of MONITOR: whether a script called, and what.
func monitored(line string) (lua bool, args []string) {
	m := regexp.MustCompile(`(?s)^\+?\d+\.\d+ \[\d+ ([^\]]*)\] (.*)$`).FindStringSubmatch(line)
	if m == nil {
		return false, nil
	}
	for rest := m[2]; rest != ""; rest = strings.TrimPrefix(rest, " ") {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return false, nil
		}
		text, _ := strconv.Unquote(quoted)
		args, rest = append(args, text), rest[len(quoted):]
	}
	return m[1] == "lua", args
}

// FuzzScripts: whatever the texts of a user that reach the scripts, they come back as they went in, no script fails,
// and nothing is left. On a miniredis and, where there is one, on a redis-server: they read Lua's patterns, and bytes
// that are no text, each in their own way.
func FuzzScripts(f *testing.F) {
	for i, text := range hostile {
		f.Add(text, hostile[(i+7)%len(hostile)], "name"+text, text, text, hostile[i%2])
	}
	servers := []*redistest.Server{redistest.StartMini(f)}
	if redistest.HasReal() {
		servers = append(servers, redistest.StartReal(f))
	}
	var rdbs []redis.UniversalClient
	for _, s := range servers {
		rdbs = append(rdbs, s.Client(f))
	}
	f.Fuzz(func(t *testing.T, owner, note, name, part, value, secret string) {
		for _, rdb := range rdbs {
			words{owner: owner, note: note, name: name, part: part, value: value, secret: secret}.walk(t, rdb)
		}
	})
}
