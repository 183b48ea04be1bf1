package web

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/automutex/automutex/internal/printable"
)

// policy allows files of the page itself and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// routes makes the handler: from the outside in, headers, whether it is closed, the
// path, access, requests from other sites, and the views.
func (p *page) routes() {
	p.mux = http.NewServeMux()
	p.handle("/{$}", p.view("overview"), nil)
	p.handle("/keys", p.keys, nil)
	p.handle("/blocked", p.view("blocked"), nil)
	p.handle("/processes", p.view("processes"), nil)
	p.mux.HandleFunc("POST /theme", p.setTheme)
	p.handle("/key", p.key, nil)
	p.handle("/rules", p.view("rules"), nil)
	p.handle("/metrics", p.metrics, nil)
	p.handle("/unique", p.uniquePage, p.uniquePage)
	p.handle("/doctor", p.doctorPage, p.examine)
	p.handle("/live", p.live, nil)
	p.handle("/do", p.ask, p.do)
	p.handle("/static/{file}", p.static, nil)
	p.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, http.StatusNotFound, "There is no such page.")
	})
	inner := http.NewCrossOriginProtection()
	inner.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, http.StatusForbidden, "Another site made your browser send this request, or a proxy before this page does not pass the Host header on. Nothing was done.")
	}))
	views := inner.Handler(p.mux)
	p.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		select {
		case <-p.closed:
			http.Error(w, "this page is closed", http.StatusServiceUnavailable)
			return
		default:
		}
		r, ok := p.atRoot(w, r)
		switch {
		case !ok:
		case p.o.Access(r) < AccessRead:
			p.fail(w, r, http.StatusForbidden, "You may not see this page.")
		default:
			views.ServeHTTP(w, r)
		}
	})
}

// handle serves a path with get, and with post unless it is nil. The answer to other methods
// is a 405 that names those that there are.
func (p *page) handle(path string, get, post http.HandlerFunc) {
	allow := "GET, HEAD" // a pattern with GET matches HEAD as well
	p.mux.HandleFunc("GET "+path, get)
	if post != nil {
		allow += ", POST"
		p.mux.HandleFunc("POST "+path, post)
	}
	p.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		p.fail(w, r, http.StatusMethodNotAllowed, "This address does not answer "+printable.Short(r.Method)+"; it answers "+allow+".")
	})
}

// atRoot gives the request with RootPath taken off its path. false: the page was asked
// for without its last slash, and the answer is a redirect.
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
	inner := new(http.Request)
	*inner = *r
	inner.URL = new(url.URL)
	*inner.URL = *r.URL
	inner.URL.Path, inner.URL.RawPath = path, ""
	return inner, true
}
