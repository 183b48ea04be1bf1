package simulate

import (
	"log/slog"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// skips is the client of an operator who skips heads, and whom faults may hit. Process -2 has it.
const skips = "skip"

// operator is what an operator's command or page has.
type operator struct {
	rdb       *redis.Client
	locker    *lock.Locker
	inspector *asynq.Inspector
}

func newOperator(e *endpoint) operator {
	rdb := e.client()
	return operator{rdb, lock.New(rdb, lock.Options{Owner: "operator", Logger: slog.New(slog.DiscardHandler)}), asynq.NewInspectorFromRedisClient(rdb)}
}

func (o operator) close() {
	_ = o.locker.Close()
	_ = o.rdb.Close()
}

// What follows is what is known of operators who touch tasks and break locks.

// touch notes that an operator does something to a task, and gives its ID.
func (b *ledger) touch(n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.books[n].op = true
	b.touchID(b.books[n].id)
	return b.books[n].id
}

// touched is touch for when the operator is done: a task may have got that ID meanwhile.
func (b *ledger) touched(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touchID(id)
}

// touchID notes that an operator does something to the tasks with that ID. One that was joined
// to another has the ID of that one; under UntilDone one that comes later has it too, and its
// producer may still wait for the answer. Callers hold mu.
func (b *ledger) touchID(id string) {
	for _, t := range b.books {
		t.op = t.op || t.id != "" && t.id == id
	}
	b.seq++
	b.touches[id] = b.seq
}

// breaks notes that an operator breaks a lock.
func (b *ledger) breaks(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.key(key).opens()
	for _, r := range b.runs {
		if r.lives() {
			b.addf("task %d holds while %q is broken", r.n, key)
		}
	}
}
