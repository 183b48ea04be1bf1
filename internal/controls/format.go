package controls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/wire"
)

// StoredFormat is the number of the format of everything that processes share in Redis: keys,
// members, messages, claims. It grows with each change that an older process would misread;
// see VERSIONING.md. Processes with different formats never take locks of one prefix beside
// each other: whoever comes second gets a *formatError.
const StoredFormat = 1

// FormatFor is how long the number of a format stands in Redis after a process has last said
// it. FormatEvery is how often each process says it, so that it stands while one of them lives.
const (
	FormatFor   = time.Minute
	FormatEvery = 20 * time.Second
)

// formatReader says this process' format in Redis, and keeps that of others. The reads of the
// Reader call say, and so does CheckFormat. Several may be under way: then each says it.
type formatReader struct {
	prefix string
	Keys   []string      // exactly one
	next   atomic.Int64  // when to say it again, in ns since 1970
	seen   atomic.Int64  // the format of others; 0: none but this one
	sent   atomic.Int64  // when CheckFormat last said it, in ns since 1970
	turn   chan struct{} // of capacity 1: full while a CheckFormat says it
	denied atomic.Bool   // it was logged that this process may not look
}

func newFormatReader(prefix string) *formatReader {
	return &formatReader{prefix: prefix, Keys: []string{prefix + ":{" + keytext.Controls + "}:format"}, turn: make(chan struct{}, 1)}
}

// isDue reports whether to say the format now. While others have another one it always is, so that this process
// works as soon as they have gone.
func (f *formatReader) isDue(now time.Time) bool {
	return f.seen.Load() != 0 || now.UnixNano() >= f.next.Load()
}

// CheckFormat is Know for operations that need no controls, and so keep no reader: those of pools, claims and stamps. It asks
// Redis when the last look is FormatEvery old, and otherwise nothing. Of calls at the same time one asks, and the
// others wait for its reply. If there is none within a second, the operation goes on without, as locks do, and the
// next look is in Delay. The caller has called Life.Enter.
func (c *Reader) CheckFormat(ctx context.Context, key string) error {
	f, began := c.Format, time.Now()
	if f.isDue(began) && ctx.Err() == nil {
		select {
		case f.turn <- struct{}{}:
			c.sayInTurn(ctx, began)
			<-f.turn
		case <-ctx.Done(): // the operation says so
		}
	}
	return f.mismatch(key)
}

// sayInTurn says the format, unless another call has since began.
func (c *Reader) sayInTurn(ctx context.Context, began time.Time) {
	f, now := c.Format, time.Now()
	if !f.isDue(now) || f.sent.Load() >= began.UnixNano() {
		return
	}
	f.sent.Store(now.UnixNano())
	bound, cancel := context.WithTimeout(ctx, controlsBound)
	defer cancel()
	if f.say(bound, c.conn, c.log) != nil && ctx.Err() == nil {
		f.next.Store(time.Now().Add(Delay).UnixNano())
	}
}

// say stores this process' format, if it is time to, and notes whether others have another
// one. If Redis refuses the look (the user has no right to the key), nothing is known of others, and locks work
// as far as they can. The log says so once.
func (f *formatReader) say(ctx context.Context, conn *exchange.Conn, log *slog.Logger) error {
	if !f.isDue(time.Now()) {
		return nil
	}
	reply, err := conn.Run(ctx, wire.FormatScript, f.Keys, []any{StoredFormat, FormatFor.Milliseconds()})
	theirs, refused := int64(0), redis.Error(nil)
	switch {
	case err == nil:
		if theirs, err = wire.ParseFormat(reply); err != nil {
			return err
		}
	case exchange.WrongType(err):
		theirs = -1
	case !errors.As(err, &refused):
		return err
	case slices.ContainsFunc([]string{"OOM", "READONLY", "MISCONF", "NOREPLICAS"}, func(code string) bool { return exchange.HasCode(refused, code) }):
		// The script has looked before it was refused to store: others have no other format.
	case exchange.Transient(err):
		return err
	case !f.denied.Swap(true):
		log.Warn("automutex: Redis refuses a look at the stored format of others: keep versions with another one away from this prefix", "key", f.Keys[0], "error", err)
	}
	f.next.Store(time.Now().Add(FormatEvery).UnixNano())
	switch was := f.seen.Swap(theirs); {
	case theirs != 0 && was != theirs:
		log.Error("automutex: this process takes no locks while others store another format", "prefix", f.prefix, "this", StoredFormat, "theirs", theirs)
	case theirs == 0 && was != 0:
		log.Info("automutex: processes with another format have gone; this one takes locks", "prefix", f.prefix)
	}
	return nil
}

// mismatch is the error for a lock that this process may not take, or nil.
func (f *formatReader) mismatch(key string) error {
	if theirs := f.seen.Load(); theirs != 0 {
		return exchange.Failed("take", key, &formatError{prefix: f.prefix, theirs: theirs, key: f.Keys[0]})
	}
	return nil
}

// formatError says that processes of another version store another format.
type formatError struct {
	prefix, key string
	theirs      int64
}

func (e *formatError) Error() string {
	if e.theirs < 0 {
		return fmt.Sprintf("something else than a format is stored under %q: remove it with DEL, or give the programs another Prefix", e.key)
	}
	return fmt.Sprintf("processes with prefix %q store format %d, this version stores format %d; stop the others first (this process goes on within a minute), or give this one another Prefix; see VERSIONING.md", e.prefix, e.theirs, StoredFormat)
}
