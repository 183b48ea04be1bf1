package web

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

// revive ends what hangs; Redis answers again.
func revive(proxy *redistest.Proxy) {
	proxy.Heal()
	proxy.Cut()
}

// hungInspector is an Inspector whose Redis can be made to hang, for ever: it has no bound of
// its own.
func hungInspector(t *testing.T) (*asynq.Inspector, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, redistest.Real(t).Addr())
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: proxy.Addr(), ReadTimeout: -1, WriteTimeout: -1})
	t.Cleanup(func() { // before the proxy is closed
		if err := inspector.Close(); err != nil {
			t.Error(err)
		}
	})
	return inspector, proxy
}

// While asynq's Redis hangs, the view of a lock shows the lock, says which states it does not
// know, and has a bounded number of questions on their way. Afterwards it knows them again.
func TestKey_asynqHangs(t *testing.T) {
	t.Parallel()
	inspector, proxy := hungInspector(t)
	v := serve(t, redistest.Real(t), Options{Inspector: inspector, Access: func(*http.Request) Access { return AccessOperate }})
	m := v.locker.Semaphore("s", 2*statesAtOnce)
	for i := range 2 * statesAtOnce {
		v.hold(v.locker.Semaphore("s", 2*statesAtOnce, lock.Note(fmt.Sprintf("default/task-%d", i))))
	}
	wantKnown := func() {
		t.Helper()
		redistest.Eventually(t, patience, func() bool {
			return strings.Count(v.get(keyPath(m.Key())).body, `<td data-name="State">not in asynq</td>`) == 2*statesAtOnce
		}, "all states are known")
	}
	wantKnown()
	proxy.Blackhole(true)
	defer revive(proxy)
	for range 3 {
		a := v.get(keyPath(m.Key())).want(200, "<dt>Held</dt><dd>16</dd>", "default/task-15").without("not in asynq")
		if n := strings.Count(a.body, `<td data-name="State">`+stateUnknown+"</td>"); n != 2*statesAtOnce {
			t.Errorf("%d states are unknown, want %d:\n%s", n, 2*statesAtOnce, a.body)
		}
		if n := len(v.page.states.slots); n != statesAtOnce {
			t.Errorf("%d questions are on their way, want %d", n, statesAtOnce)
		}
	}
	v.get("/do?action=break&key="+url.QueryEscape(m.Key())).want(200, "Take the lock s from 16 holders?", stateUnknown)
	revive(proxy)
	wantKnown()
}

// Asynq is asked for a bounded number of tasks of one lock, for each of them once.
func TestKey_asksOnce(t *testing.T) {
	t.Parallel()
	inspector, proxy := hungInspector(t)
	v := serve(t, redistest.Real(t), Options{Inspector: inspector})
	tasks := []task{{Text: "no task"}}
	for i := range 2 * mostStates {
		tasks = append(tasks, task{Queue: "default", ID: fmt.Sprint(i)}, task{Queue: "default", ID: fmt.Sprint(i)})
	}
	var known map[taskID]string
	redistest.Eventually(t, patience, func() bool {
		before := proxy.Count("eval") + proxy.Count("evalsha")
		known = v.page.states.ask(context.Background(), tasks)
		if n := proxy.Count("eval") + proxy.Count("evalsha") - before; n > 2*mostStates { // each may need its script anew
			t.Errorf("%d scripts for %d tasks", n, mostStates)
		}
		return !slices.Contains(slices.Collect(maps.Values(known)), stateUnknown)
	}, "all states are known")
	if len(known) != mostStates {
		t.Errorf("%d states, want %d", len(known), mostStates)
	}
	if state := stateOf(tasks[len(tasks)-1], known); state != stateUnknown {
		t.Errorf("the last one: %q", state)
	}
	if state := stateOf(tasks[0], known); state != "" {
		t.Errorf("what is no task has the state %q", state)
	}
}

// A task is found by its ID, with and without its queue, wherever that is among the queues, and its keys are named.
func TestKeys_findsTask(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	client := asynq.NewClientFromRedisClient(s.Client(t))
	for i := range mostQueues + 2 {
		for _, c := range []struct{ task, payload string }{{"mail", `{"to":"a"}`}, {"other", `{}`}, {"wrong", `{}`}} {
			if i > 0 && c.task != "mail" {
				continue
			}
			_, err := client.Enqueue(asynq.NewTask(c.task, []byte(c.payload)), asynq.Queue(fmt.Sprintf("q%02d", i)), asynq.TaskID(fmt.Sprintf("%s-%d", c.task, i)))
			redistest.Must(t, err)
		}
	}
	rules := []automutex.Rule{{Task: "mail", On: []string{"to"}}, {Task: "wrong", On: []string{"to"}}}
	v := serve(t, s, Options{Rules: rules})
	last := fmt.Sprintf("q%02[1]d/mail-%[1]d", mostQueues+1)
	for search, want := range map[string]string{
		"mail-1": ": mail, pending in asynq; its key is", "q01/mail-1": "mail|a", last: "mail|a",
		"other-0": "no rule that the page knows gives it a key", "wrong-0": "field &#34;to&#34; is missing",
	} {
		v.get("/keys?q="+url.QueryEscape(search)).want(200, want)
	}
	for _, search := range []string{"mail-99", "mail-*", "a b c", "m", last[4:]} { // the last one: in a queue beyond those that are asked
		v.get("/keys?q=" + url.QueryEscape(search)).want(200).without("in asynq")
	}
}

// A task that lacks a field of an Optional rule is enqueued each time: that is no mistake in it.
func TestUnique_optional(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{Unique: []unique.Rule{{Task: "bill", On: []string{"id"}, Optional: true}, {Task: "mail", On: []string{"to"}}}})
	v.post("/unique", url.Values{"type": {"bill"}, "payload": {`{"id": 7}`}}).want(200, "bill|7", "in queue <bdi>default</bdi>, until done")
	v.post("/unique", url.Values{"type": {"bill"}, "payload": {`{}`}}).want(200, "it is enqueued each time").without("is missing")
	v.post("/unique", url.Values{"type": {"mail"}, "payload": {`{}`}}).want(200, "field &#34;to&#34; is missing")
}

// Under "until done" asynq has the claim: while it does not answer, the Unique view does not
// say that there is one.
func TestUnique_asynqHangs(t *testing.T) {
	t.Parallel()
	inspector, proxy := hungInspector(t)
	v := serve(t, redistest.Real(t), Options{Inspector: inspector, Unique: []unique.Rule{{Task: "bill", On: []string{"id"}}}})
	typed := url.Values{"type": {"bill"}, "payload": {`{"id": 7}`}}
	redistest.Eventually(t, patience, func() bool {
		return strings.Contains(v.post("/unique", typed).body, "No task has it.")
	}, "asynq says that it does not have the task")
	proxy.Blackhole(true)
	defer revive(proxy)
	v.post("/unique", typed).want(200, "asynq does not say").without("The task <bdi>", "No task has it.")
}

// While asynq does not answer, a search finds no task, and the Blocked view has the keys that are blocked whatever
// asynq says.
func TestStates_withoutAsynq(t *testing.T) {
	t.Parallel()
	inspector, proxy := hungInspector(t)
	v := serve(t, redistest.Real(t), Options{Inspector: inspector})
	v.page.states.within = statesWithin
	proxy.Blackhole(true)
	defer revive(proxy)
	head := func(task string, held bool) row {
		h := &inside.Head{Note: "default/" + task, Queued: 2}
		if held {
			h.State = "h"
		}
		return row{Key: v.prefix + ":{" + task + "}", Head: h}
	}
	rows := v.page.blockedRows(t.Context(), []row{head("archived", true), head("pending", false)})
	if len(rows) != 1 || rows[0].Note != "default/archived" || rows[0].Why != "is archived" {
		t.Errorf("%+v", rows)
	}
	for range statesAtOnce { // each keeps a place until asynq answers
		if found := v.page.states.find(t.Context(), "task-1"); found != nil {
			t.Errorf("found %+v", found)
		}
	}
	if n := len(v.page.states.slots); n != statesAtOnce {
		t.Errorf("%d questions are on their way, want %d", n, statesAtOnce)
	}
	if found := v.page.states.find(t.Context(), "task-1"); found != nil {
		t.Errorf("found %+v", found)
	}
}

// A search asks no queue when asynq does not list its queues, or when the time is over.
func TestLookUp_ends(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	_, err := asynq.NewClientFromRedisClient(s.Client(t)).Enqueue(asynq.NewTask("a", nil), asynq.TaskID("task-1"))
	redistest.Must(t, err)
	inspector := asynq.NewInspectorFromRedisClient(s.Client(t))
	if found := lookUp(inspector, "task-1", time.Now().Add(patience)); len(found) != 1 {
		t.Errorf("found %+v", found)
	}
	if found := lookUp(inspector, "task-1", time.Now().Add(-time.Second)); len(found) != 0 {
		t.Errorf("after its time: %+v", found)
	}
	rdb := s.Client(t)
	redistest.Must(t, rdb.Close())
	if found := lookUp(asynq.NewInspectorFromRedisClient(rdb), "task-1", time.Now().Add(patience)); found != nil {
		t.Errorf("by a closed client: %+v", found)
	}
}
