package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// TestModel makes random steps of many clients on one lock, beside a model that knows no keys and no scripts, and
// compares each reply, each message and what is stored: on a miniredis, and on a redis-server whose clock the test
// moves by a small C library that is loaded before all others (cc is needed). TestMistakes plants mistakes in the
// scripts; each must be found. RUNS=200 FIRST=0 says how many seeds and from which, ONLY=order, plain or crowd.

// sender sends the scripts of one lock. mutate changes them, to plant a mistake.
type sender struct {
	t       testing.TB
	rdb     *redis.Client
	scripts map[string]*redis.Script
}

func newSender(t testing.TB, rdb *redis.Client, mutate func(string) string) *sender {
	e := &sender{t: t, rdb: rdb, scripts: map[string]*redis.Script{}}
	for _, one := range Scripts {
		text := one.Source
		if mutate != nil {
			text = mutate(text)
		}
		e.scripts[one.Name] = redis.NewScript(text)
		if err := e.scripts[one.Name].Load(context.Background(), rdb).Err(); err != nil {
			t.Fatalf("%s: %v", one.Name, err)
		}
	}
	return e
}

// keysOf are the keys of a lock: the first six of any, or with order and marks.
func keysOf(key string) []string {
	return []string{key, key + ":holders", key + ":line", key + ":parked", key + ":called", key + ":info"}
}
func orderKeys(key string) []string  { return append(keysOf(key), key+":order", key+":marks") }
func newestKeys(key string) []string { return []string{key + ":arrivals", key + ":newest"} }

func (e *sender) run(name string, keys []string, args ...any) any {
	v, err := e.scripts[name].EvalSha(context.Background(), e.rdb, keys, args...).Result()
	if err != nil {
		e.t.Helper()
		e.t.Fatalf("%s %v: %v", name, args, err)
	}
	return v
}

// world is a server whose clock the test moves.
type world struct {
	rdb *redis.Client
	set func(us int64, step time.Duration)
}

// miniWorld is a miniredis.
func miniWorld(t testing.TB) world {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), DisableIdentity: true, Protocol: 2,
		ReadTimeout: redistest.Patience, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	return world{rdb, func(us int64, step time.Duration) {
		m.SetTime(time.UnixMicro(us))
		m.FastForward(step)
	}}
}

const clockShim = `#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *at;
static int64_t now(void) {
  if (!at) at = mmap(0, 8, PROT_READ, MAP_SHARED, open(getenv("CLOCK_FILE"), O_RDONLY), 0);
  return *at;
}
int gettimeofday(struct timeval *tv, void *tz) { 
  int64_t n = now(); tv->tv_sec = n / 1000000; tv->tv_usec = n % 1000000; return 0;
}
time_t time(time_t *t) { time_t s = now() / 1000000; if (t) *t = s; return s; }
int clock_gettime(clockid_t c, struct timespec *ts) {
  if (c != CLOCK_REALTIME && c != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, c, ts);
  int64_t n = now(); ts->tv_sec = n / 1000000; ts->tv_nsec = n % 1000000 * 1000; return 0;
}`

// realWorld is a redis-server whose clock stands: a library that is loaded before all others reads it from a file.
func realWorld(t testing.TB) world {
	dir := t.TempDir()
	src, lib, file := filepath.Join(dir, "c.c"), filepath.Join(dir, "c.so"), filepath.Join(dir, "clock")
	os.WriteFile(src, []byte(clockShim), 0o600)
	out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", lib, src).CombinedOutput()
	if err != nil && os.Getenv(redistest.RequireEnv) != "require" {
		t.Skipf("no compiler: %v %s", err, out)
	}
	redistest.Must(t, err)
	set := func(us int64, _ time.Duration) {
		f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
		redistest.Must(t, err)
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(us))
		f.WriteAt(b[:], 0)
		f.Close()
	}
	set(startUS, 0)
	s := redistest.StartRealIn(t, []string{"LD_PRELOAD=" + lib, "CLOCK_FILE=" + file})
	// Nothing is sent twice, however long it takes on a busy machine: tests count the calls.
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), DisableIdentity: true, Protocol: 2,
		ReadTimeout: redistest.Patience, MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	return world{rdb, set}
}

var worlds = map[string]func(testing.TB) world{"miniredis": miniWorld, "redis": realWorld}

const startUS = int64(1_800_000_000_000_000)

type wrong string

func failf(format string, args ...any) { panic(wrong(fmt.Sprintf(format, args...))) }

// sim is one lock under test, beside its model.
type sim struct {
	w         world
	e         *sender
	r         *rand.Rand
	key       string
	keys      []string
	msgs      <-chan *redis.Message
	now       int64 // us
	log       []string
	m         model
	thin      string // the word before the step, while thin
	limit     int
	rateKnown             // that of the process which asks
	rates     []rateKnown // by the orders of operators, the oldest first; the newest processes may not know yet
	orders    *rand.Rand
	grew      int64 // the highest fence so far
	serial    int
	bodies    []string // of attempts that were made, the last ones
	tickets   map[string]int64
	ordered   bool
	spent     spentAsk
	notes     bool // no two holders have the same note
	crowd     int
}

func (s *sim) ms() int64 { return s.now / 1000 }

// advance moves the clock, and stops at no moment at which something ends: there Redis' TTLs decide.
func (s *sim) advance(us int64) {
	was := s.now
	s.now += us
	for again := true; again; {
		again = false
		for _, at := range s.m.ends() {
			if d := s.ms() - at; d >= -3 && d <= 3 {
				s.now += 7000
				again = true
			}
		}
	}
	s.w.set(s.now, time.Duration(s.now-was)*time.Microsecond)
	s.m.now = s.now
	if m := &s.m; max(m.opens(), m.next+m.spare) <= m.now && // nobody has to know the rate any more
		s.w.rdb.Exists(context.Background(), s.key, s.key+":info").Val() == 0 {
		m.every, m.spare, m.known, m.next = 0, 0, 0, 0
	}
}

func (s *sim) run(name string, args ...any) any {
	keys := s.keys
	if name == "drop" || name == "take" {
		keys = keys[:1]
	} else if name == "renew" {
		keys = keys[:2]
	} else if name == "renew all" {
		name = "renew"
	} else if s.ordered && (name == "ask" || name == "release") { // by who knows nothing of an order
		keys = keysOf(s.key)
	}
	v, err := s.e.scripts[name].EvalSha(context.Background(), s.w.rdb, keys, args...).Result()
	s.log = append(s.log, fmt.Sprintf("%d %s %v -> %v %v", s.now-startUS, name, args, v, err))
	if err != nil {
		failf("error %v", err)
	}
	return v
}

func num(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			failf("no number: %q", v)
		}
		return n
	}
	failf("no number: %v", v)
	return 0
}

func list(v any) []any {
	l, ok := v.([]any)
	if !ok {
		failf("no list: %v", v)
	}
	return l
}

// -------------------- the model

type holder struct {
	body string
	end  int64 // ms: the first at which it holds no more
}

type waiting struct {
	token, body string
	ticket      int64
	till, grant int64
	cost        int64
	aside       bool // a holder has, or had, its note: it comes after all others
}

type note struct {
	note   string
	ticket int64
	called int64 // us, 0: not; yet: long ago, so that others are called beside it
}

const yet = -1

// model is what a lock should do.
type model struct {
	now              int64
	holders          []holder
	line             []waiting
	parked           []note
	closed, cooldown int64 // us
	next             int64 // of the rate
	every, spare     int64
	known            int64    // of the rate
	cost             int64    // of the asker
	out              []string // messages published
	told             []string // messages in the reply
	notes            bool     // no two holders have the same note
	own              string
	tasks            []otask
	marks            map[string]int64
	dead             []holder          // no script has seen yet that they hold it no more
	stands           map[string]string // by note: the waiter that returns to its place when the holder leaves
}

func (m *model) ms() int64 { return m.now / 1000 }

func (m *model) ends() (at []int64) {
	for _, h := range m.holders {
		at = append(at, h.end)
	}
	for _, us := range []int64{m.closed, m.cooldown, m.next, m.next + m.spare} {
		at = append(at, us/1000, us/1000+1)
	}
	return at
}

// purge ends what is over.
func (m *model) purge() {
	m.holders = slices.DeleteFunc(m.holders, func(h holder) bool {
		if h.end <= m.ms() {
			m.dead = append(m.dead, h)
		}
		return h.end <= m.ms()
	})
}

// bury is what scripts do first: of the dead a hundred leave.
func (m *model) bury() int {
	m.purge()
	slices.SortFunc(m.dead, byEnd)
	n := min(100, len(m.dead))
	for range n {
		note := noteOf(m.dead[0].body)
		if m.dead = m.dead[1:]; !hasNote(m.dead, note) && !m.hasNote(note) { // else another has had it since
			m.returns(note)
		}
	}
	return n
}

// leaves takes the slot of the holder at i.
func (m *model) leaves(i int) {
	n := noteOf(m.holders[i].body)
	m.holders = slices.Delete(m.holders, i, i+1)
	m.returns(n)
}

// returns has the waiter that stands aside for a holder with that note return to its place.
func (m *model) returns(n string) {
	if at := m.inLine(m.stands[n]); at >= 0 {
		m.line[at].aside = false
		m.sortLine()
	}
	delete(m.stands, n)
}

func (m *model) inLine(token string) int {
	return slices.IndexFunc(m.line, func(x waiting) bool { return x.token == token })
}

func (m *model) sortLine() {
	slices.SortFunc(m.line, func(a, b waiting) int {
		return cmp.Or(cmp.Compare(oneOrZero(a.aside), oneOrZero(b.aside)), cmp.Compare(a.ticket, b.ticket),
			cmp.Compare(a.token, b.token))
	})
}

func (m *model) opens() int64 { return max(m.closed, m.cooldown, m.next) }

// gate is why nobody gets the lock, and for how long; of a full lock only a closed gate counts.
func (m *model) gate(full bool) (why string, until int64) {
	switch {
	case m.closed > m.now:
		return "closed", m.closed - m.now
	case full:
	case m.cooldown > m.now:
		return "cooldown", m.cooldown - m.now
	case m.next > m.now:
		return "rate", m.next - m.now
	}
	return "", 0
}

func (m *model) holds(body string) int {
	return slices.IndexFunc(m.holders, func(h holder) bool { return h.body == body })
}

func noteOf(body string) string     { return strings.SplitN(body, "|", 3)[2] }
func tokenOf(body string) string    { t, _, _ := strings.Cut(body, "|"); return t }
func channelOf(token string) string { c, _, _ := strings.Cut(token, "."); return c }

func hasNote(all []holder, n string) bool {
	return n != "" && slices.ContainsFunc(all, func(h holder) bool { return noteOf(h.body) == n })
}

func (m *model) hasNote(n string) bool { return hasNote(m.holders, n) }

func (m *model) apart(body string) bool {
	return m.notes && m.hasNote(noteOf(body))
}

func (m *model) send(token, rest string) {
	if channelOf(token) == m.own {
		m.told = append(m.told, token+" "+rest)
	} else {
		m.out = append(m.out, channelOf(token)+": "+token+" "+rest)
	}
}

func (m *model) take(body string, length, cost int64) {
	m.dead = slices.DeleteFunc(m.dead, func(h holder) bool { return h.body == body })
	m.holders = append(m.holders, holder{body, m.ms() + length + 1})
	if m.every > 0 {
		m.next = max(m.next, m.now-m.spare) + cost*m.every
	}
}

// grant gives free slots to the line, and then to asker.
func (m *model) grant(limit int, moved bool, asker string, lease int64) (free int, mine, stopped bool) {
	free = max(0, limit-len(m.holders))
	looks, rest := 0, false
	for ; free > 0 && len(m.line) > 0 && !rest && looks < 100; looks++ {
		if m.opens() > m.now {
			if moved && m.line[0].body != asker {
				m.send(m.line[0].token, fmt.Sprintf("-3 %d %d", m.now, m.opens()-m.now))
			}
			return 0, mine, false
		}
		x := m.line[0]
		if x.till <= m.ms() && x.body != asker {
			m.line = slices.Delete(m.line, 0, 1)
			continue
		}
		if limit != 1 && m.apart(x.body) {
			rest, m.line[0].aside = x.aside, true
			m.stands[noteOf(x.body)] = x.token
			m.sortLine()
			continue
		}
		m.line = slices.Delete(m.line, 0, 1)
		free--
		moved = true
		if x.body == asker {
			m.take(asker, lease, m.cost)
			m.out = append(m.out, "fence")
			mine, asker = true, ""
			continue
		}
		m.take(x.body, x.grant, x.cost)
		m.send(x.token, fmt.Sprintf("fence %d", m.now))
	}
	if free > 0 && (looks == 100 || m.opens() > m.now) {
		return 0, mine, looks == 100
	}
	if free > 0 && asker != "" && !m.apart(asker) {
		m.take(asker, lease, m.cost)
		m.out = append(m.out, "fence")
		return free - 1, true, false
	}
	return free, mine, false
}

func (m *model) parkedAt(n string) int {
	return slices.IndexFunc(m.parked, func(x note) bool { return x.note == n })
}

func (m *model) calledNotes() (notes []string) {
	for _, x := range m.parked {
		if x.called != 0 {
			notes = append(notes, x.note)
		}
	}
	return notes
}

func (m *model) called() int { return len(m.calledNotes()) }

func (m *model) sortParked() {
	slices.SortFunc(m.parked, func(a, b note) int {
		return cmp.Or(cmp.Compare(a.ticket, b.ticket), cmp.Compare(a.note, b.note))
	})
}

// calls names notes.
func (m *model) calls(limit, free, lend, inbound int, life int64) []string {
	if inbound > 0 && limit > 0 && m.opens() <= m.now+1_000_000 {
		fresh := 0
		for _, x := range m.parked {
			if x.called >= m.now-life*1000 && x.called > 0 {
				fresh++
			}
		}
		most := max(inbound, free+lend)
		if m.every > 0 { // as many as may start in half of a life
			most = min(most, max(1, int((m.now+life*500-max(m.next, m.now-m.spare)+m.every)/m.every)))
		}
		coming := len(m.line)
		for _, x := range m.line {
			if x.aside {
				coming--
			}
		}
		more, age := most-fresh-coming, int64(0)
		if more <= 0 && fresh == 0 {
			more, age = 1, 5_000_000
		}
		more = min(more, 100-m.called())
		for i := range m.parked {
			if m.parked[i].called == 0 && more > 0 && m.now-m.parked[i].ticket >= age {
				more--
				m.parked[i].called = m.now - int64(more)
			}
		}
	}
	var names []string
	for _, x := range slices.SortedStableFunc(slices.Values(m.parked),
		func(a, b note) int { return cmp.Or(cmp.Compare(a.called, b.called), cmp.Compare(a.note, b.note)) }) {
		if x.called != 0 {
			names = append(names, x.note)
		}
	}
	return names
}

// firstEnd is in how many ms the first holder's lease ends; -1: nobody holds it.
func (m *model) firstEnd() int64 {
	if len(m.holders) == 0 {
		return -1
	}
	return slices.MinFunc(m.holders, byEnd).end - m.ms()
}

func (m *model) soonest(limit int) int64 {
	at := m.firstEnd()
	if m.opens() > m.now && (at < 0 || limit > 1) {
		at = -1 - (m.opens()-m.now+999)/1000
	}
	return at
}

// byEnd sorts holders as Redis does.
func byEnd(a, b holder) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.body, b.body)) }

func (m *model) first() string {
	if len(m.holders) == 0 {
		return ""
	}
	return slices.MinFunc(m.holders, byEnd).body
}

// -------------------- the steps

// fence takes a fence, which must be above all before.
func (s *sim) fence(v any, again bool) {
	f := num(v)
	if f < s.grew || f == s.grew && !again {
		failf("fence %d after %d", f, s.grew)
	}
	s.grew = f
}

// same compares messages with those of the model, where "fence" stands for any that grew.
func (s *sim) same(got, want []string) {
	if len(got) != len(want) {
		failf("messages %v, want %v", got, want)
	}
	for i := range got {
		g, w := strings.Fields(got[i]), strings.Fields(want[i])
		for j := range w {
			if w[j] == "fence" && j < len(g) {
				s.fence(g[j], false)
				g[j] = "fence"
			}
		}
		if !reflect.DeepEqual(g, w) {
			failf("message %q, want %q", got[i], want[i])
		}
	}
}

// published compares what was published with the model's, in which "fence" alone is the asker's, among those of the
// granted.
func (s *sim) published(fence ...any) {
	if len(s.m.out) > 0 {
		got, want := messages(s.w.rdb, s.msgs), s.m.out
		for _, f := range fence {
			got = slices.Insert(got, min(slices.Index(want, "fence"), len(got)), fmt.Sprint(f))
		}
		s.m.out = nil
		s.same(got, want)
	}
}

// messages are all that were published, and not read.
func messages(rdb *redis.Client, from <-chan *redis.Message) (all []string) {
	if err := rdb.Publish(context.Background(), "automutex:end", "").Err(); err != nil {
		failf("publish: %v", err)
	}
	for {
		select {
		case msg := <-from:
			if msg.Channel == "automutex:end" {
				return all
			}
			all = append(all, strings.TrimPrefix(msg.Channel, "automutex:")+": "+msg.Payload)
		case <-time.After(redistest.Patience):
			failf("messages %v, and no end", all)
		}
	}
}

func (s *sim) newBody() string {
	s.serial++
	n := ""
	switch {
	case s.r.IntN(3) > 0:
		n = fmt.Sprintf("q/%d", s.r.IntN(max(8, s.crowd)))
	case s.r.IntN(2) == 0:
		n = fmt.Sprintf("u/%d", s.serial)
	}
	b := fmt.Sprintf("c%d.%d|host:%d|%s", s.r.IntN(4), s.serial, s.r.IntN(9), n)
	if s.bodies = append(s.bodies, b); len(s.bodies) > 12 {
		s.bodies = s.bodies[1:]
	}
	return b
}

// body is that of a new attempt, or of one there was.
func (s *sim) body(fresh int) string {
	if len(s.bodies) == 0 || s.r.IntN(100) < fresh {
		return s.newBody()
	}
	return s.bodies[s.r.IntN(len(s.bodies))]
}

// oneOf is a body that holds or waits, or any.
func (s *sim) oneOf() string {
	s.m.purge()
	n := len(s.m.holders)
	if n > 0 && s.r.IntN(10) < 7 {
		return s.m.holders[s.r.IntN(n)].body
	}
	if len(s.m.line) > 0 && s.r.IntN(2) == 0 {
		return s.m.line[s.r.IntN(len(s.m.line))].body
	}
	return s.body(0)
}

// rateKnown is a rate, as a process knows it that has read the orders at known.
type rateKnown struct{ known, every, spare int64 }

// orderRate has operators order another rate, or none, now and then, and the process that is next know it or not.
func (s *sim) orderRate() {
	if s.rates[0].every > 0 && s.orders.IntN(40) == 0 {
		next := rateKnown{known: s.rates[len(s.rates)-1].known + 1}
		if s.orders.IntN(4) > 0 {
			next.every, next.spare = int64(5_000+s.orders.IntN(200_000)), int64(s.orders.IntN(3))*50_000
		}
		s.rates = append(s.rates, next)
	}
	s.rateKnown = s.rates[max(0, len(s.rates)-1-s.orders.IntN(2))]
}

func (s *sim) setRate(m *model) {
	if s.known < m.known { // the rate is of newer orders
		return
	}
	if m.known = s.known; m.every != s.every || m.spare != s.spare {
		had, owed := m.every, max(m.next-m.now, -m.spare) // in us, below 0: saved up
		m.every, m.spare = s.every, s.spare
		switch {
		case m.every == 0:
			m.next, m.known = 0, 0
		case had == 0:
			m.next = m.now - m.spare
		default:
			m.next = max(m.now+int64(math.Ceil(float64(owed)*float64(m.every)/float64(had))), m.now-m.spare)
		}
	} else if m.every == 0 {
		m.known = 0 // nothing is stored
	}
}

func (s *sim) randomAsk() {
	m := &s.m
	body := s.body(50)
	if len(m.line) > 0 && s.r.IntN(3) == 0 {
		body = m.line[s.r.IntN(len(m.line))].body // a waiter asks again
	}
	if s.limit == 0 && len(m.holders) > 0 && s.r.IntN(2) == 0 { // one that was granted the lock in a pause
		body = m.holders[s.r.IntN(len(m.holders))].body
	}
	called := m.calledNotes()
	if len(called) > 0 && s.r.IntN(2) == 0 { // a called one comes
		body = s.newBody()
		body = tokenOf(body) + "|h|" + called[s.r.IntN(len(called))]
		s.bodies[len(s.bodies)-1] = body
	}
	lease := int64(50+10*s.r.IntN(100)) * []int64{1, 1, 30}[s.r.IntN(3)]
	if s.r.IntN(20) == 0 {
		lease = 7_200_000 + int64(s.r.IntN(3))*3_600_000 // longer than keys last at first
	}
	stay, park := int64(0), 0
	switch s.r.IntN(5) {
	case 0, 1, 2:
		stay = 300
	case 3:
		if noteOf(body) != "" {
			park = 1
		}
	}
	s.ask(body, lease, stay, park)
}

// ask reports whether the script has stopped at its bound.
func (s *sim) ask(body string, lease, stay int64, park int) (stopped bool) {
	m, length := &s.m, int64(40)
	m.bury()
	s.orderRate()
	thin := s.w.rdb.Get(context.Background(), s.key).Val() == body
	args := []any{body, lease, stay, length, s.limit, park, oneOrZero(s.notes), s.known, s.every, s.spare}
	ticket, borrows := s.tickets[tokenOf(body)], s.r.IntN(6) == 0
	if m.cost = 1; s.every > 0 {
		m.cost = int64(s.r.IntN(6))
	}
	if ticket > 0 || borrows || m.cost != 1 { // of a waiter that gives its grant back
		args = append(args, ticket, oneOrZero(borrows), m.cost)
	}
	got := s.run("ask", args...)
	if !thin || !num1(got) { // a thin lock does not look at the rate
		s.setRate(m)
	}
	if i := m.holds(body); i >= 0 && s.limit > 0 {
		s.lasts(i, lease, 1)
		s.fence(got, true)
		s.published()
		return false
	} else if i >= 0 { // it knows of a pause
		m.leaves(i)
	}
	n := noteOf(body)
	if li := m.inLine(tokenOf(body)); li >= 0 && !m.apart(body) {
		m.line[li].aside = false
		m.sortLine()
	}
	at := -1
	if n != "" {
		at = m.parkedAt(n)
	}
	var was note
	if at >= 0 {
		was = m.parked[at]
	}
	_, mine, stopped := m.grant(s.limit, false, body, lease)
	if borrows && !mine && s.limit > 0 && m.opens() <= m.now && !m.apart(body) {
		m.line = slices.DeleteFunc(m.line, func(x waiting) bool { return x.token == tokenOf(body) })
		m.take(body, lease, m.cost)
		m.out, mine = append(m.out, "fence"), true
	}
	calledAgo := int64(-1)
	if was.called > 0 {
		calledAgo = max(0, (m.now-was.called)/1000)
	}
	if mine {
		if at < 0 {
			s.published(got)
			return false
		}
		m.parked = slices.Delete(m.parked, at, at+1)
		l := list(got)
		s.published(l[0])
		if num(l[1]) != (m.now-was.ticket)/1000 || num(l[2]) != calledAgo || num(l[3]) != int64(len(m.parked)-m.called()) {
			failf("returned %v, was %+v", l, was)
		}
		return false
	}
	s.published()
	l := list(got)
	// What keeps it out?
	same := ""
	if m.notes && m.hasNote(n) {
		same = "|" + n
	}
	why, until := m.gate(len(m.holders) >= s.limit)
	named := l[3].(string)
	if (num(l[1]) == 0) != stopped {
		failf("wait %v, stopped %v", l[1], stopped)
	}
	switch {
	case same != "":
		if !strings.HasSuffix(named, same) {
			failf("named %q, want a holder with note %s", named, n)
		}
	case why != "":
		if named != fmt.Sprintf("g:%s %d", why, until) || num(l[1]) != (until+999)/1000 {
			failf("named %q for %v, want %s %d", named, l[1], why, until)
		}
	default:
		if named != m.first() {
			failf("named %q, want %q", named, m.first())
		}
		if d := num(l[1]) - m.firstEnd(); !stopped && (d < -2 || d > 1) {
			failf("wait %v, want %d", l[1], m.firstEnd())
		}
	}
	place := len(m.line)
	hasParked, inline := int64(0), int64(0)
	li := m.inLine(tokenOf(body))
	switch {
	case park > 0:
		switch {
		case li >= 0:
			ticket = m.line[li].ticket
		case at >= 0:
			ticket = was.ticket
		}
		ticket = cmp.Or(ticket, m.now)
		if li >= 0 {
			m.line = slices.Delete(m.line, li, li+1)
		}
		if at >= 0 {
			m.parked = slices.Delete(m.parked, at, at+1)
		}
		place, inline = len(m.line), (m.now-ticket)/1000
		if same == "" {
			hasParked = 1
			for _, x := range m.parked {
				if x.ticket < ticket || x.ticket == ticket && x.note < n {
					place++
				}
			}
			m.parked = append(m.parked, note{n, ticket, 0})
			m.sortParked()
		}
	case stay > 0:
		if li < 0 {
			if at >= 0 {
				ticket = was.ticket
			}
			ticket = cmp.Or(ticket, m.now)
			s.tickets[tokenOf(body)] = ticket
			m.line = append(m.line, waiting{tokenOf(body), body, ticket, 0, 0, 0, same != "" && s.limit != 1})
			m.sortLine()
			li = m.inLine(tokenOf(body))
		}
		if same != "" && s.limit != 1 {
			m.stands[n] = tokenOf(body)
		}
		m.line[li].till, m.line[li].grant, m.line[li].body, m.line[li].cost = m.ms()+stay, length, body, m.cost
		for range min(li, 25) { // dead ones in front leave
			if m.line[0].till > m.ms() {
				break
			}
			m.line, li = m.line[1:], li-1
		}
		place = li
		if at >= 0 {
			inline = (m.now - was.ticket) / 1000
			m.parked = slices.Delete(m.parked, at, at+1)
		}
	default:
		calledAgo = -1
	}
	if num(l[2]) != int64(place) {
		failf("place %v, want %d", l[2], place)
	}
	if at < 0 && park == 0 {
		if len(l) != 4 {
			failf("%v, want four", l)
		}
		return stopped
	}
	if len(l) != 8 || num(l[4]) != inline || num(l[5]) != calledAgo || num(l[6]) != int64(len(m.parked)-m.called()) ||
		num(l[7]) != hasParked {
		failf("%v, want inline %d, called %d, parked %d, has parked %d", l, inline, calledAgo, len(m.parked)-m.called(),
			hasParked)
	}
	return stopped
}

func num1(v any) bool { _, ok := v.(int64); return ok }

// texts are the texts of a list.
func texts(l []any) (out []string) {
	for _, v := range l {
		out = append(out, v.(string))
	}
	return out
}

// names compares a reply, a list if anything is parked or in order. It returns when the first lease ends.
func (s *sim) names(got any, code int64, is bool, parked int, names []string) int64 {
	if !is {
		if !num1(got) || num(got) != code {
			failf("%v, want %d", got, code)
		}
		return 0
	}
	l := list(got)
	if num(l[0]) != code || num(l[1]) != int64(parked) || !slices.Equal(texts(l[3:]), names) {
		failf("%v, want %d, %d parked, %v", l, code, parked, names)
	}
	return num(l[2])
}

// calls compares a reply that may name notes.
func (s *sim) calls(got any, code int64, free, lend, inbound int) {
	m := &s.m
	if len(m.parked) == 0 {
		s.names(got, code, false, 0, nil)
		return
	}
	names := m.calls(s.limit, free, lend, inbound, 500)
	ends := s.names(got, code, true, len(m.parked)-m.called(), names)
	if d := ends - m.soonest(s.limit); d < -1 || d > 1 {
		failf("soonest %v, want %d", ends, m.soonest(s.limit))
	}
}

// sent compares the messages in a reply, and those published. It returns the rest.
func (s *sim) sent(got any) any {
	m := &s.m
	if len(m.told) == 0 {
		s.published()
		return got
	}
	l, want, top := list(got), m.told, s.grew
	m.told = nil
	// Fences of published and told messages grow together; only each list is compared here.
	s.published()
	grew := s.grew
	s.grew = top
	s.same(texts(l[1:]), want)
	s.grew = max(s.grew, grew)
	return l[0]
}

// setNX takes the lock as a raw client does, if free.
func (s *sim) setNX() {
	m := &s.m
	if s.every > 0 || s.limit == 0 {
		return // such a lock is not taken so
	}
	body, lease := s.newBody(), int64(50+10*s.r.IntN(100))
	m.purge()
	var took bool
	if s.r.IntN(2) == 0 {
		got := s.run("take", body, lease)
		if l, busy := got.([]any); busy {
			if d := num(l[1]) - m.firstEnd(); l[3] != m.first() || len(m.holders)+len(m.line) > 1 || d < -2 || d > 1 {
				failf("%v", m.holders)
			}
		} else if took = num(got) > 0; took {
			s.fence(num(got), false)
		}
	} else {
		ok, err := s.w.rdb.SetNX(context.Background(), s.key, body, time.Duration(lease)*time.Millisecond).Result()
		s.log = append(s.log, fmt.Sprintf("%d SET NX %s %d -> %v %v", s.now-startUS, body, lease, ok, err))
		took = ok
	}
	if !took {
		return
	}
	if len(m.holders)+len(m.line)+len(m.parked) > 0 || m.opens() > m.now {
		failf("SET NX took it beside %v, %v, %v", m.holders, m.line, m.parked)
	}
	m.take(body, lease, 1)
}

// releaseThin gives it back so.
func (s *sim) releaseThin() {
	m := &s.m
	body := s.oneOf()
	m.purge()
	if num(s.run("drop", body)) == 1 {
		if m.holds(body) < 0 || len(m.holders) > 1 || len(m.line)+len(m.parked) > 0 {
			failf("a thin release of %s beside %v, %v, %v", body, m.holders, m.line, m.parked)
		}
		m.holders = nil
	}
}

func (s *sim) release() {
	m := &s.m
	body := s.oneOf()
	inbound, cooldown, lend := s.r.IntN(4), int64(0), max(0, s.r.IntN(6)-3)
	if s.r.IntN(12) == 0 {
		cooldown = 100
	}
	m.bury()
	got := s.run("release", body, s.limit, inbound, 500, cooldown, lend)
	m.own = channelOf(tokenOf(body))
	was := m.holds(body)
	moved := was >= 0
	if moved {
		if s.limit == 1 && len(m.holders) == 1 && cooldown == 0 { // who stands aside since the limit was more asks
			m.holders = nil
		} else {
			m.leaves(was)
		}
		if cooldown > 0 {
			m.cooldown = max(m.cooldown, m.now+cooldown*1000)
		}
	} else if i := slices.IndexFunc(m.line, func(x waiting) bool { return x.token == tokenOf(body) }); i >= 0 {
		m.line, moved = slices.Delete(m.line, i, i+1), true
	}
	free, _, _ := m.grant(s.limit, moved, "", 0)
	m.own = ""
	code := int64(free)
	if was < 0 {
		code = -1 - code
		if free == 0 {
			inbound = 0
		}
	}
	s.calls(s.sent(got), code, free, lend, inbound)
}

func (s *sim) check() {
	m := &s.m
	n, fate, inbound, lend := "", "", s.r.IntN(4), max(0, s.r.IntN(6)-3)
	if len(m.parked) > 0 && s.r.IntN(3) == 0 {
		n, fate = m.parked[s.r.IntN(len(m.parked))].note, []string{"gone", "later", "ended"}[s.r.IntN(3)]
		if fate == "gone" && m.now%2 == 0 {
			n, fate = m.parked[0].note, "missing"
			s.advance(1 + m.now%4*5_500_000) // it may be as old
		}
	}
	m.bury()
	s.orderRate()
	args := []any{s.limit, inbound, 500, n, fate, lend, s.every, s.spare, s.known}
	if s.orders.IntN(2) == 0 {
		args = args[:6]
	} else if strings.HasPrefix(s.w.rdb.Get(context.Background(), s.key).Val(), "+") {
		s.setRate(m)
	}
	got := s.run("check", args...)
	if at := m.parkedAt(n); at >= 0 && m.parked[at].called != 0 && fate == "missing" &&
		m.now-m.parked[at].ticket < 10_000_000 {
		m.parked[at].called = yet
	} else if at >= 0 && (m.parked[at].called != 0 || fate == "ended") {
		m.parked = slices.Delete(m.parked, at, at+1)
		if fate == "later" {
			m.parked = append(m.parked, note{n, m.now, 0})
			m.sortParked()
		}
	}
	free := max(0, s.limit-len(m.holders))
	if fate == "" && free+lend == 0 {
		inbound = 0
	}
	s.calls(got, int64(free), free, lend, inbound)
}

func (s *sim) enlist() {
	m, n := &s.m, fmt.Sprintf("q/%d", s.r.IntN(12))
	got := num(s.run("enlist", n))
	if len(m.parked) == 0 {
		if got != 0 {
			failf("place %d, and nothing is parked", got)
		}
		return
	}
	if m.parkedAt(n) < 0 {
		m.parked = append(m.parked, note{n, m.now, 0})
		m.sortParked()
	}
	if want := int64(len(m.line) + m.parkedAt(n) + 1); got != want {
		failf("place %d, want %d", got, want)
	}
}

func (s *sim) renew() {
	m := &s.m
	body, length := s.oneOf(), int64(100+10*s.r.IntN(50))
	m.purge()
	if s.r.IntN(4) == 0 {
		length = int64(1+s.r.IntN(9)) * 3_600_000
	}
	got := num(s.run("renew", body, length))
	if got == 2 {
		got = num(s.run("renew all", body, length))
	}
	i := m.holds(body)
	if (i >= 0) != (got == 1) {
		failf("renewed %d, holds %v", got, i >= 0)
	}
	if i >= 0 {
		s.lasts(i, length, 0)
	}
}

// lasts has the holder at i last that long, and more ms by an ask. A renewed fat one lasts a millisecond longer than it
// did. Of a thin one the server may round one off each time: a miniredis tells its TTL in whole milliseconds.
func (s *sim) lasts(i int, length, more int64) {
	h, ctx := &s.m.holders[i], context.Background()
	if s.w.rdb.Get(ctx, s.key).Val() != h.body {
		h.end = max(h.end, s.ms()+length+more) + 1 - more
		return
	}
	end, want := s.ms()+s.w.rdb.PTTL(ctx, s.key).Val().Milliseconds()+1, max(h.end, s.ms()+length+1)
	if h.end = end; end != want && end != want-1 {
		failf("thin until %d, want %d", end, want)
	}
}

// fattens takes the millisecond off the holder of a lock that was thin before the step and is fat now; see lasts.
func (s *sim) fattens() {
	ctx, i := context.Background(), s.m.holds(s.thin)
	if i >= 0 && s.w.rdb.ZScore(ctx, s.keys[1], s.thin).Val() == float64(s.m.holders[i].end-1) {
		s.m.holders[i].end--
		slices.SortFunc(s.m.holders, byEnd)
	}
	if s.thin = s.w.rdb.Get(ctx, s.key).Val(); strings.HasPrefix(s.thin, "+") {
		s.thin = ""
	}
}

func (s *sim) close() {
	m := &s.m
	body, length := s.oneOf(), int64(50+s.r.IntN(100))
	m.bury()
	got := num(s.run("close", body, length))
	if (m.holds(body) >= 0) != (got == 1) {
		failf("closed %d, holds %d", got, m.holds(body))
	}
	if got == 1 {
		m.closed = max(m.closed, m.now+length*1000)
	}
}

// break_ breaks one, or all that a list names, or opens the gate, or deletes the lock. It reports whether a script may
// have changed the lock.
func (s *sim) break_() bool {
	m, bodies := &s.m, []string{}
	m.purge()
	slices.SortFunc(m.holders, byEnd)
	for _, h := range m.holders {
		bodies = append(bodies, h.body)
	}
	act := []string{"list", "list", "open", "one", "one", "key"}[s.r.IntN(6)]
	switch act {
	case "one":
		bodies = []string{s.oneOf()} // which may not hold it
	case "open":
		bodies = nil
		s.take("open", nil)
	default:
		if l := list(s.run("break", s.limit, act)); num(l[0]) != int64(len(bodies)) || !slices.Equal(texts(l[1:]), bodies) {
			failf("%s: %v, want %v", act, l, bodies)
		}
	}
	if act == "key" {
		*m = model{now: m.now, notes: m.notes, marks: m.marks, stands: map[string]string{}}
	}
	for some := range slices.Chunk(bodies, 100) {
		s.take("take", some)
	}
	return act == "open" || len(bodies) > 0
}

// take is one call of break with bodies.
func (s *sim) take(act string, bodies []string) {
	m := &s.m
	m.bury()
	there := s.w.rdb.Exists(context.Background(), s.key).Val() == 1
	args, broken := []any{s.limit, act}, int64(0)
	for _, body := range bodies {
		if args = append(args, body); m.holds(body) >= 0 {
			m.leaves(m.holds(body))
			broken++
		}
		m.send(tokenOf(body), fmt.Sprintf("-1 %d", m.now))
	}
	got := list(s.run("break", args...))
	if act == "open" {
		if m.closed > m.now || m.cooldown > m.now {
			broken++
		}
		m.closed, m.cooldown = 0, 0
	}
	if there {
		m.grant(s.limit, true, "", 0)
	}
	s.published()
	if num(got[0]) != broken || len(got) > 1 {
		failf("broken %v, want %d", got, broken)
	}
}

// sweep calls the script as often as its first reply says.
func (s *sim) sweep() {
	m := &s.m
	score := func(x waiting) int64 { return x.ticket + oneOrZero(x.aside)<<52 }
	from, calls := int64(0), 1
	for call := 0; call < calls; call++ {
		m.bury()
		got := list(s.run("sweep", s.limit, fmt.Sprint(from)))
		last, dead, looked, left := from, int64(0), 0, 0
		m.line = slices.DeleteFunc(m.line, func(x waiting) bool {
			switch {
			case score(x) <= from:
			case looked == 100:
				left++
			default:
				looked, last = looked+1, score(x)
				if x.till <= m.ms() {
					dead++
					return true
				}
			}
			return false
		})
		// The dead holder of a thin lock is not among those that the script finds.
		left, least := (max(left, len(m.dead))+99)/100, (left+99)/100
		if from = num(got[1]); from != last || num(got[0]) < dead || num(got[2]) < int64(least) || num(got[2]) > int64(left) {
			failf("%v, want %d dead waiters at least, up to %d, %d to %d calls more", got, dead, last, least, left)
		}
		if call == 0 {
			calls += int(num(got[2]))
		}
		m.grant(s.limit, num(got[0]) > 0, "", 0)
		s.published()
	}
}

// inspect compares all that an operator sees.
func (s *sim) inspect() {
	m := &s.m
	m.purge()
	l := list(s.run("inspect", 100))
	waiting := len(m.line)
	for _, x := range m.line[:min(100, len(m.line))] { // of the others the dead count
		if x.till <= m.ms() {
			waiting--
		}
	}
	why, until := m.gate(false)
	if num(l[1]) != int64(len(m.holders)) || num(l[2]) != int64(waiting) || num(l[3]) != int64(len(m.parked)-m.called()) ||
		num(l[4]) != int64(m.called()) || l[7] != why || num(l[8]) != until {
		failf("inspect %v, want %d holders, %d in line, %d parked, %d called, %s for %d", l, len(m.holders), len(m.line),
			len(m.parked)-m.called(), m.called(), why, until)
	}
	listed := list(l[6])
	for i := 0; i < len(listed); i += 2 {
		at := m.holds(listed[i].(string))
		if at < 0 {
			failf("holder %v, want %v", listed[i], m.holders)
		}
		// a thin one ends when its key does, and a miniredis rounds its TTL down
		if d := num(listed[i+1]) - m.holders[at].end; d < -2 || d > 1 {
			failf("holder %v until %v, want %d", listed[i], listed[i+1], m.holders[at].end)
		}
	}
}

// keysAreSound looks at what is stored: each key has a TTL that outlives what is in it, no key is left over, and the
// word says what there is.
func (s *sim) keysAreSound(emptied bool) {
	ctx := context.Background()
	found := s.w.rdb.Keys(ctx, "*").Val()
	m := &s.m
	word, _ := s.w.rdb.Get(ctx, s.key).Result()
	ttls := map[string]int64{}
	for _, k := range found {
		ttl := s.w.rdb.PTTL(ctx, k).Val()
		if ttl <= 0 {
			failf("key %s has no TTL", k)
		}
		ttls[strings.TrimPrefix(k, s.key)] = ttl.Milliseconds()
	}
	last := int64(0)
	for _, h := range m.holders {
		last = max(last, h.end-1)
	}
	for _, x := range m.line {
		last = max(last, x.till)
	}
	last = max(last, m.opens()/1000, (m.next+m.spare*min(1, m.next))/1000)
	fat := strings.HasPrefix(word, "+")
	for k, ttl := range ttls {
		if k == ":marks" {
			continue
		}
		if s.ms()+ttl < last-2 && (k != "" || fat) {
			failf("key %s ends before %d, at %d", k, last, s.ms()+ttl)
		}
		if d := ttl - ttls[""]; fat && (d < -2 || d > 2) && k != "" {
			failf("key %s has a TTL of %d, the word %d", k, ttl, ttls[""])
		}
	}
	_, parked := ttls[":parked"]
	_, order := ttls[":order"]
	_, called := ttls[":called"]
	if fat {
		info := s.w.rdb.HGetAll(ctx, s.key+":info").Val()
		gate := info["closed"] != "" || info["cooldown"] != "" || info["rate"] != ""
		if parked != strings.Contains(word, " parked") || gate != strings.Contains(word, " gate") || order &&
			!strings.Contains(word, " order") {
			failf("the word is %q, parked %v, gate %v, order %v", word, parked, gate, order)
		}
		if called && !parked {
			failf("called, and not parked")
		}
		var tokens []string
		for _, x := range m.line {
			tokens = append(tokens, x.token)
		}
		if line := s.w.rdb.ZRange(ctx, s.key+":line", 0, -1).Val(); !slices.Equal(line, tokens) {
			failf("the line is %v, want %v", line, tokens)
		}
		waiters := 0
		for f := range info {
			if strings.HasPrefix(f, "c") && strings.Contains(f, ".") {
				waiters++
			}
		}
		if waiters != len(m.line) {
			failf("%d records of waiters, want %d: %v", waiters, len(m.line), info)
		}
	}
	if emptied && len(m.holders)+len(m.line)+len(m.parked)+len(m.tasks) == 0 &&
		max(m.opens(), m.next+m.spare*min(1, m.next)) <= m.now {
		for k := range ttls {
			if k != ":marks" {
				failf("left over: %v", ttls)
			}
		}
	}
}

// fill makes a crowd: holders, who die soon or not, and waiters, who do, with the notes of the holders or without.
func (s *sim) fill(crowd int) {
	s.crowd, s.limit, s.rates, s.rateKnown = crowd, crowd, []rateKnown{{}}, rateKnown{}
	s.notes = s.r.IntN(3) > 0 // else those that hold it have notes already when they begin to count
	s.m.notes = s.notes
	lease, stay, strangers := []int64{700, 60_000}[s.r.IntN(2)], []int64{700, 60_000}[s.r.IntN(2)], s.r.IntN(4)
	for i := range 2 * crowd {
		if s.advance(int64(1 + s.r.IntN(5))); i == crowd {
			s.notes, s.m.notes = true, true
		}
		note := fmt.Sprintf("q/%d", i%crowd)
		if i >= crowd && i%4 < strangers {
			note = fmt.Sprintf("s/%d", i)
		}
		s.serial++
		// One that was thin ends by its TTL.
		s.ask(fmt.Sprintf("c%d.%d|host:1|%s", s.r.IntN(4), s.serial, note), lease+oneOrZero(i == 0)*lease, stay, 0)
	}
	s.limit += []int{0, 1, 150, crowd}[s.r.IntN(4)]
	s.advance([]int64{1000, 2_000_000}[s.r.IntN(2)])
}

// runModel makes random steps, and returns the first mistake. kind: plain, order, or crowd: 101 or 1,000 hold the lock
// and wait at first.
func runModel(w world, e *sender, seed uint64, kind string) (log []string, err error) {
	ctx, ordered, steps := context.Background(), kind == "order", 300
	s := &sim{w: w, e: e, r: rand.New(rand.NewPCG(seed, 7)), key: "automutex:{m|1}", limit: 1, ordered: ordered,
		tickets: map[string]int64{}}
	s.keys = keysOf(s.key)
	s.m.marks, s.m.stands = map[string]int64{}, map[string]string{}
	if ordered {
		s.keys = orderKeys(s.key)
	}
	defer func() {
		log = s.log
		if p := recover(); p != nil { // what a planted mistake replies may fit no type
			err = fmt.Errorf("seed %d: %v", seed, p)
		}
	}()
	w.rdb.FlushAll(ctx)
	sub := w.rdb.PSubscribe(ctx, "automutex:*")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		return nil, err
	}
	s.msgs = sub.Channel(redis.WithChannelSize(10000))
	s.now = startUS + int64(seed%1000)*100_000_000_000
	s.w.set(s.now, 0)
	s.m.now = s.now
	switch s.r.IntN(4) {
	case 1:
		s.limit = 2
	case 2:
		s.limit = 4
	}
	s.rates = []rateKnown{{}}
	if !ordered && s.r.IntN(4) == 0 {
		s.rates[0] = rateKnown{0, int64(20_000 + s.r.IntN(100_000)), int64(s.r.IntN(3)) * 50_000}
	}
	s.orders = rand.New(rand.NewPCG(seed, 8))
	if ordered {
		s.limit = 1
	} else {
		s.notes = s.r.IntN(3) > 0
		s.m.notes = s.notes
	}
	if kind == "crowd" {
		steps = 60
		s.fill([]int{101, 1000}[seed%2])
	}
	for range steps {
		step := int64(1 + s.r.IntN(2000))
		switch s.r.IntN(14) {
		case 0:
			step = 1 + int64(s.r.IntN(400))*1000 // two scripts are never in one microsecond
		case 1:
			if s.r.IntN(6) == 0 {
				step = 1 + int64(s.r.IntN(9))*1_000_000
			}
		}
		s.advance(step)
		emptied := false
		if ordered {
			emptied = s.orderStep()
		} else {
			switch k := s.r.IntN(40); {
			case k < 17:
				s.randomAsk()
			case k < 19:
				s.setNX()
			case k < 20:
				s.releaseThin()
			case k < 30:
				s.release()
				emptied = s.w.rdb.Exists(ctx, s.key).Val() == 1
			case k < 32:
				s.check()
				emptied = true
			case k < 34:
				s.renew()
			case k == 34 && s.m.now%2 == 0 && s.crowd == 0:
				s.enlist()
			case k == 34:
				s.close()
			case k == 35:
				emptied = s.break_()
			case k == 36:
				s.sweep()
			case k == 37:
				if s.crowd > 0 {
					s.limit = []int{0, s.crowd / 2, s.crowd, s.crowd + 150, 2 * s.crowd}[s.r.IntN(5)]
				} else if s.r.IntN(2) == 0 {
					s.limit = []int{0, 1, 1, 2, 4}[s.r.IntN(5)]
				} else if s.limit == 0 {
					s.limit = 1 + s.r.IntN(3)
				}
				if s.r.IntN(3) == 0 {
					emptied = s.break_()
				}
			default:
				s.inspect()
			}
		}
		s.fattens()
		s.keysAreSound(emptied)
	}
	if left := messages(w.rdb, s.msgs); len(left) > 0 { // the model did not foresee it
		failf("messages %q came, and none was expected", left)
	}
	return s.log, nil
}

// spentAsk is an ask that was refused.
type spentAsk struct {
	body             string
	task             otask
	retried, allowed int64
}

type otask struct {
	nonce, note, state, token, body string
	ticket, seen, since             int64
	begun, retried                  int64
	grant                           int64
}

// -------------------- ordered keys

func (m *model) task(nonce string) int {
	return slices.IndexFunc(m.tasks, func(t otask) bool { return t.nonce == nonce })
}

func (m *model) put(t otask) {
	if i := m.task(t.nonce); i >= 0 {
		m.tasks[i] = t
		return
	}
	m.tasks = append(m.tasks, t)
	slices.SortFunc(m.tasks, func(a, b otask) int {
		return cmp.Or(cmp.Compare(a.ticket, b.ticket), cmp.Compare(a.nonce, b.nonce))
	})
}

func (m *model) remove(nonce string) {
	if i := m.task(nonce); i >= 0 {
		m.tasks = slices.Delete(m.tasks, i, i+1)
	}
}

func (m *model) mark(name string) { m.marks[name] = m.ms() + 300_000 }

func (m *model) marked(name string) bool { return m.marks[name] > m.ms() }

func (m *model) leave(t otask, how string) {
	m.remove(t.nonce)
	m.mark("left:" + t.nonce)
	if how != "" && t.begun > 0 {
		m.mark(fmt.Sprintf("%s:%s|%d", how, t.nonce, t.begun))
	}
}

func (m *model) hold(t otask) {
	t.state, t.since, t.token = "h", m.ms(), ""
	m.put(t)
}

// run is the holder that is a run of the task; -1: none.
func (m *model) run(t otask) int {
	return slices.IndexFunc(m.holders, func(h holder) bool { return isOrdered(h) && noteOf(h.body) == t.note })
}

func (m *model) runs(t otask) bool { return m.run(t) >= 0 }

// isOrdered is false for one of a program's, see beside.
func isOrdered(h holder) bool { return h.body[0] == 'c' }

// beside is a program's own mutex or semaphore on the key of ordered tasks: it takes a slot beside their head.
func (s *sim) beside() {
	m, limit := &s.m, 1+s.r.IntN(2)
	if i := slices.IndexFunc(m.holders, func(h holder) bool { return !isOrdered(h) }); i >= 0 && s.r.IntN(2) == 0 {
		got := s.run("release", m.holders[i].body, limit)
		m.holders = slices.Delete(m.holders, i, i+1)
		if free, _, _ := m.grant(limit, true, "", 0); num(got) != int64(free) {
			failf("%v, want %d free", got, free)
		}
		return
	}
	s.serial++
	body, lease := fmt.Sprintf("p%d.%d|host|", s.r.IntN(4), s.serial), int64(50+10*s.r.IntN(100))
	got := s.run("ask", body, lease, 0, lease, limit)
	if _, mine, _ := m.grant(limit, false, body, lease); mine {
		s.published(got)
	} else if num1(got) {
		failf("%v beside %v", got, m.holders)
	}
}

func (m *model) alive(t otask) bool { return t.state == "w" && m.now-t.seen < t.since*1000 }

func (m *model) due(t otask) bool {
	switch t.state {
	case "i":
		at := t.seen
		if at == 0 {
			at = t.ticket
		}
		return m.now-at >= t.since*1000
	case "a":
		at := t.since
		if at == 0 {
			at = t.seen/1000 + 5000
		}
		return m.ms() >= at || t.since > m.ms()+5000 && (m.ms()+t.ticket/1000)%60000 < 5000
	}
	return t.state == "w" && !m.alive(t) && m.now-t.seen >= 5_000_000
}

// advance returns the free slots, and what a reply names; nil for nobody who is kept waiting.
func (m *model) advance(limit, inbound int, ended bool) (free int, waiting int, names []string) {
	if len(m.tasks) == 0 {
		return max(0, limit-len(m.holders)), 0, nil
	}
	if h := m.tasks[0]; len(m.holders) < limit && m.opens() <= m.now && m.alive(h) {
		m.take(h.body, h.grant, 1)
		m.send(h.token, fmt.Sprintf("fence %d", m.now))
		h.state, h.since, h.begun, h.seen = "a", 0, h.retried+1, m.now
		m.put(h)
	}
	if h := m.tasks[0]; ended && m.opens() > m.now && m.alive(h) {
		m.send(h.token, fmt.Sprintf("-3 %d %d", m.now, m.opens()-m.now))
	}
	free = max(0, limit-len(m.holders))
	head := m.tasks[0]
	if len(m.tasks) == 1 && head.state != "p" && head.state != "c" {
		return free, 0, nil
	}
	name := func(kind string, t otask) {
		names = append(names, fmt.Sprintf("|%s|%s|%s|%d|%d|%s", kind, t.state, t.nonce, t.ticket, t.seen, t.note))
	}
	if limit > 0 && free > 0 && m.opens() <= m.now && !ended && m.due(head) {
		name("l", head)
	}
	coming := 0
	for i, t := range m.tasks {
		if limit == 0 || m.opens() > m.now+1_000_000 || i >= max(2, inbound+1) {
			break
		}
		if t.state == "p" && coming < inbound {
			t.state, t.since = "c", m.ms()
			m.put(t)
		}
		if t.state == "c" {
			name("c", t)
		} else if !m.alive(t) && (i != 0 || !m.runs(t)) {
			break
		}
		if t.state != "a" {
			coming++
		}
	}
	return free, len(m.tasks), names
}

func (s *sim) orderAsk(o otask) {
	m := &s.m
	body := fmt.Sprintf("c%d.~%d|host|%s", s.r.IntN(4), s.serial, o.note)
	s.serial++
	if i := m.task(o.nonce); i >= 0 && m.tasks[i].state == "w" && s.r.IntN(2) == 0 {
		body = m.tasks[i].body // it asks again
	}
	if at := m.run(o); at >= 0 && (s.limit == 0 || s.r.IntN(3) == 0) {
		body = m.holders[at].body
	}
	s.bodies = append(s.bodies, body)
	stay, park := int64(0), s.r.IntN(3)
	if park != 1 {
		stay = []int64{0, 300, 300}[s.r.IntN(3)]
	}
	retried, allowed := int64(s.r.IntN(3)), int64(s.r.IntN(4)-1)
	if i := m.task(o.nonce); i >= 0 && s.r.IntN(2) == 0 {
		retried = m.tasks[i].begun
	}
	cont, lease, grant := s.r.IntN(2), int64(100+10*s.r.IntN(100)), int64(60)
	if s.spent.body != "" && s.r.IntN(3) == 0 { // a refused ask is sent again
		body, o, retried, allowed = s.spent.body, s.spent.task, s.spent.retried, s.spent.allowed
	}
	ticket := o.ticket
	got := s.run("order_ask", body, lease, stay, s.limit, park, 0, 0, grant, o.nonce, ticket, retried, allowed, cont, 0, 1)
	token := tokenOf(body)
	spent := allowed >= 0 && retried > allowed
	refused := func(want string) {
		if l := list(got); len(l) != 1 || l[0] != want {
			failf("%v, want %s", got, want)
		}
		if s.spent.body = ""; want == "spent" {
			s.spent = spentAsk{body, o, retried, allowed}
		}
	}
	if m.marked("refused:" + token) {
		refused("spent")
		return
	}
	if m.marked("done:" + o.nonce) {
		m.remove(o.nonce)
		refused("done")
		return
	}
	at := m.holds(body)
	if at >= 0 && s.limit > 0 {
		m.holders[at].end = max(m.holders[at].end, m.ms()+lease+1)
		s.fence(got, true)
		return
	} else if at >= 0 { // it knows of a pause
		m.holders = slices.Delete(m.holders, at, at+1)
	}
	i := m.task(o.nonce)
	t := otask{nonce: o.nonce, note: o.note, state: "a", ticket: o.ticket}
	was, since, ended := "", int64(0), false
	if i >= 0 {
		t = m.tasks[i]
		was, since = t.state, t.since
	} else {
		if t.ticket == 0 {
			t.ticket = m.now
		}
		for _, how := range []string{"ended", "unknown"} {
			name := fmt.Sprintf("%s:%s|%d", how, o.nonce, retried)
			if how == "ended" || spent {
				ended = ended || m.marked(name)
				delete(m.marks, name)
			}
		}
	}
	if at >= 0 {
		t.begun = 0
	}
	waited := was == "w" && t.token == token
	t.seen, t.retried = m.now, max(retried, t.retried)
	same := m.runs(t)
	if ended || !waited && !same && spent && t.begun == t.retried {
		t.begun = retried + 1
		if cont == 1 {
			m.leave(t, "ended")
		} else {
			m.hold(t)
		}
		m.mark("refused:" + token)
		refused("spent")
		return
	}
	place := 0
	for _, x := range m.tasks {
		if x.ticket < t.ticket || x.ticket == t.ticket && x.nonce < t.nonce && was != "" {
			place++
		}
	}
	inline := max(0, (m.now-t.ticket)/1000)
	calledAgo := int64(-1)
	if was == "c" {
		calledAgo = max(0, m.ms()-since)
	}
	if place == 0 && len(m.holders) < s.limit && m.opens() <= m.now {
		t.state, t.since, t.token, t.begun = "a", 0, token, max(retried+1, t.begun)
		m.put(t)
		m.take(body, lease, 1)
		if was != "p" && was != "c" {
			if !num1(got) {
				failf("%v, want a fence", got)
			}
			s.fence(got, false)
			return
		}
		l := list(got)
		s.fence(l[0], false)
		if num(l[1]) != inline || num(l[2]) != calledAgo || num(l[3]) != int64(len(m.tasks)-1) {
			failf("%v, want %d, %d, %d", l, inline, calledAgo, len(m.tasks)-1)
		}
		return
	}
	parkNow := park == 1
	if park == 2 && place > 0 && !m.runs(m.tasks[0]) {
		parkNow = m.tasks[0].state == "a" || m.tasks[0].state == "h"
	}
	hasParked := int64(0)
	t.token, t.since, t.state = "", 0, "a"
	switch {
	case same:
		t.token = tokenOf(m.holders[m.run(t)].body)
	case parkNow:
		t.state, hasParked = "p", 1
	case stay > 0:
		t.state, t.since, t.token, t.body, t.grant = "w", stay, token, body, grant
	}
	m.put(t)
	if len(m.holders) < s.limit {
		m.advance(s.limit, 0, false)
	}
	s.published()
	l := list(got)
	if num(l[2]) != int64(place) {
		failf("place %v, want %d", l[2], place)
	}
	if len(m.holders) > 0 && !strings.Contains(l[3].(string), "|host|") && m.opens() <= m.now {
		failf("named %v, want a holder", l[3])
	}
	if len(m.holders) == 0 && place > 0 && m.opens() <= m.now && !strings.HasSuffix(l[3].(string), "|"+m.tasks[0].note) {
		failf("named %v, want the head %+v", l[3], m.tasks[0])
	}
	if parkNow || was == "p" || was == "c" {
		if num(l[4]) != inline || num(l[5]) != calledAgo || num(l[6]) != int64(len(m.tasks)-1) || num(l[7]) != hasParked {
			failf("%v, want %d %d %d %d", l, inline, calledAgo, len(m.tasks)-1, hasParked)
		}
	}
}

func (s *sim) orderRelease() {
	m := &s.m
	if len(s.bodies) == 0 {
		return
	}
	body := s.bodies[max(0, len(s.bodies)-1-s.r.IntN(6))]
	if at := slices.IndexFunc(m.holders, isOrdered); at >= 0 && s.r.IntN(4) > 0 {
		body = m.holders[at].body
	}
	var nonce string
	for n := range s.tickets {
		if "q/"+strings.TrimLeft(n, "N~") == noteOf(body) {
			nonce = n
		}
	}
	if i := slices.IndexFunc(m.tasks, func(t otask) bool { return t.note == noteOf(body) }); i >= 0 {
		nonce = m.tasks[i].nonce
	}
	outcome := []string{"stays", "unbegun", "done", "done", "done", "held", "left"}[s.r.IntN(7)]
	inbound, cooldown := s.r.IntN(4), int64(0)
	if s.r.IntN(8) == 0 {
		cooldown = 50
	}
	got := s.run("order_release", body, s.limit, inbound, cooldown, nonce, outcome)
	token := tokenOf(body)
	m.own = channelOf(token)
	at := m.holds(body)
	was := at >= 0
	if was {
		m.holders = slices.Delete(m.holders, at, at+1)
		if cooldown > 0 {
			m.cooldown = max(m.cooldown, m.now+cooldown*1000)
		}
	}
	i := m.task(nonce)
	mine := i >= 0 && m.tasks[i].token == token && (m.tasks[i].state == "a" || m.tasks[i].state == "w")
	if mine {
		t := m.tasks[i]
		switch {
		case t.state == "w" || outcome == "stays" || outcome == "unbegun":
			if t.state == "a" && outcome == "unbegun" {
				t.begun = 0
			}
			t.state, t.token, t.since = "a", "", m.ms()+5000
			m.put(t)
		case outcome == "held":
			m.hold(t)
		case outcome == "left":
			m.leave(t, "ended")
		default:
			m.remove(nonce)
		}
	}
	if outcome == "done" && (mine || was || i < 0) && !strings.HasPrefix(nonce, "~") {
		m.mark("done:" + nonce)
	}
	free, waiting, names := m.advance(s.limit, inbound, was)
	m.own = ""
	code := int64(free)
	if !was {
		code = -1 - code
	}
	s.names(s.sent(got), code, waiting > 0, waiting, names)
}

func (s *sim) orderAct() {
	m := &s.m
	act := []string{"none", "none", "gone", "archived", "left", "present", "confirm", "refused", "withdraw",
		"skip"}[s.r.IntN(10)]
	o := otask{}
	if len(m.tasks) > 0 {
		o = m.tasks[s.r.IntN(min(3, len(m.tasks)))]
	} else if act != "none" {
		return
	}
	state, seen, after, inbound := o.state, o.seen, int64(s.r.IntN(3))*4000, s.r.IntN(4)
	if s.r.IntN(5) == 0 {
		seen++
	}
	if strings.HasPrefix(o.nonce, "~") && (act == "confirm" || act == "refused") || act == "withdraw" && m.runs(o) {
		act = "none" // a task is withdrawn before it begins
	}
	got := s.run("order_act", s.limit, inbound, act, o.nonce, o.ticket, state, seen, after, o.note)
	i := m.task(o.nonce)
	var t otask
	if i >= 0 {
		t = m.tasks[i]
	}
	switch {
	case act == "skip" && m.tasks[0].nonce != o.nonce && m.marked(fmt.Sprint("skipped:", o.ticket)): // sent again
	case act == "skip":
		if m.tasks[0].nonce != o.nonce {
			if l := list(got); l[0] != "other" || l[1] != m.tasks[0].note {
				failf("%v, want other %s", got, m.tasks[0].note)
			}
			return
		}
		if m.runs(t) {
			if l := list(got); l[0] != "runs" {
				failf("%v, want runs", got)
			}
			return
		}
		m.leave(t, "unknown")
		m.mark(fmt.Sprint("skipped:", o.ticket))
	case act == "withdraw" && i >= 0:
		m.leave(t, "")
	case act == "refused":
		m.remove(o.nonce)
		m.mark("done:" + o.nonce)
	case act == "confirm":
		if t.state == "i" {
			t.state, t.seen, t.since = "a", m.now, m.ms()+5000
			m.put(t)
		}
	case act != "none" && t.seen == seen && !m.runs(t):
		switch {
		case act == "gone" && t.state != "h" && (t.state != "i" || m.due(t)):
			m.remove(o.nonce)
		case act == "archived":
			t.begun = 0
			m.hold(t)
		case act == "left":
			m.leave(t, "")
		case act == "present" && t.state != "h":
			age := int64(0)
			if t.seen > 0 {
				age = (m.now - t.seen) / 1000
			}
			if t.state == "i" {
				t.seen = m.now
			}
			if t.state != "a" {
				t.state, t.token = "a", ""
			}
			t.since = m.ms() + max(after, min(60000, max(5000, age)))
			m.put(t)
		}
	}
	free, waiting, names := m.advance(s.limit, inbound, false)
	s.published()
	s.names(got, int64(free), waiting > 0, waiting, names)
}

// orderStep makes one step on an ordered key.
func (s *sim) orderStep() bool {
	m := &s.m
	m.purge()
	switch k := s.r.IntN(33); {
	case k < 7:
		s.serial++
		nonce, note := fmt.Sprintf("N%d", s.serial), fmt.Sprintf("q/%d", s.serial)
		got := s.run("order_stamp", nonce, note, 400, 6)
		if len(m.tasks) >= 6 {
			want := []any{int64(len(m.tasks))}
			for _, t := range m.tasks {
				if m.due(t) {
					want = append(want, fmt.Sprintf("|l|%s|%s|%d|%d|%s", t.state, t.nonce, t.ticket, t.seen, t.note))
				}
			}
			if !reflect.DeepEqual(list(got), want) {
				failf("%v, want %v", got, want)
			}
			return false
		}
		if num(got) != m.now {
			failf("ticket %v", got)
		}
		m.put(otask{nonce: nonce, note: note, state: "i", ticket: m.now, since: 400})
		s.tickets[nonce] = m.now
	case k < 17:
		if len(m.tasks) > 0 && s.r.IntN(8) > 0 {
			s.orderAsk(m.tasks[s.r.IntN(min(4, len(m.tasks)))])
		} else if s.r.IntN(3) == 0 || len(s.tickets) == 0 {
			s.serial++
			s.orderAsk(otask{nonce: fmt.Sprintf("~%d", s.serial), note: fmt.Sprintf("q/%d", s.serial)})
		} else {
			all := slices.Sorted(maps.Keys(s.tickets))
			n := all[s.r.IntN(len(all))]
			s.orderAsk(otask{nonce: n, note: "q/" + n[1:], ticket: s.tickets[n]}) // perhaps one that is done
		}
		return false
	case k < 24:
		s.orderRelease()
		return true
	case k < 28:
		s.orderAct()
		return true
	case k == 28:
		s.limit = 1 - s.limit
		if s.r.IntN(2) > 0 {
			s.limit = 1
		}
	case k > 29:
		s.beside()
	default:
		l := list(s.run("inspect", 10))
		if num(l[1]) != int64(len(m.holders)) || num(l[9]) != int64(len(m.tasks)) {
			failf("inspect %v, want %d holders, %d tasks", l, len(m.holders), len(m.tasks))
		}
		if h := list(l[10]); len(h) > 0 && (h[0] != m.tasks[0].nonce || !strings.HasPrefix(h[2].(string),
			fmt.Sprintf("%s %d %d %d %d ", m.tasks[0].state, m.tasks[0].seen, m.tasks[0].begun, m.tasks[0].retried,
				m.tasks[0].since))) {
			failf("head %v, want %+v", h, m.tasks[0])
		}
	}
	return false
}

// seedsOn: under race a miniredis takes five times as long as a server, which has most.
func seedsOn(world string) int {
	if world == "redis" && redistest.All() {
		return 12
	}
	return 3
}

func TestModel(t *testing.T) {
	t.Parallel()
	first, _ := strconv.Atoi(os.Getenv("FIRST"))
	for name, start := range worlds {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			e := newSender(t, w.rdb, nil)
			runs, err := strconv.Atoi(os.Getenv("RUNS"))
			if err != nil {
				runs = seedsOn(name)
			}
			for seed := first; seed < first+runs; seed++ {
				for _, kind := range []string{"plain", "order", "crowd"} {
					if only := os.Getenv("ONLY"); only != "" && only != kind {
						continue
					}
					log, err := runModel(w, e, uint64(seed), kind)
					if err != nil {
						t.Fatalf("%s: %v\n%s", kind, err, strings.Join(log[max(0, len(log)-14):], "\n"))
					}
				}
			}
		})
	}
}

// TestNewest: tasks come and end at random, beside a model that forgets none. What is stored is bounded.
func TestNewest(t *testing.T) {
	t.Parallel()
	type task struct {
		at            int64
		ended, counts bool
	}
	w, ctx, keys, now := miniWorld(t), context.Background(), newestKeys("automutex:{n}"), startUS
	e := newSender(t, w.rdb, nil)
	for seed := range uint64(20) {
		w.rdb.FlushAll(ctx)
		r, all, alive := rand.New(rand.NewPCG(seed, 7)), []*task{}, map[int]*task{}
		slots := 1 + r.IntN(3)
		for range 200 {
			now++
			w.set(now, 0)
			note := r.IntN(2 + int(seed%7))
			one := alive[note]
			if one != nil && r.IntN(3) == 0 {
				one.ended, one.counts = true, r.IntN(4) > 0
				delete(alive, note)
				e.run("forget", keys, note, one.at, oneOrZero(one.counts)*int64(slots))
			} else {
				if one == nil {
					one = &task{at: now}
					all, alive[note] = append(all, one), one
				}
				newer := 0
				for _, o := range all {
					if o.at > one.at && (o.counts || !o.ended) {
						newer++
					}
				}
				got := list(e.run("arrive", keys, note, slots))
				if num(got[0]) != one.at || (num(got[1]) == 1) != (newer >= slots) {
					t.Fatalf("seed %d: %v, want %d with %d newer ones, %d slots", seed, got, one.at, newer, slots)
				}
			}
			if n := int(w.rdb.ZCard(ctx, keys[1]).Val()); n > slots || len(alive) == 0 && n > 0 {
				t.Fatalf("seed %d: %d are remembered beside %d", seed, n, len(alive))
			}
		}
	}
}

// mistake is planted in the scripts, and must be found: a text, and what takes its place. seed is one that finds it.
type mistake struct{ seed, what, text, instead string }

// readMistakes reads testdata/mistakes.txt: the seed and what is wrong, then the lines that go (-) and that come (+).
func readMistakes(t *testing.T) (all []mistake) {
	t.Helper()
	file, err := os.ReadFile("testdata/mistakes.txt")
	redistest.Must(t, err)
	for block := range strings.SplitSeq(strings.TrimSpace(string(file)), "\n\n") {
		head, rest, _ := strings.Cut(block, "\n")
		var m mistake
		m.seed, m.what, _ = strings.Cut(head, " ")
		var lines [2][]string
		for line := range strings.SplitSeq(rest, "\n") {
			i := strings.IndexByte("-+", line[0])
			lines[i] = append(lines[i], line[2:])
		}
		m.text, m.instead = strings.Join(lines[0], "\n"), strings.Join(lines[1], "\n")
		all = append(all, m)
	}
	return all
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	for _, m := range readMistakes(t) {
		if only := os.Getenv("MISTAKE"); only != "" && !strings.Contains(m.what, only) {
			continue
		}
		changed := false
		e := newSender(t, w.rdb, func(src string) string {
			out := strings.ReplaceAll(src, m.text, m.instead)
			if indented := strings.ReplaceAll(m.text, "\n", "\n      "); out == src { // within a function or a loop
				out = strings.ReplaceAll(src, indented, m.instead)
			}
			changed = changed || out != src
			return out
		})
		if !changed {
			t.Errorf("%s: the text is in no script", m.what)
			continue
		}
		kind, _, named := strings.Cut(m.what, ":")
		if !named {
			kind = "plain"
		}
		var err error
		known, malformed := strconv.Atoi(m.seed)
		redistest.Must(t, malformed)
		seed := known
		if _, err = runModel(w, e, uint64(seed), kind); err == nil {
			for seed = 0; seed < 60 && err == nil; seed++ {
				_, err = runModel(w, e, uint64(seed), kind)
			}
			seed--
		}
		if err == nil {
			t.Errorf("not found: %s", m.what)
			continue
		}
		if seed != known {
			t.Errorf("%s: seed %d finds it now", m.what, seed)
		}
		t.Logf("%-52s seed %2d: %.90s", m.what, seed, err)
	}
}

// TestPool: no value is lost or given twice, whatever random callers do.
func TestPool(t *testing.T) {
	t.Parallel()
	for name, start := range worlds {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			e, ctx := newSender(t, w.rdb, nil), context.Background()
			keys := append(keysOf("automutex:{p|1}"), "automutex:{p|1}:values")
			for seed := range uint64(seedsOn(name)) {
				r := rand.New(rand.NewPCG(seed, 1))
				w.rdb.FlushAll(ctx)
				now, put, all := startUS+int64(seed)*1e12, 0, map[string]bool{}
				var bodies []string
				for step := range 400 {
					d := int64(1 + r.IntN(3000))
					if r.IntN(10) == 0 {
						d = int64(r.IntN(300)) * 1000
					}
					now += d
					w.set(now, time.Duration(d)*time.Microsecond)
					body := fmt.Sprintf("c%d.%d|h|", r.IntN(3), step)
					if len(bodies) > 0 && r.IntN(3) > 0 {
						body = bodies[max(0, len(bodies)-1-r.IntN(6))]
					} else {
						bodies = append(bodies, body)
					}
					switch k := r.IntN(20); {
					case k < 2 && len(all) < 3:
						put++
						v := fmt.Sprintf("v%d", put)
						if n := e.run("put", keys, v, v); n != int64(1) {
							t.Fatal(n)
						}
						all[v] = true
					case k < 11:
						e.run("ask", keys, body, 100+r.IntN(100), 300*r.IntN(2), 60)
					case k < 17:
						consume := ""
						if r.IntN(6) == 0 && put > 0 {
							consume = fmt.Sprintf("v%d", 1+r.IntN(put))
						}
						held := w.rdb.HGet(ctx, keys[5], "v:"+tokenOf(body)).Val()
						slots := min(1, r.IntN(4)) // 0: paused
						waiting := w.rdb.ZCard(ctx, keys[2]).Val()
						if e.run("release", keys, body, slots, 0, 0, 0, 0, consume); slots == 0 && held != "" &&
							w.rdb.ZCard(ctx, keys[2]).Val() < waiting {
							t.Fatalf("seed %d step %d: a waiter is served in a pause", seed, step)
						}
						// If its lease had ended the value was free before, and still is.
						if held != "" && held == consume && w.rdb.ZScore(ctx, keys[6], held).Err() != nil &&
							w.rdb.HGet(ctx, keys[5], "v:"+tokenOf(body)).Val() == "" {
							delete(all, held)
						}
					default:
						e.run("sweep", keys, 1, 0)
					}
					seen := map[string]bool{} // each value is free, or with one holder
					there := w.rdb.ZRange(ctx, keys[6], 0, -1).Val()
					for f, v := range w.rdb.HGetAll(ctx, keys[5]).Val() {
						if strings.HasPrefix(f, "v:") {
							there = append(there, v)
						}
					}
					for _, v := range there {
						seen[v] = true
					}
					if len(there) != len(seen) || !maps.Equal(seen, all) {
						t.Fatalf("seed %d step %d: values %v, want %v", seed, step, there, all)
					}
					for _, key := range keys {
						if w.rdb.PTTL(ctx, key).Val() == -1 {
							t.Fatalf("seed %d step %d: %s has no TTL", seed, step, key)
						}
					}
				}
			}
		})
	}
}
