package web

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/unique"
)

// The Unique view lists the claims, each can be dropped, and all viewers share one look.
func TestClaims(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		queue := redistest.Name(t)
		once := []unique.Rule{{Task: "index", On: []string{"id"}, Until: unique.UntilStart, Queue: queue}}
		v := serve(t, s, Options{Prefix: "a*[b" + redistest.Name(t), Unique: once, Access: func(*http.Request) Access { return AccessOperate }})
		v.get("/unique").want(200, "Nothing is claimed.")
		producer, err := unique.New(asynq.NewClientFromRedisClient(v.rdb), asynq.NewInspectorFromRedisClient(v.rdb), v.rdb, unique.Config{Rules: once, Prefix: v.prefix})
		redistest.Must(t, err)
		if _, err := producer.Enqueue(asynq.NewTask("index", []byte(`{"id": "<7>"}`))); err != nil {
			t.Fatal(err)
		}
		v.get("/unique").want(200, "Nothing is claimed.") // the look of a moment ago
		v.page.claims.forget()
		v.get("/unique").want(200, "<bdi>index|&lt;7&gt;</bdi>", queue+"/", "Drop…").without("more claims")
		if len(v.page.claims.value.Claims) != 1 || v.page.claims.value.Claims[0].Age < 0 || v.page.claims.value.Claims[0].Age > patience {
			t.Errorf("claims: %+v", v.page.claims.value.Claims)
		}
		claim := v.page.claims.value.Claims[0]
		if claim.Key != keys.Key(v.prefix, "index", "<7>")+":claim" {
			t.Errorf("the claim is %q", claim.Key)
		}
		if _, err := v.page.dropClaim(context.Background(), claim.Key, claim.Holder); err != nil {
			t.Fatal(err)
		}
		v.get("/unique").want(200, "Nothing is claimed.")
	})
}

// While Redis hangs, the view says so, and not that nothing is claimed; and it looks again soon.
func TestClaims_redisHangs(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	v := serve(t, s, Options{})
	v.get("/unique").want(200, "Nothing is claimed.")
	v.page.claims.forget()
	s.Pause(t)
	began := time.Now()
	v.get("/unique").without("Nothing is claimed.")
	if v.page.claims.err == nil || v.page.claims.next.After(time.Now().Add(failedFor)) {
		t.Errorf("the look gave %v, and the next is at %s", v.page.claims.err, v.page.claims.next)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("the view took %s", took)
	}
	s.Resume(t)
	v.page.claims.forget()
	v.get("/unique").want(200, "Nothing is claimed.")
}

// Of many claims a bounded number is read, and the view says that there are more.
func TestClaims_bounded(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	ctx := context.Background()
	pipe := v.rdb.Pipeline()
	for i := range 3 * mostClaims {
		pipe.Set(ctx, keys.Key(v.prefix, "index", fmt.Sprint(i))+":claim", fmt.Sprintf("%d 99999999999999 enqueued - q/%d", time.Now().UnixMilli(), i), time.Minute)
	}
	pipe.Set(ctx, v.prefix+":{x}:other", "x", time.Minute)
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	v.get("/unique").want(200, "there are more claims than were read")
	if n := len(v.page.claims.value.Claims); n != mostClaims {
		t.Errorf("%d claims were read, want %d", n, mostClaims)
	}
}
