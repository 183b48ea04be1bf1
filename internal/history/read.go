package history

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Reader is what Read needs of a client.
type Reader interface {
	XRevRangeN(ctx context.Context, stream, start, stop string, count int64) *redis.XMessageSliceCmd
}

// Read reads the last runs of a key, the newest first and at most that many. Their times are Redis'.
func Read(ctx context.Context, rdb Reader, key string, most int64) ([]Run, error) {
	entries, err := rdb.XRevRangeN(ctx, streamOf(key), "+", "-", most).Result()
	if err != nil {
		return nil, err
	}
	runs := make([]Run, 0, len(entries))
	for _, e := range entries {
		if r, ok := parse(e); ok {
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// parse reads an entry; false: not one of this version.
func parse(e redis.XMessage) (r Run, ok bool) {
	text := func(field string) string { s, _ := e.Values[field].(string); return s }
	end, err := strconv.ParseInt(text("end"), 10, 64)
	if err != nil || end < 0 || end > 1<<60 { // 36,000 years
		return Run{}, false
	}
	r = Run{Task: text("task"), Worker: text("worker"), Outcome: text("outcome"), End: time.UnixMicro(end)}
	r.Came = r.End
	if ran := text("ran"); ran != "" {
		took, fine := span(ran)
		if !fine {
			return Run{}, false
		}
		r.Start = r.End.Add(-took)
		r.Came = r.Start
	}
	waited, fine := span(text("waited"))
	r.Came = r.Came.Add(-waited)
	return r, fine
}

// span reads microseconds, nine years at most.
func span(text string) (time.Duration, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Duration(n) * time.Microsecond, err == nil && n >= 0 && n < 1<<48
}
