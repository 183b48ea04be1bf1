package check

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Whichever script comes late over a slow network, the view is live in the end, and says so:
// also one in which nothing changes, so that only the first message has something.
func TestPage_slowScripts(t *testing.T) {
	for late, view := range map[string]string{"htmx.min.js": "keys?q=nothing", "hx-sse.min.js": "keys?q=nothing", "uPlot.iife.min.js": "", "app.js": "keys?q=nothing"} {
		t.Run(late, func(t *testing.T) {
			w, b := start(t), open(t)
			page, streams := w.server.Config.Handler, make(chan struct{}, 1)
			w.server.Config.Handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/live"):
					select {
					case streams <- struct{}{}:
					default:
					}
				case strings.HasSuffix(r.URL.Path, late):
					select { // a page that does not wait for this script asks for its stream now
					case <-streams:
						time.Sleep(100 * time.Millisecond) // for the first message, which such a page misses
					case <-time.After(time.Second):
					case <-r.Context().Done():
					}
				}
				page.ServeHTTP(out, r)
			})
			b.do(chromedp.Navigate(w.url(view)))
			b.await(live)
			b.nothingWrong()
		})
	}
}
