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

// The mark that a last attempt has begun, with a fault at each script that writes, takes or removes it. The attempt is cut, so asynq delivers
// the task once more: the handler starts once too often at most, and not at all where only a reply was lost. An
// operator's run runs. No mark stays for good.
func TestReserved_marksUnderFaults(t *testing.T) {
	t.Parallel()
	scripts := map[string]*exchange.Script{"take": wire.ClaimTakeScript, "pass on": wire.ClaimKeepScript, "drop": wire.ClaimDropScript}
	for name, script := range scripts {
		isIt := func(cmd redis.Cmder) bool { return runs(cmd, script, "") }
		hooks := map[string]redis.Hook{"resent": redistest.Resend(isIt)}
		for _, fault := range redistest.CommandFaults {
			hooks[fault.Name] = redistest.NewNthFault(1, fault, isIt)
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
