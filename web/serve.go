package web

import (
	"net/http"
	"net/url"
	"strings"
)

// policy allows files of the page itself and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// routes makes the handler: from the outside in, headers, whether it is closed, the
// path, access, requests from other sites, and the views.
func (p *page) routes() {
	p.mux = http.NewServeMux()
	p.mux.HandleFunc("GET /{$}", p.keys)
	p.mux.HandleFunc("GET /key", p.key)
	p.mux.HandleFunc("GET /rules", p.rulesPage)
	p.mux.HandleFunc("GET /metrics", p.metrics)
	p.mux.HandleFunc("GET /rules.yaml", p.rulesFile)
	p.mux.HandleFunc("GET /unique", p.uniquePage)
	p.mux.HandleFunc("POST /unique", p.uniquePage)
	p.mux.HandleFunc("GET /doctor", p.doctorPage)
	p.mux.HandleFunc("POST /doctor", p.examine)
	p.mux.HandleFunc("GET /live", p.live)
	p.mux.HandleFunc("GET /do", p.ask)
	p.mux.HandleFunc("POST /do", p.do)
	p.mux.HandleFunc("GET /static/{file}", p.static)
	p.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, http.StatusNotFound, "There is no such page.")
	})
	inner := http.NewCrossOriginProtection()
	inner.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, http.StatusForbidden, "Another site made your browser send this request. Nothing was done.")
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
