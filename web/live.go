package web

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// liveEvery is how often a live view is made anew.
	liveEvery = time.Second
	// liveFor is how long a stream lasts. The browser then asks for another one, so
	// that access is decided again.
	liveFor = 5 * time.Minute
	// sendWithin is how long a browser may take to read one message.
	sendWithin = 10 * time.Second
	// quietFor is after how long a stream without news sends a comment, so that
	// proxies keep it open.
	quietFor = 15 * time.Second
	// eventStream is the media type of a stream.
	eventStream = "text/event-stream; charset=utf-8"
)

// liveViews make what the template of a view shows. Its part "live" is sent again and again.
var liveViews = map[string]func(*page, *http.Request) any{
	"overview":  func(p *page, r *http.Request) any { return p.overview(r) },
	"keys":      func(p *page, r *http.Request) any { return p.keysView(r) },
	"blocked":   func(p *page, r *http.Request) any { return p.blockedView(r) },
	"rules":     func(p *page, r *http.Request) any { return p.rulesView(r) },
	"processes": func(p *page, r *http.Request) any { return p.processesView(r) },
	"key":       func(p *page, r *http.Request) any { return p.keyView(r, p.keyOf(r.URL.Query().Get("key"))) },
}

// view answers with a live view.
func (p *page) view(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { p.render(w, http.StatusOK, name, liveViews[name](p, r)) }
}

// liveURL is the URL of a view's stream.
func (p *page) liveURL(view, query string) string {
	return p.base + "live?view=" + url.QueryEscape(view) + "&" + query
}

// live sends the live part of a view again and again. It returns when the browser goes
// away, at the end of liveFor, or when the page is closed.
func (p *page) live(w http.ResponseWriter, r *http.Request) {
	view := r.URL.Query().Get("view")
	if !p.hasLive(r) {
		p.fail(w, r, http.StatusNotFound, "There is no such live view.")
		return
	}
	if r.Method == http.MethodHead { // has no body to stream
		w.Header().Set("Content-Type", eventStream)
		return
	}
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		p.fail(w, r, http.StatusServiceUnavailable, "Too many live views are open; reload to see what is new.")
		return
	}
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep messages back
	out := http.NewResponseController(w)
	ctx, cancel := context.WithTimeout(r.Context(), liveFor)
	defer cancel()
	r = r.WithContext(ctx)
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	var last []byte
	sent := time.Now()
	for {
		body := p.fragments.get(p.fragmentKey(r, view), func() []byte { return p.fragment(r, view) })
		message := ": nothing new\n\n"
		if !bytes.Equal(body, last) {
			message = event(body)
		} else if time.Since(sent) < quietFor {
			message = ""
		}
		if message != "" {
			// A server's WriteTimeout is for whole answers, and would end the stream. Not
			// every ResponseWriter has deadlines; without them the server's own counts.
			_ = out.SetWriteDeadline(time.Now().Add(sendWithin))
			if _, err := w.Write([]byte(message)); err != nil || out.Flush() != nil {
				return
			}
			// Over HTTP/2 a deadline that passes between two messages would end the stream.
			_ = out.SetWriteDeadline(time.Time{})
			last, sent = body, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-p.closed:
			return
		}
	}
}

// event is a message of a stream.
func event(body []byte) string {
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(body))
	return "data: " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\ndata: ") + "\n\n"
}

// hasLive tells whether a request names a live view.
func (p *page) hasLive(r *http.Request) bool {
	q := r.URL.Query()
	view := q.Get("view")
	return liveViews[view] != nil && (view != "key" || inner.LockErr(inner.ByKey(p.locker, p.keyOf(q.Get("key")))) == nil)
}

// fragment is the live part of a view; nil when it cannot be made.
func (p *page) fragment(r *http.Request, view string) []byte {
	// It goes to all who look at the same, so it outlives the one who asked first. The
	// views bound how long they take.
	r = r.WithContext(context.WithoutCancel(r.Context()))
	return p.execute(view, "live", liveViews[view](p, r))
}

// fragmentKey is the same for requests whose fragments are the same.
func (p *page) fragmentKey(r *http.Request, view string) string {
	return fmt.Sprintf("%d %s %s", p.o.Access(r), view, r.URL.RawQuery)
}

// fragments shares live parts: viewers of the same view get the one that the first of
// them made in this second.
type fragments struct {
	mu  sync.Mutex // guards all; nobody makes a fragment under it
	all map[string]*sharedFragment
}

type sharedFragment struct {
	mu   sync.Mutex // held while it is made: the others wait for it
	at   time.Time
	body []byte
}

// maxFragments bounds fragments: there are no more streams.
const maxFragments = maxStreams

func newFragments() *fragments { return &fragments{all: map[string]*sharedFragment{}} }

func (f *fragments) get(key string, produce func() []byte) []byte {
	f.mu.Lock()
	shared := f.all[key]
	if shared == nil {
		if len(f.all) >= maxFragments {
			clear(f.all) // whoever has one goes on with it
		}
		shared = &sharedFragment{}
		f.all[key] = shared
	}
	f.mu.Unlock()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.body == nil || time.Since(shared.at) >= freshFor {
		// At the start, so that streams whose ticks follow at once share it.
		shared.at = time.Now()
		if body := produce(); body != nil {
			shared.body = body
		}
	}
	return shared.body
}
