package lock

import (
	"context"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// autoPipe is an asynchronous *redis.AutoPipeliner, called by reflection: the oldest
// go-redis that these tests are compiled with has no such type. The module examples
// compiles a call of Async with the type itself.
type autoPipe struct {
	Transport // the AutoPipeliner

	submit reflect.Value // its method Submit
}

// autoFuture is what Submit returned: a redis.AutoFuture.
type autoFuture struct{ wait reflect.Value }

func (a autoPipe) Submit(ctx context.Context, cmd redis.Cmder) autoFuture {
	in := []reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(cmd)}
	return autoFuture{a.submit.Call(in)[0].MethodByName("WaitContext")}
}

func (f autoFuture) WaitContext(ctx context.Context) error {
	err, _ := f.wait.Call([]reflect.Value{reflect.ValueOf(ctx)})[0].Interface().(error)
	return err
}

// newAutoPipe calls one of the methods of rdb that return an AutoPipeliner, with
// these fields of redis.AutoPipelineOptions. A go-redis without AutoPipeliner skips
// the test. The AutoPipeliner ends with rdb.
func newAutoPipe(t testing.TB, rdb redis.UniversalClient, method string, fields map[string]any) (Transport, reflect.Value) {
	t.Helper()
	open := reflect.ValueOf(rdb).MethodByName(method)
	if !open.IsValid() {
		if goRedisMinor(t) >= 22 {
			t.Fatalf("go-redis %s has no method %s", redis.Version(), method)
		}
		t.Skipf("go-redis %s has no AutoPipeliner; 9.22 and later have", redis.Version())
	}
	options := reflect.New(open.Type().In(0).Elem())
	for name, value := range fields {
		options.Elem().FieldByName(name).Set(reflect.ValueOf(value))
	}
	out := open.Call([]reflect.Value{options})
	if err, failed := out[1].Interface().(error); failed {
		t.Fatal(err)
	}
	transport, ok := out[0].Interface().(Transport)
	if !ok {
		t.Fatalf("a %s is no Transport", out[0].Type())
	}
	return transport, out[0]
}

// goRedisMinor is the 14 of go-redis 9.14.1.
func goRedisMinor(t testing.TB) int {
	t.Helper()
	parts := strings.Split(redis.Version(), ".")
	minor, err := strconv.Atoi(parts[1])
	if err != nil || parts[0] != "9" {
		t.Fatalf("the version of go-redis is %q, want 9.x", redis.Version())
	}
	return minor
}

// newAsyncPipe is an asynchronous AutoPipeliner as Async takes it.
func newAsyncPipe(t testing.TB, rdb redis.UniversalClient, fields map[string]any) autoPipe {
	t.Helper()
	transport, value := newAutoPipe(t, rdb, "AsyncAutoPipelineWithOptions", fields)
	return autoPipe{transport, value.MethodByName("Submit")}
}
