package web

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

//go:embed templates
var templateFiles embed.FS

// views are the templates: each has layout.html around it, and a part "live" that is
// sent again and again.
var views = func() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(template.FuncMap{
		"asset":    func(base, name string) string { return base + "static/" + name + "?v=" + assetFiles[name].version },
		"ago":      func(now, t time.Time) string { return printable.Duration(now.Sub(t)) },
		"in":       func(now, t time.Time) string { return printable.Duration(t.Sub(now)) },
		"clock":    func(t time.Time) string { return t.UTC().Format("15:04:05") },
		"exact":    printable.Exact,
		"timed":    printable.Timed,
		"iso":      func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
		"text":     printable.Short,
		"count":    printable.Count,
		"inBraces": inspect.InBraces,
		"orders":   inner.Orders, // a pause and a limit of one target are one each
		"sep":      func(n int) string { return separated(strconv.Itoa(n)) },
		"bar":      func(n, most int) int { return max(1, 100*n/max(most, 1)) },
		"order":    inspect.OrderText,
		"more":     func(n int) int { return n - 1 },
		"neg":      func(d time.Duration) time.Duration { return -d },
	}).ParseFS(templateFiles, "templates/layout.html", "templates/chart.html"))
	all := map[string]*template.Template{}
	for _, name := range []string{"overview", "keys", "key", "blocked", "rules", "processes", "unique", "doctor", "ask", "fail"} {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(templateFiles, "templates/"+name+".html"))
	}
	return all
}()

// frame is what every view knows.
type frame struct {
	Base    string // what links begin with
	View    string // of the navigation
	Title   string
	Theme   string // one of themes
	Here    string // the link to the view, without Base, for its actions to lead back to
	Live    string // the URL of the view's stream; empty without one
	Operate bool   // the viewer may act
	Now     time.Time
}

func (p *page) frame(r *http.Request, view, title string) frame {
	return frame{Base: p.base, View: view, Here: view, Theme: themeOf(r), Title: title, Operate: p.o.Access(r) >= AccessOperate, Now: time.Now()}
}

// render sends a whole page. It is made before the first byte is sent, so that a failure
// is a 500 and not half a page.
func (p *page) render(w http.ResponseWriter, status int, view string, data any) {
	body := p.execute(view, "layout.html", data)
	if body == nil {
		http.Error(w, "the page cannot be rendered; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the browser went away
}

// execute makes a view with one of its templates; nil when it cannot be made, which is logged.
func (p *page) execute(view, name string, data any) []byte {
	var b bytes.Buffer
	if err := views[view].ExecuteTemplate(&b, name, data); err != nil {
		p.o.Logger.Error("automutex: web: cannot render a view", "view", view, "error", err)
		return nil
	}
	return b.Bytes()
}

// fail answers with an error.
func (p *page) fail(w http.ResponseWriter, r *http.Request, status int, text string) {
	p.render(w, status, "fail", struct {
		frame
		Text string
	}{frame{Base: p.base, View: "-", Theme: themeOf(r), Title: http.StatusText(status), Now: time.Now()}, text})
}
