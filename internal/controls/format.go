package controls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
// Reader call say, of which several may be under way: then both say it.
type formatReader struct {
	prefix string
	Keys   []string     // exactly one
	next   atomic.Int64 // when to say it again, in ns since 1970
	seen   atomic.Int64 // the format of others; 0: none but this one
}

func newFormatReader(prefix string) *formatReader {
	return &formatReader{prefix: prefix, Keys: []string{prefix + ":{" + keytext.Controls + "}:format"}}
}

// say stores this process' format, if it is time to, and notes whether others have another
// one. While they have, it asks each time, so that this process works as soon as they have gone. If
// Redis refuses to store it (a right is missing, memory is full), nothing is known of others,
// and locks work as far as they can.
func (f *formatReader) say(ctx context.Context, conn *exchange.Conn, log *slog.Logger) error {
	if f.seen.Load() == 0 && time.Now().UnixNano() < f.next.Load() {
		return nil
	}
	reply, err := conn.Run(ctx, wire.FormatScript, f.Keys, []any{StoredFormat, FormatFor.Milliseconds()})
	if refused := redis.Error(nil); err != nil && !errors.As(err, &refused) {
		return err
	}
	theirs := int64(0)
	if err == nil {
		if theirs, err = wire.ParseFormat(reply); err != nil {
			return err
		}
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
