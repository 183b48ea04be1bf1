package web

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
	"github.com/automutex/automutex/web/record"
)

// Options of [New]. The zero value shows all locks under the default prefix to
// everybody who can reach the page, and lets nobody change anything.
type Options struct {
	// RootPath is the path at which a browser finds the page, such as "/locks". It
	// begins with a slash. Requests may come with it or, behind [http.StripPrefix] or a
	// proxy, without it. Empty means "/"; links are then relative.
	RootPath string

	// Prefix begins the keys of the locks, as automutex.Config.Prefix. Empty means
	// "automutex".
	Prefix string

	// HashKeys is the secret of automutex.Config.HashKeys. The page needs it only to
	// tell which key a payload makes. The page never shows the secret.
	HashKeys string

	// Rules are those of the guards. They name the locks on the page. nil means those that the
	// guards say they run: all but those of guards whose Config is Private. A guard does not
	// tell a Rule.Key: without Rules the page makes no key by it.
	Rules []automutex.Rule

	// Unique are the rules of the producers, as in unique.Config. nil means those that
	// producers say they have.
	Unique []unique.Rule

	// Decode is automutex.Config.Decode, for payloads that come in an envelope.
	Decode func(*asynq.Task) ([]byte, error)

	// Inspector tells the state of tasks. nil means one made from the Redis client of
	// New. The page does not close it.
	Inspector *asynq.Inspector

	// AsynqmonPath is the path at which a browser finds asynqmon, such as "/asynq".
	// Tasks then link to its pages. Empty means no links.
	AsynqmonPath string

	// MetricsKeys is how many keys /metrics names, the most contended ones first. Keys
	// become labels then, with what they have of payloads. 0 means none.
	MetricsKeys int

	// Recorder has the counts and the timeline of the last hours, which workers write with
	// a Recorder of their own. The page reads it, and adds the actions of operators. nil
	// means that the page shows what it saw itself.
	Recorder *record.Recorder

	// Access decides what a request may do. nil means [AccessRead] for every request.
	Access func(*http.Request) Access

	// User names who sent a request: for [Action].By, and for [lock.Control].By of a pause or
	// a limit. Empty text, and nil, mean that nobody is named; a control then names the page.
	User func(*http.Request) string

	// Audit is called after every action, failed ones included, before the answer is
	// sent. It may be called by many goroutines at once. nil means that nobody is told;
	// the page itself keeps the last actions in memory and shows those about a lock
	// with it.
	Audit func(Action)

	// Logger is where the page logs that Redis does not answer. nil means
	// slog.Default().
	Logger *slog.Logger
}

// page is the handler.
type page struct {
	o         Options
	base      string // what links begin with
	rdb       redis.UniversalClient
	locker    *lock.Locker
	known     atomic.Pointer[known] // never nil after New
	fleet     shared[*fleet.Fleet]
	quiet     *slog.Logger // of what the fleet's rules may give rise to
	states    *taskStates
	sampler   *sampler
	fragments *fragments
	actions   actionLog
	orders    shared[[]lock.Control]
	checkup   shared[checkup]
	past      past
	seen      seenRuns
	claims    shared[foundClaims]
	streams   chan struct{} // a slot for each live stream
	mux       *http.ServeMux
	handler   http.Handler

	// closed ends the streams and the sampler; Close closes it, once.
	closed    chan struct{}
	closeOnce sync.Once
}

var _ io.Closer = (*page)(nil)

// maxStreams is how many live streams there may be at once. Each is a connection and
// a goroutine.
const maxStreams = 256

// New makes the page. rdb is a *redis.Client or a *redis.ClusterClient on the Redis of
// the locks, and stays the caller's. New does no I/O. The error joins everything that is
// wrong with rdb and options.
//
// The handler is also an [io.Closer]. Close ends the live streams, which otherwise keep
// http.Server.Shutdown waiting, and the goroutine that looks at the locks:
//
//	srv.RegisterOnShutdown(func() { handler.(io.Closer).Close() })
func New(rdb redis.UniversalClient, options Options) (http.Handler, error) {
	p := &page{
		o: options, rdb: rdb,
		streams: make(chan struct{}, maxStreams), closed: make(chan struct{}), quiet: slog.New(slog.DiscardHandler),
		checkup: shared[checkup]{within: 2 * examineWithin}, claims: shared[foundClaims]{within: 2 * claimsWithin, pause: claimsPause},
	}
	if p.o.Prefix == "" {
		p.o.Prefix = inside.DefaultPrefix
	}
	if p.o.Logger == nil {
		p.o.Logger = slog.Default()
	}
	if p.o.Access == nil {
		p.o.Access = func(*http.Request) Access { return AccessRead }
	}
	p.o.RootPath = strings.TrimRight(options.RootPath, "/")
	p.o.AsynqmonPath = strings.TrimRight(options.AsynqmonPath, "/")
	if err := errors.Join(checkClient(rdb), p.check()); err != nil {
		return nil, err
	}
	if err := p.makeKeys(); err != nil {
		return nil, fmt.Errorf("web: Options: %w", err)
	}
	if options.Inspector == nil {
		options.Inspector = asynq.NewInspectorFromRedisClient(rdb)
	}
	p.states = newTaskStates(options.Inspector)
	p.locker = lock.New(rdb, lock.Options{Prefix: p.o.Prefix, Owner: "automutex web", Logger: slog.New(slog.DiscardHandler)})
	p.base = "./"
	if p.o.RootPath != "" {
		p.base = p.o.RootPath + "/"
	}
	p.sampler = newSampler(p.locker, p.o.Logger, p.closed)
	p.fragments = newFragments()
	p.past.recorder, p.past.actions = options.Recorder, &p.actions
	p.routes()
	return p, nil
}

// checkClient refuses what cannot walk the keys of all its nodes.
func checkClient(rdb redis.UniversalClient) error {
	if err := inner.CheckClient(rdb); err != nil {
		return fmt.Errorf("web: %w", err)
	}
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return fmt.Errorf("web: a %v cannot list locks: use a *redis.Client or *redis.ClusterClient", reflect.TypeOf(rdb))
}

func (p *page) check() error {
	var problems []error
	for _, path := range []struct{ option, value, given string }{
		{"RootPath", p.o.RootPath, p.o.RootPath}, {"AsynqmonPath", p.o.AsynqmonPath, p.o.AsynqmonPath},
	} {
		if path.value != "" && (!strings.HasPrefix(path.value, "/") || strings.HasPrefix(path.value, "//") || strings.ContainsAny(path.value, "?#\\ \"'<>")) {
			problems = append(problems, fmt.Errorf("web: Options.%s: %q is not a path: begin with one slash, and leave out host, query and fragment, as in \"/locks\"", path.option, path.given))
		}
	}
	if p.o.MetricsKeys < 0 || p.o.MetricsKeys > maxMetricsKeys {
		problems = append(problems, fmt.Errorf("web: Options.MetricsKeys: %d is not from 0 to %d", p.o.MetricsKeys, maxMetricsKeys))
	}
	if err := inner.CheckPrefix(p.o.Prefix); err != nil {
		problems = append(problems, fmt.Errorf("web: Options.Prefix: %w", err))
	}
	return errors.Join(problems...)
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// Close ends the live streams and the goroutine that looks at the locks. The page
// answers 503 from then on. It returns when both have ended, as far as they are the
// page's: a stream ends when its handler returns.
func (p *page) Close() error {
	p.closeOnce.Do(func() { close(p.closed) })
	p.sampler.wait()
	return p.locker.Close()
}
