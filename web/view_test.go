package web

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// A view that cannot be made is a 500 without half a page, and no live update.
func TestRender_fails(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	got := httptest.NewRecorder()
	v.page.render(got, http.StatusOK, "keys", struct{ Title string }{})
	if body := got.Body.String(); got.Code != http.StatusInternalServerError || !strings.HasPrefix(body, "the page cannot be rendered") {
		t.Errorf("%d %s", got.Code, body)
	}
}

// goneBrowser is a connection that takes nothing.
type goneBrowser struct{ *httptest.ResponseRecorder }

func (goneBrowser) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A stream whose browser has gone ends at the first message, and makes room.
func TestLive_browserGone(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	v.page.ServeHTTP(goneBrowser{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/live?view=keys", nil))
	if n := len(v.page.streams); n != 0 {
		t.Errorf("%d streams are open", n)
	}
}
