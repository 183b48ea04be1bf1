package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// resent is a hook that sends a script twice and gives the second reply, as go-redis does when the first is lost.
type resent struct{ script *exchange.Script }

func (resent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (resent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h resent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && runs(cmd, h.script, "") {
			return next(ctx, cmd)
		}
		return err
	}
}

// The mark that a last attempt has begun, with a fault at each script that writes, takes or removes it. The attempt is cut, so asynq delivers
// the task once more: the handler starts once too often at most, and not at all where only a reply was lost. An
// operator's run runs. No mark stays for good.
func TestReserved_marksUnderFaults(t *testing.T) {
	t.Parallel()
	scripts := map[string]*exchange.Script{"take": wire.ClaimTakeScript, "pass on": wire.ClaimKeepScript, "drop": wire.ClaimDropScript}
	for name, script := range scripts {
		hooks := map[string]redis.Hook{"resent": resent{script}}
		for _, fault := range commandFaults {
			hooks[fault.name] = newNthFault(1, fault, func(cmd redis.Cmder) bool { return runs(cmd, script, "") })
		}
		for fault, hook := range hooks {
			t.Run(name+", "+fault, func(t *testing.T) {
				t.Parallel()
				s := redistest.Mini(t)
				r, c := reserveRig(t, s, automutex.Retry, setup{hook: hook})
				id := r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
				r.stage.next(t).returns(errors.New("broken"))
				mark := fmt.Sprintf("%s:begun:%s/%s:claim", r.lockOf("work", "1").Key(), r.queue, id)
				last := r.stage.next(t)
				if left := r.rdb.PTTL(t.Context(), mark).Val(); (left <= 0 || left > 31*24*time.Hour) && (name != "take" || left != -2) {
					t.Errorf("the mark lasts %s", left)
				}
				last.cut() // asynq files a retry at once
				last.returns(context.Canceled)
				extra := 0
				redistest.Eventually(t, patience, func() bool {
					select {
					case run := <-r.stage.started:
						extra++
						run.returns(errors.New("broken"))
					default:
					}
					info, err := r.inspector.GetTaskInfo(r.queue, id)
					return err == nil && info.State == asynq.TaskStateArchived
				}, "the task is archived")
				if most := map[bool]int{true: 1}[name == "take" && fault != "resent" && fault != "reply lost"]; extra > most {
					t.Errorf("the handler started %d times too often, want %d", extra, most)
				}
				r.rerun(id)
				r.finishAfter(id, 2)
				if left := r.rdb.PTTL(t.Context(), mark).Val(); left == -1 {
					t.Error("the mark stays for good")
				}
			})
		}
	}
}
