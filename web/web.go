/*
Package web is a page for operators: it shows which keys are contended, who holds
them and since when, and which tasks stand in line. It goes beside asynqmon:

	locks, err := web.New(rdb, web.Options{RootPath: "/locks", AsynqmonPath: "/asynq"})
	if err != nil {
		return err
	}
	mux.Handle("/locks/", locks)

The page is plain HTML and works without JavaScript; with it, the page is live and has a
chart. All that it needs is in the package. It runs no inline script, and its
Content-Security-Policy allows files of its own and nothing else.

# Who may do what

[Options].Access decides for each request whether it may see nothing, read, or operate.
Without it, everybody who can reach the page may read, and nobody may operate. The
page has no login of its own: put it behind yours. A request that another site makes
a browser send is refused.

# What it costs

The page looks at the locks only while somebody looks at the page. The more locks there
are, the longer is the pause after a look: from a second up to a minute.
*/
package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
)

// Options of [New]. The zero value shows all locks under the default prefix to everybody who can reach the page, and
// lets nobody change anything.
type Options struct {
	// RootPath is the path at which a browser finds the page, such as "/locks". It begins with a slash. Requests may come
	// with it or, behind [http.StripPrefix] or a proxy, without it. Empty means "/"; links are then relative.
	RootPath string

	// Prefix begins the keys of the locks, as automutex.Config.Prefix. Empty means "automutex".
	Prefix string

	// HashKeys is the secret of automutex.Config.HashKeys. The page needs it only to find the keys of a task. The page
	// never shows the secret.
	HashKeys string

	// Rules are those of the guards. They name the locks on the page. nil means those that the guards say they run: all
	// but those of guards whose Config is Private. A guard does not tell a Rule.Key: without Rules the page makes no key
	// by it.
	Rules []automutex.Rule

	// Decode is automutex.Config.Decode, for payloads that come in an envelope.
	Decode func(*asynq.Task) ([]byte, error)

	// Inspector finds tasks, and says why the next task of an ordered key does not run. nil means one made from the Redis
	// client of New. The page does not close it.
	Inspector *asynq.Inspector

	// AsynqmonPath is the path at which a browser finds asynqmon, such as "/asynq". Tasks then link to its pages. Empty
	// means no links.
	AsynqmonPath string

	// Access decides what a request may do. nil means [AccessRead] for every request.
	Access func(*http.Request) Access

	// User names who sent a request: for [Action].By, and for [lock.Control].By of an order. Empty text, and
	// nil, mean that nobody is named; a control then names the page.
	User func(*http.Request) string

	// Audit is called after every action, failed ones included, before the answer is sent. It may be called by many
	// goroutines at once. nil means that nobody is told.
	Audit func(Action)

	// Logger is where the page logs that Redis does not answer. nil means slog.Default().
	Logger *slog.Logger
}

// Access is what a request may do.
type Access int

const (
	// AccessNone refuses the request with 403.
	AccessNone Access = iota
	// AccessRead shows everything and changes nothing.
	AccessRead
	// AccessOperate shows everything and offers the actions.
	AccessOperate
)

// Action is what an operator did on the page.
type Action struct {
	At      time.Time     // when it ended, by the clock of the page's process
	Do      string        // the kind: "break", "sweep", "pause", "resume", "limit", "rate", "run" or "skip"
	Target  string        // the Redis key of the lock, or the target of a control; empty for a sweep
	Tokens  []string      // the holders that a break was for
	By      string        // what [Options].User says of the request
	Why     string        // what the operator wrote; it is not checked
	Result  string        // what changed, in a sentence; empty when Err is set
	Err     error         // why the action failed; what was done until then stays done
	Request *http.Request // the request that asked for it; do not keep it

	id string // random: nobody can guess those of others, and no other process of the page has the same
}

type page struct {
	o       Options
	base    string // what links begin with
	rdb     redis.UniversalClient
	engine  *engine.Engine
	own     *known // by the Options
	hour    hour
	actions actionLog
	streams chan struct{} // a slot for each live stream
	asynq   chan struct{} // a slot for each of 8 questions to asynq
	within  timeouts
	handler http.Handler
	ctx     context.Context // ends with Close
	close   context.CancelFunc
	locks   shared[*snapshot]
	rules   shared[*known]
}

var _ io.Closer = (*page)(nil)

// New makes the page. rdb is a *redis.Client or a *redis.ClusterClient on the Redis of the locks, and stays the
// caller's. New does no I/O. The error joins everything that is wrong with rdb and options.
//
// The handler is also an [io.Closer]. Close ends the live streams, which otherwise keep http.Server.Shutdown waiting,
// and the goroutine that looks at the locks:
//
//	srv.RegisterOnShutdown(func() { handler.(io.Closer).Close() })
func New(rdb redis.UniversalClient, options Options) (http.Handler, error) {
	p := &page{
		o: options, rdb: rdb, streams: make(chan struct{}, maxStreams), asynq: make(chan struct{}, 8), within: usualTimeouts,
	}
	p.ctx, p.close = context.WithCancel(context.Background())
	p.locks.ctx, p.rules.ctx, p.locks.within = p.ctx, p.ctx, walkWithin
	p.o.Prefix, p.o.Logger = cmp.Or(p.o.Prefix, inside.DefaultPrefix), cmp.Or(p.o.Logger, slog.Default())
	if p.o.Access == nil {
		p.o.Access = func(*http.Request) Access { return AccessRead }
	}
	p.o.RootPath = strings.TrimRight(options.RootPath, "/")
	p.o.AsynqmonPath = strings.TrimRight(options.AsynqmonPath, "/")
	if err := errors.Join(p.check(), p.ownRules()); err != nil {
		return nil, err
	}
	if options.Inspector == nil {
		p.o.Inspector = asynq.NewInspectorFromRedisClient(rdb)
	}
	p.engine = p.newEngine("automutex web")
	p.base = cmp.Or(p.o.RootPath, ".") + "/"
	p.routes()
	return p, nil
}

func (p *page) check() error {
	var problems []error
	switch p.rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
	default: // it may hide a Cluster, of which it would walk one node
		problems = append(problems, fmt.Errorf("web: a %T cannot list locks: use a *redis.Client or *redis.ClusterClient",
			p.rdb))
	}
	if err := engine.CheckClient(p.rdb); err != nil {
		problems = append(problems, fmt.Errorf("web: %w", err))
	}
	for option, path := range map[string]string{"RootPath": p.o.RootPath, "AsynqmonPath": p.o.AsynqmonPath} {
		if path != "" && (!strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") ||
			strings.ContainsAny(path, "?#\\ \"'<>")) {
			problems = append(problems, fmt.Errorf("web: Options.%s: %q is not a path: begin with one slash, and leave out "+
				"host, query and fragment, as in \"/locks\"", option, path))
		}
	}
	if err := engine.CheckPrefix(p.o.Prefix); err != nil {
		problems = append(problems, fmt.Errorf("web: Options.Prefix: %w", err))
	}
	return errors.Join(problems...)
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// Close ends the live streams and the goroutine that looks at the locks. The page answers 503 from then on. Close waits
// for scripts that run, up to 5 s; a stream ends when its handler returns.
func (p *page) Close() error {
	p.close()
	p.engine.Close()
	return nil
}
