package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// leaseLength bounds the gap after a leader was killed. A lease is renewed while
// its holder lives, so it may be short.
const leaseLength = 3 * time.Second

// replica is what each replica of a program does: it runs the Scheduler while it
// leads. It prints a line for each tick that it enqueued: the second, as Unix time.
func replica(ctx context.Context, addr string) int {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker := lock.New(rdb, lock.Options{TTL: leaseLength})
	defer locker.Close()
	err := automutex.LeadScheduler(ctx, locker, "digest-scheduler", func() (*asynq.Scheduler, error) {
		scheduler := asynq.NewSchedulerFromRedisClient(rdb, &asynq.SchedulerOpts{
			LogLevel: asynq.ErrorLevel,
			PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
				if err == nil {
					fmt.Println(time.Now().Round(time.Second).Unix())
				}
			},
		})
		// Seconds, for a demo that is over soon; asynq's times of the clock begin at a minute. A program says
		// "*/10 * * * *": a period such as "@every 10m" begins anew with each term, and may never end.
		_, err := scheduler.Register("@every 1s", asynq.NewTask("digest", nil))
		return scheduler, err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "leader: replica:", err)
		return 1
	}
	return 0
}
