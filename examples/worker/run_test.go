package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	redistest.Main(m)
}

const patience = redistest.Patience

// output is what a run has told so far.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// outcome is what a run told.
type outcome struct {
	exit           int
	stdout, stderr string
	// What the last line counts.
	tasks, done, skipped, replaced, archived, lost, overlaps int
}

// try runs the program with words of flags; the last line of its output must be the result.
func try(t *testing.T, ctx context.Context, flags string) (o outcome) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o.exit = run(ctx, strings.Fields(flags), &stdout, &stderr)
	o.stdout, o.stderr = stdout.String(), stderr.String()
	_, result, _ := strings.Cut(o.stdout, "\nresult: ")
	if !strings.Contains(result, "replaced=") {
		result = strings.Replace(result, " archived", " replaced=0 archived", 1)
	}
	if _, err := fmt.Sscanf(result, "tasks=%d done=%d skipped=%d replaced=%d archived=%d lost=%d overlaps=%d\n",
		&o.tasks, &o.done, &o.skipped, &o.replaced, &o.archived, &o.lost, &o.overlaps); err != nil {
		t.Fatalf("%q: %v in the last line of\n%s\nstderr:\n%s", flags, err, o.stdout, o.stderr)
	}
	return o
}

// expect checks the exit status and how many tasks there were, done, or ended by the policy.
func (o outcome) expect(t *testing.T, exit, tasks int) {
	t.Helper()
	if o.exit != exit || o.tasks != tasks || o.done+o.skipped+o.replaced+o.archived != tasks || exit == 0 && o.stderr != "" {
		t.Errorf("exit %d, want %d with %d tasks, nothing lost, and nothing to say\nstdout:\n%s\nstderr:\n%s", o.exit, exit, tasks, o.stdout, o.stderr)
	}
}

// With the guard nobody overlaps and nobody is lost, whatever the policy, on every kind of Redis.
func TestRun_guarded(t *testing.T) {
	t.Parallel()
	for flags, ends := range map[string]func(o outcome) bool{
		"": nil, "-limit 2": nil, "-busy park": nil, "-busy park -workers 1": nil, "-on sender.login": nil, "-in-order": nil,
		"-busy skip -wait 0s":    func(o outcome) bool { return o.skipped > 0 },
		"-busy archive -wait 0s": func(o outcome) bool { return o.archived > 0 },
		"-busy replace":          func(o outcome) bool { return o.replaced > 0 },
	} {
		o := try(t, t.Context(), "-tasks 60 "+flags)
		o.expect(t, 0, 60)
		if ends == nil && o.done != 60 || ends != nil && !ends(o) || o.overlaps > 0 {
			t.Errorf("%q:\n%s", flags, o.stdout)
		}
		if strings.Contains(flags, "order") && !strings.Contains(o.stdout, "in order: 0 tasks began after one") {
			t.Errorf("the report lacks the order:\n%s", o.stdout)
		}
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		address := "redis://" + s.Addr()
		if s.Kind() == redistest.KindCluster {
			address = strings.Join(s.Addrs(), ",")
		}
		try(t, t.Context(), "-busy park -tasks 60 -work 3ms -redis "+address).expect(t, 0, 60)
	})
}

// The verdict comes from what the handlers did: without the guard tasks overlap, and so they do under a policy that lets them.
func TestRun_overlaps(t *testing.T) { // by itself: beside others tasks may not overlap
	for flags, exit := range map[string]int{"-unguarded": 0, "-busy allow -wait 0s": 1} {
		o := try(t, t.Context(), "-tasks 60 "+flags)
		o.expect(t, exit, 60)
		if o.overlaps == 0 || o.done != 60 {
			t.Errorf("%q: no overlaps:\n%s", flags, o.stdout)
		}
	}
}

// whenQueue waits until the demo's queue is as ready wants it, and then acts.
func whenQueue(t *testing.T, addr string, ready func(*asynq.QueueInfo) bool, act func(*asynq.Inspector, string)) (ended <-chan struct{}) {
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: addr})
	done := make(chan struct{})
	go func() { // ends with the first answer, or with the patience
		defer close(done)
		defer inspector.Close()
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if queues, err := inspector.Queues(); err == nil && len(queues) == 1 {
				if info, err := inspector.GetQueueInfo(queues[0]); err == nil && ready(info) {
					act(inspector, queues[0])
					return
				}
			}
		}
		t.Error("the demo's queue never became as wanted")
	}()
	return done
}

// What is queued or parked when the program is stopped is still to be run.
func TestRun_interrupted(t *testing.T) {
	t.Parallel()
	for _, busy := range []string{"retry", "park"} {
		mini := miniredis.RunT(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := whenQueue(t, mini.Addr(), func(q *asynq.QueueInfo) bool { return q.Processed >= 5 && q.Active > 0 }, func(*asynq.Inspector, string) { cancel() })
		o := try(t, ctx, "-tasks 400 -work 40ms -busy "+busy+" -redis "+mini.Addr())
		<-ended
		if want := fmt.Sprintf("\nqueued=%d in asynq queue ", o.tasks-o.done); o.exit != 0 || o.done < 5 || o.done == o.tasks || !strings.Contains(o.stdout, want) {
			t.Errorf("exit %d, and no line%s:\n%s", o.exit, want, o.stdout)
		}
	}
}

// A task that vanishes from Redis is noticed.
func TestRun_lost(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	ended := whenQueue(t, mini.Addr(), func(q *asynq.QueueInfo) bool { return q.Pending >= 10 }, func(inspector *asynq.Inspector, queue string) {
		tasks, err := inspector.ListPendingTasks(queue)
		redistest.Must(t, err)
		redistest.Must(t, inspector.DeleteTask(queue, tasks[len(tasks)-1].ID))
	})
	o := try(t, t.Context(), "-tasks 20 -workers 1 -work 100ms -unguarded -redis "+mini.Addr())
	if <-ended; o.exit != 1 || o.done != 19 || o.lost != 1 {
		t.Errorf("exit %d, %d done, %d lost", o.exit, o.done, o.lost)
	}
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{
		"-workers 0", "-limit -1", "-busy never", "-on a..b", "-wait -1s", "-redis nonsense", "-redis redis://127.0.0.1:1", "-web 0.0.0.0:0", "-web x", "-in-order -unguarded", "stray", "-nosuch",
	} {
		var stdout, stderr bytes.Buffer
		if exit := run(t.Context(), strings.Fields(flags), &stdout, &stderr); exit != 2 || !strings.Contains(stderr.String(), "worker: ") {
			t.Errorf("%q: exit %d, stderr %q", flags, exit, stderr.String())
		}
	}
	var stderr bytes.Buffer
	if exit := run(t.Context(), []string{"-h"}, io.Discard, &stderr); exit != 0 || !strings.Contains(stderr.String(), "-unguarded") {
		t.Errorf("exit %d, stderr %q", exit, stderr.String())
	}
}

// With -web the page shows the locks of the tasks while they run, to this machine alone, and ends with the demo.
func TestRun_web(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out output
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, strings.Fields("-web 127.0.0.1:0"), &out, io.Discard)
	}()
	var url string
	redistest.Eventually(t, patience, func() bool {
		url = regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(out.String())
		return url != ""
	}, "the demo says where the page is: %s", &out)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(host string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		redistest.Must(t, err)
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		redistest.Must(t, err)
		return resp.StatusCode, string(body)
	}
	redistest.Eventually(t, patience, func() bool {
		status, body := get("")
		return status == http.StatusOK && strings.Contains(body, "octo/hello")
	}, "the page shows the lock of the busiest repository")
	if status, _ := get("evil.example.com"); status == http.StatusOK {
		t.Errorf("under another host's name: status %d", status)
	}
	cancel()
	if exit := <-ended; exit != 0 {
		t.Errorf("exit %d\n%s", exit, &out)
	}
}
