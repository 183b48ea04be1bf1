package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// policy allows files of the page itself and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// liveViews make what the template of a view shows. Its part "live" is sent again and again.
var liveViews = map[string]func(*page, *http.Request) any{
	"overview": func(p *page, r *http.Request) any { return p.overview(r) },
	"keys":     func(p *page, r *http.Request) any { return p.keysView(r) },
	"blocked":  func(p *page, r *http.Request) any { return p.blockedView(r) },
	"rules":    func(p *page, r *http.Request) any { return p.rulesView(r) },
	"key":      func(p *page, r *http.Request) any { return p.keyView(r, p.keyOf(r.URL.Query().Get("key"))) },
}

// routes makes the handler: from the outside in, headers, whether it is closed, the path, access, requests from other
// sites, and the views.
func (p *page) routes() {
	mux := http.NewServeMux() // it answers another method with a 405
	mux.HandleFunc("GET /{$}", p.view("overview"))
	mux.HandleFunc("GET /keys", p.keys)
	mux.HandleFunc("GET /key", p.key)
	mux.HandleFunc("GET /blocked", p.view("blocked"))
	mux.HandleFunc("GET /rules", p.view("rules"))
	mux.HandleFunc("GET /live", p.live)
	mux.HandleFunc("GET /do", p.operators(p.ask))
	mux.HandleFunc("POST /do", p.operators(p.do))
	mux.HandleFunc("GET /static/{file}", p.static)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		p.fail(w, http.StatusNotFound, "There is no such page.")
	})
	inner := http.NewCrossOriginProtection()
	inner.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.fail(w, http.StatusForbidden, "Another site made your browser send this request, or a proxy before this page "+
			"does not pass the Host header on. Nothing was done.")
	}))
	views := inner.Handler(mux)
	p.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		if p.ctx.Err() != nil {
			http.Error(w, "this page is closed", http.StatusServiceUnavailable)
			return
		}
		r, ok := p.atRoot(w, r)
		switch {
		case !ok:
		case p.o.Access(r) < AccessRead:
			p.fail(w, http.StatusForbidden, "You may not see this page.")
		default:
			views.ServeHTTP(w, r)
		}
	})
}

// atRoot gives the request with RootPath taken off its path. false: the page was asked for without its last slash, and
// the answer is a redirect.
func (p *page) atRoot(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, p.o.RootPath); ok && (rest == "" || rest[0] == '/') {
		path = rest
	}
	if path == "" {
		asked, _, _ := strings.Cut(r.RequestURI, "?") // StripPrefix leaves it as it came
		last := asked[strings.LastIndexByte(asked, '/')+1:]
		to := "./" + last + "/"
		if p.o.RootPath != "" {
			to = p.base
		}
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusPermanentRedirect)
		return nil, false
	}
	if path == r.URL.Path {
		return r, true
	}
	inner, its := r.WithContext(r.Context()), *r.URL
	its.Path, its.RawPath = path, ""
	inner.URL = &its
	return inner, true
}

//go:embed templates
var templateFiles embed.FS

// views are the templates: each has layout.html around it.
var views = func() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(template.FuncMap{
		"asset":    func(base, name string) string { return base + "static/" + name + "?v=" + versions[name] },
		"ago":      func(now, t time.Time) string { return printable.Duration(now.Sub(t)) },
		"in":       func(now, t time.Time) string { return printable.Duration(t.Sub(now)) },
		"exact":    printable.Exact,
		"iso":      func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
		"text":     printable.Short,
		"count":    printable.Count,
		"inBraces": control.Bare,
		"buttonOf": buttonOf,
		"bar":      func(n, most int) int { return max(1, 100*n/max(most, 1)) },
		"add":      func(n, m int) int { return n + m },
		"sub":      func(n, m int) int { return n - m },
	}).ParseFS(templateFiles, "templates/layout.html"))
	all := map[string]*template.Template{}
	for _, name := range []string{"overview", "keys", "key", "blocked", "rules", "ask", "fail"} {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(templateFiles, "templates/"+name+".html"))
	}
	return all
}()

// frame is what every view knows.
type frame struct {
	page    *page
	Base    string // what links begin with
	View    string // of the navigation
	Title   string
	Here    string // the link to the view, without Base, for its actions to lead back to
	Live    string // the URL of the view's stream; empty without one
	Operate bool   // the viewer may act
	Now     time.Time
	Err     string
	Age     string  // of what is shown; empty: it is new
	Done    *Action // what the viewer has just done
}

// TaskOf is the task of a holder or waiter.
func (f *frame) TaskOf(w inspect.Work) task { return f.page.task(w) }

// lacks has the view say why it lacks something: the first reason of several.
func (f *frame) lacks(err error) { f.Err = cmp.Or(f.Err, trouble(err, triesAgain)) }

// frame makes that of a live view.
func (p *page) frame(r *http.Request, view, title, query string) frame {
	f := frame{page: p, Base: p.base, View: view, Here: view, Title: title, Operate: p.o.Access(r) >= AccessOperate,
		Now: time.Now()}
	f.Live, f.Done = p.base+"live?view="+view+"&"+query, p.actions.get(r.URL.Query().Get("done"))
	if query != "" {
		f.Here += "?" + query
	}
	return f
}

// render sends a whole page. It is made before the first byte is sent, so that a failure is a 500 and not half a page.
func (p *page) render(w http.ResponseWriter, status int, view string, data any) {
	body, err := execute(view, "layout.html", data)
	if err != nil {
		p.o.Logger.Error("automutex: web: cannot render a view", "view", view, "error", err)
		http.Error(w, "the page cannot be rendered; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // html/template has escaped it; an error says that the browser went away
}

func execute(view, name string, data any) ([]byte, error) {
	var b bytes.Buffer
	err := views[view].ExecuteTemplate(&b, name, data)
	return b.Bytes(), err
}

func (p *page) fail(w http.ResponseWriter, status int, text string) {
	p.render(w, status, "fail", frame{Base: p.base, View: "-", Title: http.StatusText(status), Err: text})
}

func (p *page) view(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { p.render(w, http.StatusOK, name, liveViews[name](p, r)) }
}

const (
	// maxStreams is how many live streams there may be at once. Each is a connection and a goroutine.
	maxStreams = 256
	// liveEvery is how often a live view is made anew.
	liveEvery = time.Second
	// liveFor is how long a stream lasts. The browser then asks for another one, so that access is decided again.
	liveFor = 5 * time.Minute
	// sendWithin is how long a browser may take to read one message.
	sendWithin = 10 * time.Second
	// quietFor is after how long a stream without news sends a comment, so that proxies keep it open.
	quietFor = 15 * time.Second
	// A live view rests restTimes as long as it took to make, but not for longer than mostRest.
	restTimes = 4
	mostRest  = 5 * time.Second
	// eventStream is the media type of a stream.
	eventStream = "text/event-stream; charset=utf-8"
)

// live sends the live part of a view again and again. It returns when the browser goes away, at the end of liveFor, or
// when the page is closed.
func (p *page) live(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	view := q.Get("view")
	if liveViews[view] == nil || view == "key" && p.noLock(p.keyOf(q.Get("key"))) != "" {
		p.fail(w, http.StatusNotFound, "There is no such live view.")
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
		p.fail(w, http.StatusServiceUnavailable, "Too many live views are open; reload to see what is new.")
		return
	}
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep messages back
	out := http.NewResponseController(w)
	ctx, cancel := context.WithTimeout(r.Context(), liveFor)
	defer cancel()
	var last []byte
	sent := time.Now()
	for {
		began := time.Now()
		body, err := execute(view, "live", liveViews[view](p, r.WithContext(ctx)))
		if err != nil {
			p.o.Logger.Error("automutex: web: cannot make a live view", "view", view, "error", err)
			return
		}
		rest := max(liveEvery, min(restTimes*time.Since(began), mostRest))
		message := ": nothing new\n\n"
		if !bytes.Equal(body, last) {
			message = event(body)
		} else if time.Since(sent) < quietFor {
			message = ""
		}
		if message != "" {
			// A server's WriteTimeout is for whole answers, and would end the stream. Not every ResponseWriter has deadlines;
			// without them the server's own counts.
			_ = out.SetWriteDeadline(time.Now().Add(sendWithin))
			if _, err := w.Write([]byte(message)); err != nil || out.Flush() != nil {
				return
			}
			// Over HTTP/2 a deadline that passes between two messages would end the stream.
			_ = out.SetWriteDeadline(time.Time{})
			last, sent = body, time.Now()
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return
		case <-p.ctx.Done():
			return
		}
	}
}

func event(body []byte) string {
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(body))
	return "data: " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\ndata: ") + "\n\n"
}

//go:embed assets
var assets embed.FS

// versions begin the SHA-256 of the files that browsers get, and end their URLs. Licences are not among them.
var versions = func() map[string]string {
	all := map[string]string{}
	for _, name := range []string{"app.css", "app.js", "htmx.min.js", "hx-sse.min.js", "icon.svg", "uPlot.iife.min.js",
		"uPlot.min.css"} {
		body, err := assets.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // embedded: it is there
		}
		sum := sha256.Sum256(body)
		all[name] = hex.EncodeToString(sum[:6])
	}
	return all
}()

// static serves a file. Its URL changes with its content, so browsers may keep it.
func (p *page) static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	version, ok := versions[name]
	if !ok {
		p.fail(w, http.StatusNotFound, "There is no such file.")
		return
	}
	w.Header().Set("ETag", `"`+version+`"`)
	w.Header().Set("Cache-Control", "private, no-cache")
	if r.URL.Query().Get("v") == version {
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, assets, "assets/"+name)
}
