package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = redistest.Patience

var ruleOfReport = Rule{Name: "report", Task: "report", On: []string{"tenant"}, Limit: 1, TTL: 30 * time.Second, Busy: "park"}

// announced makes an Announcer that writes at once.
func announced(rdb redis.UniversalClient, prefix, owner string, rules ...Rule) *Announcer {
	a := New(rdb, prefix, Process{Kind: Worker, Owner: owner}, rules)
	a.firstAfter = 0
	return a
}

// What processes write is read again: each process, and each set of rules once.
func TestFleet(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, prefix := context.Background(), s.Client(t), redistest.Name(t)
		other := ruleOfReport
		other.Limit = 5
		all := []*Announcer{
			announced(rdb, prefix, "a:1", ruleOfReport), announced(rdb, prefix, "b:2", ruleOfReport), announced(rdb, prefix, "c:3", other),
		}
		for _, a := range all {
			a.Begin()
			a.Begin()
			t.Cleanup(func() { a.Close(ctx) })
		}
		var f *Fleet
		redistest.Eventually(t, patience, func() bool {
			var err error
			f, err = Read(ctx, rdb, prefix)
			return err == nil && len(f.Processes) == 3
		}, "three processes")
		if len(f.Sets) != 2 || f.Sets[0].Runs != 2 || f.Sets[0].Rules[0].Limit != 1 || f.Sets[1].Rules[0].Limit != 5 || f.Cut {
			t.Errorf("sets: %+v, cut %v", f.Sets, f.Cut)
		}
		if rules := f.Rules(Worker); len(rules) != 1 || rules[0].String() != ruleOfReport.String() {
			t.Errorf("rules by name: %v", rules)
		}
		for _, p := range f.Processes {
			if p.ID == "" || p.Started.IsZero() || p.Stopped(f.At) || p.Hash == "" || p.Owner == "" {
				t.Errorf("a process: %+v", p)
			}
			if !p.Stopped(f.At.Add(StoppedAfter + time.Minute)) {
				t.Error("it never stops")
			}
		}
		all[2].Close(ctx)
		f, err := Read(ctx, rdb, prefix)
		if err != nil || len(f.Processes) != 2 || len(f.Sets) != 1 {
			t.Errorf("after the end of one: %+v, %v", f, err)
		}
		a := all[0]
		for _, key := range []string{a.keys.index(), a.keys.process(a.process.ID), a.keys.rules(a.process.Hash)} {
			if !strings.HasPrefix(key, prefix+":{fleet}:") || strings.HasSuffix(key, "}") {
				t.Errorf("the key %s could be that of a lock", key)
			}
			if ttl := rdb.PTTL(ctx, key).Val(); ttl <= 0 || ttl > keepFor {
				t.Errorf("%s stays for %s", key, ttl)
			}
		}
	})
}

// A process that says nothing for StoppedAfter is there until keepFor is over, and its rules
// are no one's.
func TestFleet_stopped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, prefix := context.Background(), s.Client(t), redistest.Name(t)
		a := announced(rdb, prefix, "gone:1", ruleOfReport)
		redistest.Must(t, a.write())
		f, err := Read(ctx, rdb, prefix)
		if err != nil || len(f.Processes) != 1 {
			t.Fatalf("%+v, %v", f, err)
		}
		before := float64(f.At.Add(-StoppedAfter - time.Second).UnixMilli())
		rdb.ZAdd(ctx, keys(prefix).index(), redis.Z{Score: before, Member: a.process.ID})
		f, err = Read(ctx, rdb, prefix)
		if err != nil || len(f.Processes) != 1 || !f.Processes[0].Stopped(f.At) || len(f.Sets) != 0 {
			t.Errorf("%+v, %v", f, err)
		}
		rdb.ZAdd(ctx, keys(prefix).index(), redis.Z{Score: float64(f.At.Add(-keepFor - time.Second).UnixMilli()), Member: a.process.ID})
		redistest.Must(t, announced(rdb, prefix, "next:2", ruleOfReport).write())
		f, err = Read(ctx, rdb, prefix)
		if err != nil || len(f.Processes) != 1 || f.Processes[0].Owner != "next:2" {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

// Where Redis hangs, Close waits for a moment and no longer, and the goroutine ends with the
// client's own timeouts.
func TestAnnouncer_redisHangs(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	proxy := redistest.NewProxy(t, s.Addr())
	rdb := proxy.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 })
	a := announced(rdb, redistest.Name(t), "a:1", ruleOfReport)
	a.Begin()
	redistest.Eventually(t, patience, func() bool { return s.Client(t).Exists(context.Background(), a.keys.index()).Val() == 1 }, "the first write")
	proxy.Blackhole(true)
	began := time.Now()
	a.Close(context.Background())
	if took := time.Since(began); took > patience {
		t.Errorf("Close took %s", took)
	}
	<-a.done
}

// What another version, or somebody else, has written does no harm.
func TestRead_whatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, prefix := context.Background(), s.Client(t), redistest.Name(t)
		k := keys(prefix)
		now := rdb.Time(ctx).Val()
		for i, text := range []string{"", "no JSON", `{"id": 7}`, `{"kind":"worker","hash":"x","later":[1]}`} {
			id := fmt.Sprint(i)
			rdb.ZAdd(ctx, k.index(), redis.Z{Score: float64(now.UnixMilli()), Member: id})
			if text != "" {
				rdb.Set(ctx, k.process(id), text, time.Minute)
			}
		}
		rdb.Set(ctx, k.rules("x"), `[{"name":"a","task":"a","new":true}]`, time.Minute)
		f, err := Read(ctx, rdb, prefix)
		if err != nil || len(f.Processes) != 1 || len(f.Sets) != 1 || f.Sets[0].Rules[0].Name != "a" {
			t.Errorf("%+v, %v", f, err)
		}
		rdb.Set(ctx, k.index(), "text", time.Minute)
		if _, err := Read(ctx, rdb, prefix); err == nil {
			t.Error("an index of another type is no error")
		}
	})
}

// Of many processes the last 5,000 are read, and Cut says so.
func TestRead_bounded(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	ctx, rdb, prefix := context.Background(), s.Client(t), redistest.Name(t)
	k := keys(prefix)
	now := rdb.Time(ctx).Val().UnixMilli()
	pipe := rdb.Pipeline()
	for i := range mostProcesses + 10 {
		text, err := json.Marshal(Process{ID: fmt.Sprint(i), Kind: Worker, Hash: fmt.Sprint(i % (mostSets + 5))})
		redistest.Must(t, err)
		pipe.ZAdd(ctx, k.index(), redis.Z{Score: float64(now), Member: fmt.Sprint(i)})
		pipe.Set(ctx, k.process(fmt.Sprint(i)), text, time.Minute)
		if i%500 == 0 || i == mostProcesses+9 { // some at a time, for a busy machine
			if _, err := pipe.Exec(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	f, err := Read(ctx, rdb, prefix)
	if err != nil || len(f.Processes) != mostProcesses || len(f.Sets) != mostSets || !f.Cut {
		t.Errorf("%d processes, %d sets, cut %v, %v", len(f.Processes), len(f.Sets), f.Cut, err)
	}
}

// A producer has no goroutine: it writes on a call, when one is due.
func TestAnnouncer_touch(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	ctx, rdb, prefix := context.Background(), s.Client(t), redistest.Name(t)
	a := announced(rdb, prefix, "a:1", ruleOfReport)
	a.Touch()
	if n := rdb.Exists(ctx, a.keys.index()).Val(); n != 0 {
		t.Error("it wrote in its first second")
	}
	a.due.Store(0)
	a.Touch()
	if n := rdb.Exists(ctx, a.keys.index()).Val(); n != 1 {
		t.Error("it did not write")
	}
	rdb.Del(ctx, a.keys.index())
	a.Touch()
	if n := rdb.Exists(ctx, a.keys.index()).Val(); n != 0 {
		t.Error("it wrote twice in a minute")
	}
	var none *Announcer
	none.Begin()
	none.Touch()
	none.Close(ctx)
}
