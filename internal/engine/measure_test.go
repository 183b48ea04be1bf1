package engine

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/wire"
)

var usec = regexp.MustCompile(`cmdstat_(evalsha|set|del):calls=\d+,usec=(\d+)`)

// spent is what Redis' commands took so far, those within scripts with the scripts.
func spent(rdb *redis.Client) (us float64) {
	for _, m := range usec.FindAllStringSubmatch(rdb.Info(context.Background(), "commandstats").Val(), -1) {
		n, _ := strconv.ParseFloat(m[2], 64)
		us += n
	}
	return us
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// TestMeasure compares today's scripts with the new ones, in turns.
func TestMeasure(t *testing.T) {
	if os.Getenv("MEASURE") == "" {
		t.Skip("MEASURE=1 measures")
	}
	only := os.Getenv("ROW")
	ctx := context.Background()
	rdb := server(t)
	e := newSender(t, rdb, nil)
	old := map[string]*redis.Script{}
	for name, src := range map[string]string{"ask": wire.AskScript.Source, "release": wire.ReleaseScript.Source, "string": wire.ReleaseStringScript.Source,
		"call": wire.CallScript.Source, "renew": wire.RenewScript.Source, "stamp": wire.OrderStampScript.Source, "oask": wire.OrderAskScript.Source, "orelease": wire.OrderReleaseScript.Source} {
		old[name] = redis.NewScript(src)
		if err := old[name].Load(ctx, rdb).Err(); err != nil {
			t.Fatal(err)
		}
	}
	v1key, v2key := "automutex:{itunes:verify|700001234567}", "automutex:{itunes:verify|700001234568}"
	v1 := func(name string, args ...any) any {
		v, err := old[name].EvalSha(ctx, rdb, []string{v1key}, args...).Result()
		if err != nil {
			t.Fatal(name, args, err)
		}
		return v
	}
	keys, okeys := keysOf(v2key), orderKeys(v2key)
	v2 := func(name string, args ...any) any { return e.run(name, keys, args...) }
	v2o := func(name string, args ...any) any { return e.run(name, okeys, args...) }
	n := 0
	note := func(i int) string { return fmt.Sprintf("default/8a1c2f3e-9b1d-4c55-8f0a-%012d", i) }
	b1 := func(i int) string {
		return "iBq-amHluSdcW1Xu.3000.~" + strconv.FormatInt(1764190000000000+int64(i), 36) + "|worker-17.example:4242|" + note(i)
	}
	b2 := func(i int) string {
		return "iBq-amHluSdcW1Xu." + strconv.FormatInt(1764190000000000+int64(i), 36) + "|worker-17.example:4242|" + note(i)
	}
	number := func(v any, want int64) {
		t.Helper()
		if got, _ := v.(int64); got != want {
			t.Fatalf("%v, want %d", v, want)
		}
	}
	type row struct {
		name     string
		init1    func()
		op1      func()
		init2    func()
		op2      func()
		perRound int
	}
	nothing := func() {}
	var rows []row
	add := func(name string, init1, op1, init2, op2 func()) {
		rows = append(rows, row{name, init1, op1, init2, op2, 300})
	}

	add("thin pair: SET NX, release", nothing, func() {
		n++
		rdb.SetNX(ctx, v1key, b1(n), 30*time.Second)
		number(v1("string", b1(n)), 1)
	}, nothing, func() {
		n++
		rdb.SetNX(ctx, v2key, b2(n), 30*time.Second)
		number(e.run("drop", keys[:1], b2(n)), 1)
	})
	add("free mutex, by scripts: ask, release", nothing, func() {
		n++
		v1("ask", b1(n), 31000)
		number(v1("release", b1(n)), 1)
	}, nothing, func() {
		n++
		v2("ask", b2(n), 30000)
		number(v2("release", b2(n)), 1)
	})
	add("fat mutex (a note is parked): ask, release", func() {
		v1("ask", b1(0), 31000)
		v1("ask", b1(1), 31000, 0, 1, 1)
		v1("release", b1(0))
	}, func() {
		n++
		v1("ask", b1(n+10), 31000)
		v1("release", b1(n+10))
	}, func() {
		v2("ask", b2(0), 30000)
		v2("ask", b2(1), 30000, 0, 3000, 1, 1, 1)
		v2("release", b2(0))
	}, func() {
		n++
		v2("ask", b2(n+10), 30000)
		v2("release", b2(n+10))
	})
	add("a try that is busy", func() { v1("ask", b1(0), 31000) }, func() { v1("ask", b1(5), 31000) },
		func() { v2("ask", b2(0), 30000) }, func() { v2("ask", b2(5), 30000) })
	add("semaphore of 4, alone", nothing, func() {
		n++
		v1("ask", b1(n), 31000, 0, 4)
		number(v1("release", b1(n), 0, 4), 4)
	}, nothing, func() {
		n++
		v2("ask", b2(n), 30000, 0, 3000, 4)
		number(v2("release", b2(n), 4), 4)
	})
	add("semaphore of 4, 3 others hold", func() {
		for i := range 3 {
			v1("ask", b1(-i-1), 3100000, 0, 4)
		}
	}, func() {
		n++
		v1("ask", b1(n), 31000, 0, 4)
		number(v1("release", b1(n), 0, 4), 1)
	}, func() {
		for i := range 3 {
			v2("ask", b2(-i-1), 3000000, 0, 3000, 4)
		}
	}, func() {
		n++
		v2("ask", b2(n), 30000, 0, 3000, 4)
		number(v2("release", b2(n), 4), 1)
	})
	for _, waiters := range []int{2, 32, 128} {
		bodies1, bodies2 := map[string]string{}, map[string]string{}
		var h1, h2 string
		var i1, i2 int
		token := func(b string) string { tok, _, _ := strings.Cut(b, "|"); return tok }
		add(fmt.Sprintf("hand-off, %d waiters", waiters), func() {
			h1 = b1(0)
			rdb.SetNX(ctx, v1key, h1, 30*time.Second)
			for i1 = 1; i1 <= waiters; i1++ {
				bodies1[token(b1(i1))] = b1(i1)
				v1("ask", b1(i1), 31000, 300000)
			}
		}, func() {
			v := v1("release", h1).([]any)
			tok := strings.Fields(v[1].(string))[0]
			h1 = bodies1[tok]
			delete(bodies1, tok)
			bodies1[token(b1(i1))] = b1(i1)
			v1("ask", b1(i1), 31000, 300000)
			i1++
		}, func() {
			h2 = b2(0)
			rdb.SetNX(ctx, v2key, h2, 30*time.Second)
			for i2 = 1; i2 <= waiters; i2++ {
				bodies2[token(b2(i2))] = b2(i2)
				v2("ask", b2(i2), 30000, 300000, 3000)
			}
		}, func() {
			v := v2("release", h2).([]any)
			tok := strings.Fields(v[1].(string))[0]
			h2 = bodies2[tok]
			delete(bodies2, tok)
			bodies2[token(b2(i2))] = b2(i2)
			v2("ask", b2(i2), 30000, 300000, 3000)
			i2++
		})
	}
	for _, parked := range []int{10, 10000} {
		var c1, c2 int // the holder's note
		var p1, p2 int // notes parked so far
		var h1, h2 string
		tok := 0
		again1 := func(note string) string {
			tok++
			return "iBq-amHluSdcW1Xu.3000.~r" + strconv.Itoa(tok) + "|worker-17.example:4242|" + note
		}
		again2 := func(note string) string {
			tok++
			return "iBq-amHluSdcW1Xu.r" + strconv.Itoa(tok) + "|worker-17.example:4242|" + note
		}
		_, _ = c1, c2
		add(fmt.Sprintf("park, call, arrive; %d parked", parked), func() {
			h1 = b1(0)
			v1("ask", h1, 31000)
			for p1 = 1; p1 <= parked; p1++ {
				v1("ask", b1(p1), 31000, 0, 1, 1)
			}
		}, func() {
			v := v1("release", h1, 1).([]any)
			h1 = again1(v[3].(string))
			if got := v1("ask", h1, 31000, 0, 1, 1).([]any); len(got) != 5 {
				t.Fatal(got)
			}
			v1("ask", b1(p1), 31000, 0, 1, 1)
			p1++
		}, func() {
			h2 = b2(0)
			v2("ask", h2, 30000)
			for p2 = 1; p2 <= parked; p2++ {
				v2("ask", b2(p2), 30000, 0, 3000, 1, 1, 1)
			}
		}, func() {
			v := v2("release", h2, 1, 1).([]any)
			h2 = again2(v[3].(string))
			if got := v2("ask", h2, 30000, 0, 3000, 1, 1, 1).([]any); len(got) != 4 {
				t.Fatal(got)
			}
			v2("ask", b2(p2), 30000, 0, 3000, 1, 1, 1)
			p2++
		})
	}
	add("ordered: stamp, ask, release; alone", nothing, func() {
		n++
		nonce := "n" + strconv.Itoa(n)
		ticket := v1("stamp", note(n), nonce, 10000, 0)
		v1("oask", b1(n), 31000, 3000, 1, 0, 0, 0, nonce, ticket, 0, 25, 0, 0)
		v1("orelease", b1(n), 1, 1, 0, 0, nonce, ticket, "done")
	}, nothing, func() {
		n++
		nonce := "n" + strconv.Itoa(n)
		ticket := v2o("order_stamp", nonce, note(n), 10000, 0)
		v2o("order_ask", b2(n), 30000, 3000, 1, 0, 0, 0, 3000, nonce, ticket, 0, 25, 0, 0)
		v2o("order_release", b2(n), 1, 1, 0, nonce, "done")
	})
	for _, parked := range []int{32} {
		type task struct {
			n      int
			nonce  string
			ticket any
		}
		var q1, q2 []task
		push1 := func() {
			n++
			x := task{n, "n" + strconv.Itoa(n), nil}
			x.ticket = v1("stamp", note(n), x.nonce, 10000, 0)
			v1("oask", b1(n), 31000, 0, 1, 1, 0, 0, x.nonce, x.ticket, 0, 25, 0, 0)
			q1 = append(q1, x)
		}
		push2 := func() {
			n++
			x := task{n, "n" + strconv.Itoa(n), nil}
			x.ticket = v2o("order_stamp", x.nonce, note(n), 10000, 0)
			v2o("order_ask", b2(n), 30000, 0, 1, 1, 0, 0, 3000, x.nonce, x.ticket, 0, 25, 0, 0)
			q2 = append(q2, x)
		}
		add(fmt.Sprintf("ordered: stamp, park, call, arrive, release; %d parked", parked), func() {
			for range parked {
				push1()
			}
		}, func() {
			push1()
			x := q1[0]
			q1 = q1[1:]
			v1("oask", strings.Replace(b1(x.n), "|", "x|", 1), 31000, 0, 1, 1, 0, 0, x.nonce, x.ticket, 0, 25, 0, 0)
			v1("orelease", strings.Replace(b1(x.n), "|", "x|", 1), 1, 1, 0, 0, x.nonce, x.ticket, "done")
		}, func() {
			for range parked {
				push2()
			}
		}, func() {
			push2()
			x := q2[0]
			q2 = q2[1:]
			v2o("order_ask", strings.Replace(b2(x.n), "|", "x|", 1), 30000, 0, 1, 1, 0, 0, 3000, x.nonce, x.ticket, 0, 25, 0, 0)
			v2o("order_release", strings.Replace(b2(x.n), "|", "x|", 1), 1, 1, 0, x.nonce, "done")
		})
	}
	add("renew a thin lease", func() { rdb.SetNX(ctx, v1key, b1(0), 300*time.Second) }, func() { v1("renew", b1(0), 300000) },
		func() { rdb.SetNX(ctx, v2key, b2(0), 300*time.Second) }, func() { e.run("renew", keys[:2], b2(0), 300000) })
	add("renew one of two", func() {
		v1("ask", b1(0), 301000, 0, 2)
		v1("ask", b1(1), 301000, 0, 2)
	}, func() { v1("renew", b1(1), 300000) }, func() {
		v2("ask", b2(0), 300000, 0, 3000, 2)
		v2("ask", b2(1), 300000, 0, 3000, 2)
	}, func() { e.run("renew", keys[:2], b2(1), 300000) })
	add("check, 100 parked", func() {
		v1("ask", b1(0), 31000)
		for i := range 100 {
			v1("ask", b1(i+1), 31000, 0, 1, 1)
		}
	}, func() { v1("call", 1, 1, 1000, "", 0) }, func() {
		v2("ask", b2(0), 30000)
		for i := range 100 {
			v2("ask", b2(i+1), 30000, 0, 3000, 1, 1, 1)
		}
	}, func() { v2("check", 1, 1, 1000, "", "") })

	for _, r := range rows {
		if only != "" && !strings.Contains(r.name, only) {
			continue
		}
		rdb.FlushAll(ctx)
		r.init1()
		r.init2()
		var t1, t2, ratio []float64
		calls := func(op func()) float64 { // of scripts
			rdb.ConfigResetStat(ctx)
			op()
			total := 0.0
			for _, m := range regexp.MustCompile(`cmdstat_[a-z]+[^:]*:calls=(\d+)`).FindAllStringSubmatch(rdb.Info(ctx, "commandstats").Val(), -1) {
				f, _ := strconv.ParseFloat(m[1], 64)
				total += f
			}
			return total - 1 - 1
		}
		for round := range 15 {
			one := func(op func()) float64 {
				before := spent(rdb)
				for range r.perRound {
					op()
				}
				return (spent(rdb) - before) / float64(r.perRound)
			}
			var x, y float64
			if round%2 == 0 {
				x, y = one(r.op1), one(r.op2)
			} else {
				y, x = one(r.op2), one(r.op1)
			}
			t1, t2, ratio = append(t1, x), append(t2, y), append(ratio, y/x)
		}
		t.Logf("| %-58s | %6.1f | %6.1f | %.2f | %2.0f | %2.0f |", r.name, median(t1), median(t2), median(ratio), calls(r.op1), calls(r.op2))
	}

	// Memory.
	if only != "" {
		return
	}
	memory := func(keys []string) (bytes int64) {
		for _, k := range keys {
			m, _ := rdb.MemoryUsage(ctx, k, 0).Result()
			bytes += m
		}
		return bytes
	}
	both := func(name string, f1, f2 func()) {
		rdb.FlushAll(ctx)
		f1()
		f2()
		m1, m2 := memory([]string{v1key}), memory(okeys)
		t.Logf("| memory: %-50s | %6d | %6d | %.2f |", name, m1, m2, float64(m2)/float64(m1))
	}
	both("a mutex that is held, thin", func() { rdb.SetNX(ctx, v1key, b1(0), time.Minute) }, func() { rdb.SetNX(ctx, v2key, b2(0), time.Minute) })
	both("a mutex that is held, by ask", func() { v1("ask", b1(0), 31000) }, func() { v2("ask", b2(0), 30000) })
	both("a semaphore of 4, all held", func() {
		for i := range 4 {
			v1("ask", b1(i), 31000, 0, 4)
		}
	}, func() {
		for i := range 4 {
			v2("ask", b2(i), 30000, 0, 3000, 4)
		}
	})
	both("held, 32 waiters", func() {
		for i := range 33 {
			v1("ask", b1(i), 31000, 3000)
		}
	}, func() {
		for i := range 33 {
			v2("ask", b2(i), 30000, 3000)
		}
	})
	both("held, 1,000 parked", func() {
		for i := range 1001 {
			v1("ask", b1(i), 31000, 0, 1, 1)
		}
	}, func() {
		for i := range 1001 {
			v2("ask", b2(i), 30000, 0, 3000, 1, 1, 1)
		}
	})
	both("1,000 ordered tasks, stamped", func() {
		for i := range 1000 {
			v1("stamp", note(i), "nonce-of-16-chars"+strconv.Itoa(i), 10000, 0)
		}
	}, func() {
		for i := range 1000 {
			v2o("order_stamp", "nonce-of-16-chars"+strconv.Itoa(i), note(i), 10000, 0)
		}
	})
}
